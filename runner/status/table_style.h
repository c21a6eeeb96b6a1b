#pragma once
#include "core/bug_state.h"
#include "core/sentinel.h"
#include "report/table.h"
#include "workbench/context.h"

namespace patchbench {

/// How every table on standard output is printed: whole rows into a pipe or a file, tabs with
/// --plain.
report::Style table_style(const Context& context);

/// Red: a bug, or what was refuted. Green: right. Yellow: no answer. Grey: the release has no such
/// code.
report::Color color_of(const Outcome& outcome);
report::Color color_of(const BugState& state);

}  // namespace patchbench
