#include "core/day.h"

#include <cstddef>

namespace patchbench {
namespace {

/// `form` with 'd' for a digit; anything else must be equal.
bool has_form(std::string_view text, std::string_view form) {
  if (text.size() != form.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    if (form[i] == 'd' ? !is_digit : text[i] != form[i]) return false;
  }
  return true;
}

}  // namespace

bool is_day(std::string_view text) { return has_form(text, "dddd-dd-dd"); }
bool is_time(std::string_view text) { return has_form(text, "dddd-dd-ddTdd:dd:ddZ"); }

}  // namespace patchbench
