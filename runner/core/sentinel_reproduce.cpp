#include "core/sentinel_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace patchbench::rules {
namespace {

/// The one declared failure class that every present trigger shows. The class is the primary one if
/// any trigger shows it; an undeclared class does not count.
std::string class_shown(const Observations& observations, const QuestionContext& context) {
  for (const std::string& name : context.classes) {
    for (const Observation& o : observations) {
      if (o.status == CaseStatus::kPresent && o.failure_class == name) return name;
    }
  }
  return "";
}

}  // namespace

Outcome reproduced(const Observations& observations, const QuestionContext& context) {
  int present = 0, absent = 0, triggers = 0;
  for (const Observation& o : observations) {
    if (o.status == CaseStatus::kUnresolved) return none("unresolved: " + named(o));
    if (o.status == CaseStatus::kPresent &&
        std::find(context.classes.begin(), context.classes.end(), o.failure_class) ==
            context.classes.end()) {
      return none(fmt::format("{}: failure class '{}' is not declared", named(o), o.failure_class));
    }
  }
  const std::string shown = class_shown(observations, context);
  const bool is_primary = context.classes.empty() || shown == context.classes.front();
  for (const Observation& o : observations) {
    if (o.role == CaseRole::kTrigger) {
      ++triggers;
      present += o.status == CaseStatus::kPresent;
      absent += o.status == CaseStatus::kAbsent;
    } else if (o.status == CaseStatus::kPresent && (o.role == CaseRole::kControl || is_primary)) {
      return none(fmt::format("{} is red, which must be right everywhere", named(o)));
    } else if (o.role == CaseRole::kControl && o.status != CaseStatus::kAbsent) {
      return none(
          fmt::format("control {} is {}: {}", o.case_name, case_status_name(o.status), o.reason));
    }
  }
  const bool has_control =
      std::any_of(observations.begin(), observations.end(),
                  [](const Observation& o) { return o.role == CaseRole::kControl; });
  if (triggers == 0) return none("no trigger case was run");
  if (!has_control)
    return none("no control case was run: a red trigger alone may be a broken set-up");
  if (present > 0) {
    Outcome outcome{Sentinel::kBugReproduced, shown,
                    fmt::format("{} of {} triggers present", present, triggers), ""};
    if (!is_primary) {
      outcome.alias = shown;
      std::transform(shown.begin(), shown.end(), outcome.alias.begin(),
                     [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    }
    return outcome;
  }
  if (absent == triggers) {
    std::string why = fmt::format("all {} triggers judged and absent", triggers);
    if (context.is_red_pin)
      why += "; this version was expected to be red: upstream moved, or the machine differs";
    return {Sentinel::kBugAbsent, "", why, ""};
  }
  return none(fmt::format("{} of {} triggers could not be judged", triggers - absent, triggers));
}

}  // namespace patchbench::rules
