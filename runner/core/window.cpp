#include "core/window.h"

#include <set>

namespace patchbench {
namespace {

bool is_gap(const ReleaseState& release) { return release.state.is_open(); }
bool is_bad(const ReleaseState& release) { return release.state == BugStatus::kPresent; }

/// Whether a release next to [first, last] was not measured: then the true end of the window is not
/// known.
bool has_open_edge(const std::vector<ReleaseState>& releases, std::size_t first, std::size_t last) {
  return (first > 0 && is_gap(releases[first - 1])) ||
         (last + 1 < releases.size() && is_gap(releases[last + 1]));
}

}  // namespace

bool has_no_such_code(const std::vector<Observation>& observations) {
  bool is_any = false;
  for (const Observation& o : observations) {
    if (o.role != CaseRole::kTrigger || !o.counts) continue;
    if (o.status != CaseStatus::kUnsupported) return false;
    is_any = true;
  }
  return is_any;
}

std::vector<Interval> intervals_of(const std::vector<ReleaseState>& releases) {
  std::vector<Interval> intervals;
  for (std::size_t first = 0; first < releases.size(); ++first) {
    if (!is_bad(releases[first])) continue;
    Interval interval{.failure_class = releases[first].state.failure_class(),
                      .first_bad = releases[first].version};
    std::size_t last = first;
    for (std::size_t i = first + 1; i < releases.size(); ++i) {
      if (is_gap(releases[i])) continue;
      if (releases[i].state != releases[first].state) break;
      interval.has_gap |= i > last + 1;
      last = i;
    }
    interval.last_bad = releases[last].version;
    interval.has_gap |= has_open_edge(releases, first, last);
    for (std::size_t i = first; i-- > 0 && interval.last_good_before.empty();) {
      if (releases[i].state == BugStatus::kAbsent) interval.last_good_before = releases[i].version;
    }
    for (std::size_t i = last + 1; i < releases.size() && interval.first_good_after.empty(); ++i) {
      if (releases[i].state == BugStatus::kAbsent) interval.first_good_after = releases[i].version;
    }
    intervals.push_back(std::move(interval));
    first = last;
  }
  return intervals;
}

std::map<std::string, std::vector<std::string>> gained_arguments(
    const std::vector<ReleaseState>& releases) {
  const auto function_of = [](const std::string& argument) {
    return argument.substr(0, argument.find('('));
  };
  std::map<std::string, std::vector<std::string>> gained;
  const ReleaseState* before = nullptr;
  for (const ReleaseState& release : releases) {
    if (release.arguments.empty()) continue;
    std::set<std::string> functions;
    if (before != nullptr)
      for (const std::string& one : before->arguments) functions.insert(function_of(one));
    for (const std::string& one : release.arguments)
      if (functions.contains(function_of(one)) && !before->arguments.contains(one))
        gained[release.version].push_back(one);
    before = &release;
  }
  return gained;
}

std::vector<ReleaseState> states_in_class(
    const std::string& failure_class, const std::vector<ReleaseState>& releases,
    const std::map<std::string, std::vector<Observation>>& observations) {
  const auto is_counted = [](const Observation& o) {
    return o.role == CaseRole::kTrigger && o.counts && o.subject == SubjectKind::kUpstream;
  };
  std::set<std::string> cases;  // that show the class in some release
  for (const auto& [version, of_version] : observations) {
    for (const Observation& o : of_version) {
      if (is_counted(o) && o.status == CaseStatus::kPresent && o.failure_class == failure_class)
        cases.insert(o.case_name);
    }
  }
  std::vector<ReleaseState> states = releases;
  for (ReleaseState& release : states) {
    const auto found = observations.find(release.version);
    if (release.state.is_open() || found == observations.end()) continue;
    bool is_present = false, is_answered = false;
    for (const Observation& o : found->second) {
      if (!is_counted(o) || !cases.contains(o.case_name)) continue;
      is_present |= o.status == CaseStatus::kPresent && o.failure_class == failure_class;
      is_answered |= o.status != CaseStatus::kUnsupported;
    }
    release.state = is_present                     ? BugState(failure_class)
                    : is_answered || cases.empty() ? BugState(BugStatus::kAbsent)
                                                   : BugState(BugStatus::kUnsupported);
  }
  return states;
}

}  // namespace patchbench
