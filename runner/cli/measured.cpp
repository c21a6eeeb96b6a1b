#include "cli/measured.h"

#include <map>

#include "core/sentinel.h"

namespace patchbench::cli {

bool stands_at_red_pins(const Manifest& manifest, const RunContext& run) {
  const Json beside = run.pin.value("beside", Json::object());
  for (const UpstreamUse& use : manifest.upstreams) {
    if (beside.is_object() && beside.value(use.name, use.red_pin) != use.red_pin) return false;
  }
  return true;
}

std::vector<MeasuredRelease> measured_releases(const ledger::Book& book, const Manifest& manifest,
                                               const Upstream& upstream) {
  std::map<std::string, std::map<std::string, MeasuredState>> newest;  // version -> device
  for (const auto& [digest, entry] : book.entries()) {
    if (entry.record.type() != "verdict" || !ledger::counts_for_quorum(entry)) continue;
    const Json& p = entry.record.predicate();
    if (p.at("context").value("slug", "") != manifest.slug.str()) continue;
    const RunContext run = RunContext::from_json(p.at("context"));
    const QuestionContext asked = QuestionContext::from_json(p.at("question"));
    if (asked.question != Question::kReproduce || asked.subject != "upstream") continue;
    if (run.pin.value("upstream", "") != upstream.name || !run.edits.empty()) continue;
    if (!stands_at_red_pins(manifest, run)) continue;
    const Outcome outcome = outcome_of(entry.record);
    const std::string state = outcome.sentinel == Sentinel::kBugReproduced ? outcome.argument
                              : outcome.sentinel == Sentinel::kBugAbsent   ? "absent"
                                                                           : "unresolved";
    const std::string device = run.machine.value("device", "cpu");
    MeasuredState& held = newest[run.pin.value("version", "")][device];
    if (held.started <= run.started) held = {device, state, run.started, digest};
  }
  std::vector<MeasuredRelease> releases;
  for (const Pin& pin : upstream.releases) {
    MeasuredRelease release{pin, {}};
    for (const auto& [device, state] : newest[pin.version]) release.states.push_back(state);
    releases.push_back(std::move(release));
  }
  return releases;
}

}  // namespace patchbench::cli
