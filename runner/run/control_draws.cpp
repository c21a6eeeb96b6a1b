#include "run/control_draws.h"

#include <algorithm>
#include <utility>

#include "ledger/record_set.h"
#include "run/names.h"

namespace patchbench {
namespace {

constexpr uint64_t kSeedsARun = 10;

/// Whether no drawn case behind a verdict was red.
bool is_without_red(const ledger::RecordSet& records, const Record& verdict) {
  bool is_counted = false;
  for (const Observation& o : ledger::cited_observations(records, verdict)) {
    if (!o.is_summary()) continue;
    if (o.drawn.at("red") != 0) return false;
    is_counted = true;
  }
  return is_counted;
}

/// Whether the ledger has the answer for this release under a manifest that asks the same. A run
/// with a red case is made again: what was red may be mended.
bool is_recorded(const Context& context, const Setup& setup, const QuestionContext& question) {
  const std::string version = setup.target.pin ? setup.target.pin->version : "";
  const JudgedDigests judged = context.judged();
  const ledger::RecordSet records(ledger::Ledger::open(context.ledger)->all());
  const auto& entries = records.entries();
  return std::any_of(entries.begin(), entries.end(), [&](const auto& row) {
    const Record& record = row.second.record;
    if (record.type() != "verdict") return false;
    const Json& p = record.predicate();
    const Json& of = p.at("context");
    const bool is_of_release = question.subject.is_in_process() ||
                               of.value("pin", Json::object()).value("version", "") == version;
    return is_of_release && p.at("question") == question.to_json() &&
           judged.is_same(of.value("manifest_sha256", ""), setup.target.manifest.sha256) &&
           is_without_red(records, record);
  });
}

/// The runs of one subject on one upstream.
void draw_for(const Context& context, const RunRequest& request,
              const std::function<void(const ControlDraw&)>& take) {
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

void draw_controls(const Context& context, RunRequest request,
                   const std::function<void(const ControlDraw&)>& take) {
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
