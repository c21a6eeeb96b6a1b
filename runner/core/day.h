#pragma once
#include <string_view>

namespace patchbench {

/// Whether a text has the form of a day, 2026-01-31. No calendar: 2026-13-99 has it too.
bool is_day(std::string_view text);
/// Whether a text has the form of a record's time, 2026-01-31T12:00:00Z.
bool is_time(std::string_view text);

}  // namespace patchbench
