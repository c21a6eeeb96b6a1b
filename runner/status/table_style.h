#pragma once
#include "report/table.h"
#include "workbench/context.h"

namespace patchbench {

/// How every table on standard output is printed: whole rows into a pipe or a file, tabs with
/// --plain.
report::Style table_style(const Context& context);

}  // namespace patchbench
