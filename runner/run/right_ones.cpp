#include "run/right_ones.h"

#include <algorithm>
#include <utility>

#include "ledger/ledger.h"
#include "run/drawn.h"
#include "run/names.h"

namespace patchbench {
namespace {

constexpr uint64_t kSeedsARun = 10;

/// Whether the ledger has the answer for this release under a manifest that asks the same.
bool is_recorded(const Context& context, const Setup& setup, const QuestionContext& asked) {
  const std::string version = setup.pin ? setup.pin->version : "";
  const JudgedDigests judged = context.judged();
  const auto entries = ledger::Ledger::open(context.ledger)->all();
  return std::any_of(entries.begin(), entries.end(), [&](const ledger::Entry& entry) {
    if (entry.record.type() != "verdict") return false;
    const Json& said = entry.record.predicate();
    const Json& of = said.at("context");
    const bool is_of_release = asked.subject.is_in_process() ||
                               of.value("pin", Json::object()).value("version", "") == version;
    // A run with a red case is made again: what was red may be mended.
    return is_of_release && said.at("question") == asked.to_json() &&
           said.value("why", "").ends_with(", 0 red") &&
           judged.is_same(of.value("manifest_sha256", ""), setup.manifest.sha256);
  });
}

/// The runs of one subject on one upstream.
void draw_for(const Context& context, RunOptions options, const Subject& subject,
              const std::function<void(const RightOne&)>& take) {
  const uint64_t first = options.seed, last = std::max(options.last_seed, options.seed);
  options.subject = subject;
  for (uint64_t seed = first; seed <= last; seed += kSeedsARun) {
    const Setup setup = prepare(context, options);
    options.seed = seed;
    options.last_seed = std::min(last, seed + kSeedsARun - 1);
    QuestionContext asked = question_for(setup, Question::kDrawn, subject);
    with_drawing(setup, options, subject, asked);
    asked.seeds = {options.seed, options.last_seed};
    if (options.conditions.empty() && is_recorded(context, setup, asked)) continue;
    const bool is_op = subject.is_in_process();
    take({options.slug, is_op || !setup.pin ? "" : setup.pin->version, subject, setup,
          draw_alone(context, setup, options, subject)});
  }
}

}  // namespace

void draw_for_right_ones(const Context& context, RunOptions options,
                         const std::function<void(const RightOne&)>& take) {
  const Manifest manifest = context.manifest(options.slug);
  const std::string device = chosen_device(options.device);
  options.needs_pin = true;  // an installed stack (--python) runs the release with its edits
  const auto has_spaces = [&](const Subject& subject, const UpstreamUse& use) {
    return has_subject(manifest, subject) &&
           !manifest.explore.of(subject, use, device.substr(0, device.find(':'))).empty();
  };
  if (has_spaces(SubjectKind::kOp, manifest.upstreams.front()))
    draw_for(context, options, SubjectKind::kOp, take);
  for (const UpstreamUse& use : manifest.upstreams) {
    const auto fixed = manifest.explore.fixed.find(use.name);
    const bool has_fixed = fixed != manifest.explore.fixed.end();
    const Subject right = has_fixed ? SubjectKind::kUpstream : SubjectKind::kPatched;
    if (use.from_environment || !has_spaces(right, use)) continue;
    options.upstream_name = use.name;
    options.version = has_fixed ? fixed->second : "";
    draw_for(context, options, right, take);
  }
}

}  // namespace patchbench
