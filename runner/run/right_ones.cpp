#include "run/right_ones.h"

#include <algorithm>
#include <utility>

#include "ledger/ledger.h"
#include "run/names.h"

namespace patchbench {
namespace {

constexpr uint64_t kSeedsARun = 10;

/// Whether the ledger has the answer for this release under a manifest that asks the same.
bool is_recorded(const Context& context, const Setup& setup, const QuestionContext& asked) {
  const std::string version = setup.target.pin ? setup.target.pin->version : "";
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
           judged.is_same(of.value("manifest_sha256", ""), setup.target.manifest.sha256);
  });
}

/// The runs of one subject on one upstream.
void draw_for(const Context& context, const RunRequest& request,
              const std::function<void(const RightOne&)>& take) {
  const SeedRange all = request.choice.seeds;
  const Subject subject = request.subject;
  for (uint64_t seed = all.first; seed <= all.last; seed += kSeedsARun) {
    const Setup setup = prepare(context, request);
    CaseChoice choice = request.choice;
    choice.seeds = {seed, std::min(all.last, seed + kSeedsARun - 1)};
    const RunPlan plan = plan_drawn(setup.target, subject, {}, choice);
    if (choice.conditions.empty() && is_recorded(context, setup, plan.question)) continue;
    const bool is_op = subject.is_in_process();
    take({request.slug, is_op || !setup.target.pin ? "" : setup.target.pin->version, subject, setup,
          draw_alone(context, setup, subject, choice)});
  }
}

}  // namespace

void draw_for_right_ones(const Context& context, RunRequest request,
                         const std::function<void(const RightOne&)>& take) {
  const Manifest manifest = context.manifest(request.slug);
  const Device device = chosen_device(request.device);
  request.needs_pin = true;  // an installed stack (--python) runs the release with its edits
  const auto has_spaces = [&](const Subject& subject, const UpstreamUse& use) {
    return has_subject(manifest, subject) &&
           !manifest.explore.of(subject, use, device.kind_name()).empty();
  };
  if (has_spaces(SubjectKind::kOp, manifest.upstreams.front())) {
    request.subject = SubjectKind::kOp;
    draw_for(context, request, take);
  }
  for (const UpstreamUse& use : manifest.upstreams) {
    const auto fixed = manifest.explore.fixed.find(use.name);
    const bool has_fixed = fixed != manifest.explore.fixed.end();
    request.subject = has_fixed ? SubjectKind::kUpstream : SubjectKind::kPatched;
    if (use.from_environment || !has_spaces(request.subject, use)) continue;
    request.upstream = use.name;
    request.version = has_fixed ? std::optional(fixed->second) : std::nullopt;
    draw_for(context, request, take);
  }
}

}  // namespace patchbench
