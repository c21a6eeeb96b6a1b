#include "status/table_style.h"

#include <unistd.h>

namespace patchbench {

report::Style table_style(const Context& context) {
  report::Style style = report::style_of(STDOUT_FILENO);
  style.is_plain = context.plain;
  return style;
}

}  // namespace patchbench
