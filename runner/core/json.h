#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace patchbench {

using Json = nlohmann::json;

/// Parses one JSON text strictly (no comments, no duplicate keys, no trailing text, depth <= 64).
/// Throws Error(kUsage) `<where>:<line>: <reason>`.
Json parse_json(std::string_view text, const std::string& where);

/// The RFC 8785 form (keys sorted by UTF-16 code units, shortest round-trip numbers, no white space).
/// Throws Error(kInternal) on a non-finite number: put `number_or_name` around any measure.
std::string canonical_json(const Json& value);

/// The number itself, or the string "nan", "inf" or "-inf" (JSON has no such numbers).
Json number_or_name(double value);
/// The inverse of number_or_name. Throws Error(kUsage) on anything else.
double number_from(const Json& value);

}  // namespace patchbench
