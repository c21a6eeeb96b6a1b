#pragma once
#include <string>
#include <string_view>

#include "core/json.h"

namespace patchbench {

/// Parses `text` strictly and checks it against a draft-07 `schema`. Returns the document; `lines`,
/// if not null, receives the line of every value. Throws Error(kUsage) `<path>:<line>: <json
/// pointer>: <reason>` for the first violation in the text, with "did you mean" for an unknown key
/// or enum value; Error(kInternal) if `schema` is none. A schema for input of others holds no
/// `pattern`: std::regex recurses once per character. Thread-safe.
Json check_schema(std::string_view text, const std::string& path, std::string_view schema,
                  JsonLines* lines = nullptr);

/// The 1-based line that has the value at an RFC 6901 pointer in `text` (0 if it is not
/// there).
int line_of_pointer(std::string_view text, std::string_view pointer);

/// Error(kUsage) of check_schema's form for a rule that a schema cannot say. `lines` as parse_json
/// filled it.
[[noreturn]] void fail_at(const std::string& path, const JsonLines& lines,
                          const std::string& pointer, const std::string& reason);

}  // namespace patchbench
