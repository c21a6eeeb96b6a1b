#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/bug_state.h"
#include "core/json.h"
#include "core/observation.h"

namespace patchbench {

/// What was measured of one release.
struct ReleaseState {
  std::string version;
  BugState state = BugStatus::kNotMeasured;
  std::string record;  ///< digest of the verdict it rests on
  /// "function(argument)" of the pack's functions, as the subject saw them called.
  std::set<std::string> arguments = {};
};

/// Whether every trigger that counts was unsupported: the release has no such code.
bool has_no_such_code(const std::vector<Observation>& observations);

/// One maximal run of consecutive measured releases in the same failure class ("unsupported" is
/// measured, and neither good nor bad: it ends a run).
struct Interval {
  std::string failure_class;
  std::string first_bad, last_bad;
  std::string last_good_before;  ///< the nearest older one measured absent; "" if there is none
  std::string first_good_after;  ///< the nearest newer one measured absent; "" if there is none
  bool has_gap = false;          ///< an unmeasured or unresolved release lies inside or at an edge
};

/// Intervals over releases in their order, oldest first. Nothing is assumed of unmeasured releases:
/// they end an interval's certainty (`has_gap`), they never join one silently.
std::vector<Interval> intervals_of(const std::vector<ReleaseState>& releases);

/// Arguments that functions of the pack gained: of each release those that the last measured one
/// before it did not have, of functions that it had.
std::map<std::string, std::vector<std::string>> gained_arguments(
    const std::vector<ReleaseState>& releases);

/// The states of the same releases by one failure class alone. A release may be in several classes
/// at once, and its verdict names the first of them; `seen` holds what each verdict rests on, by
/// version. Present where a trigger that counts shows the class; unsupported where the release has
/// no answer to any case that shows it in another release; absent else. Open releases stay open.
std::vector<ReleaseState> states_in_class(
    const std::string& failure_class, const std::vector<ReleaseState>& releases,
    const std::map<std::string, std::vector<Observation>>& observations);

}  // namespace patchbench
