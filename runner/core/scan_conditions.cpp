#include "core/scan_conditions.h"

#include <algorithm>

namespace patchbench {
namespace {

/// The place that rules a class of an answer out; null without one. `is_of_release`: one that says
/// so of the answer's release, whatever code meets.
const RuledOut* ruling_out(const ScanClass& row, const ScanAnswer& answer, const ScanReport& report,
                           bool is_of_release) {
  for (const RuledOut& one : report.ruled_out) {
    const bool is_for = one.slug == answer.slug && one.failure_class == row.name &&
                        std::find(one.upstreams.begin(), one.upstreams.end(), answer.upstream) !=
                            one.upstreams.end();
    const bool is_its = is_of_release ? one.release == answer.version : one.release.empty();
    if (is_for && is_its) return &one;
  }
  return nullptr;
}

void rule_out(ScanClass& row, const RuledOut& by) {
  row.state = ConditionState::kNotMet;
  row.where = by.place;
}

/// What the places say of one class of one answer.
void judge_condition(ScanClass& row, const ScanAnswer& answer, const ScanReport& report) {
  if (row.condition.empty()) {
    row.state = ConditionState::kMet;
    return;
  }
  // Only a release: a build or a changed file may have the same version and other models.
  const RuledOut* of_release =
      answer.is_release() ? ruling_out(row, answer, report, true) : nullptr;
  if (of_release != nullptr) return rule_out(row, *of_release);
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
  if (const RuledOut* by = ruling_out(row, answer, report, false)) rule_out(row, *by);
}

/// Why no place of a pack counts: no answer of it is left to be met; "" where one is.
std::string why_not_met(const ScanReport& report, const std::string& slug) {
  std::string why;
  for (const ScanAnswer& one : report.answers) {
    if (one.slug != slug || one.state == ScanState::kNotInstalled) continue;
    if (one.state != ScanState::kPresent) return "";
    why = one.why;
  }
  return why;
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
  for (CodeSite& site : report.code)
    if (site.ignored.empty()) site.ignored = why_not_met(report, site.slug);
}

}  // namespace patchbench
