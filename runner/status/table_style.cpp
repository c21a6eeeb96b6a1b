#include "status/table_style.h"

#include <unistd.h>

namespace patchbench {

report::Style table_style(const Context& context) {
  report::Style style = report::style_of(STDOUT_FILENO);
  style.is_plain = context.plain;
  return style;
}

report::Color color_of(const Outcome& outcome) {
  if (!outcome.sentinel || *outcome.sentinel == Sentinel::kNotRun) return report::Color::kYellow;
  const bool is_red = *outcome.sentinel == Sentinel::kBugReproduced ||
                      *outcome.sentinel == Sentinel::kFixRejected ||
                      *outcome.sentinel == Sentinel::kClaimRefuted;
  return is_red ? report::Color::kRed : report::Color::kGreen;
}

report::Color color_of(const BugState& state) {
  switch (state.status()) {
    case BugStatus::kPresent:
      return report::Color::kRed;
    case BugStatus::kAbsent:
      return report::Color::kGreen;
    case BugStatus::kUnsupported:
      return report::Color::kGrey;
    default:
      return report::Color::kYellow;
  }
}

}  // namespace patchbench
