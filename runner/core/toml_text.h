#pragma once
#include <string>
#include <string_view>

#include "core/json.h"

namespace patchbench {

/// A TOML 1.0 text as JSON; dates and times become strings, non-finite numbers null. If `lines` is
/// not null it receives the line of every value that is at most four levels deep. Throws
/// Error(kUsage) `<where>:<line>: <reason>`.
Json parse_toml(std::string_view text, const std::string& where, JsonLines* lines = nullptr);

}  // namespace patchbench
