#include "core/scan_conditions.h"

#include <algorithm>

namespace patchbench {
namespace {

/// What the places say of one class of one answer.
void judge_condition(ScanClass& row, const ScanAnswer& answer, const ScanReport& report) {
  if (row.condition.empty()) {
    row.state = ConditionState::kMet;
    return;
  }
  bool is_open = false;
  for (const CodeSite& site : report.code) {
    if (site.slug != answer.slug) continue;
    for (const SiteClass& place : site.classes) {
      if (place.name != row.name || place.state == SiteState::kNoGradient) continue;
      is_open = true;
      if (place.state != SiteState::kMeets || !site.ignored.empty()) continue;
      row.state = ConditionState::kMet;
      row.where = site.place();
      return;
    }
  }
  if (is_open) return;
  for (const RuledOut& one : report.ruled_out) {
    const bool is_for = one.slug == answer.slug && one.failure_class == row.name &&
                        std::find(one.upstreams.begin(), one.upstreams.end(), answer.upstream) !=
                            one.upstreams.end();
    if (!is_for) continue;
    row.state = ConditionState::kNotMet;
    row.where = one.place;
    return;
  }
}

}  // namespace

void apply_conditions(ScanReport& report) {
  for (ScanAnswer& one : report.answers) {
    if (one.state != ScanState::kHit) continue;
    for (ScanClass& row : one.classes) judge_condition(row, one, report);
    std::stable_partition(one.classes.begin(), one.classes.end(), [](const ScanClass& row) {
      return row.state != ConditionState::kNotMet;
    });
    const ScanClass& worst = one.classes.front();
    const bool is_met = worst.state != ConditionState::kNotMet;
    one.why = is_met ? worst.name : "condition not met (" + worst.where + ")";
    if (!is_met) one.state = ScanState::kPresent;
  }
}

}  // namespace patchbench
