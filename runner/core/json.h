#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace patchbench {

using Json = nlohmann::json;
/// RFC 6901 pointer of every value of a text -> the 1-based line on which it starts; "" is the
/// whole.
using JsonLines = std::map<std::string, int>;

/// Parses one JSON text strictly: no comments, no duplicate keys, no trailing text, depth <= 64,
/// valid UTF-8, no number that a double cannot hold, no integer beyond 2^53 unless it is the RFC
/// 8785 form of the double it reads as. Throws Error(kUsage) `<where>:<line>: <reason>`. If `lines`
/// is not null it receives the line of every value.
Json parse_json(std::string_view text, const std::string& where, JsonLines* lines = nullptr);

/// The same for a text that must be the RFC 8785 form of its value: `<where>: not in RFC 8785
/// form`.
Json parse_canonical_json(std::string_view text, const std::string& where);

/// The RFC 8785 form (keys sorted by UTF-16 code units, shortest round-trip numbers, no white
/// space). Throws Error(kInternal) on a non-finite number (put `number_or_name` around any
/// measure), on an integer beyond 2^53 and on a string that is not UTF-8.
/// canonical_json(parse_json(canonical_json(v))) is a fixed point.
std::string canonical_json(const Json& value);

/// One key as a segment of an RFC 6901 pointer: "~" becomes "~0", "/" becomes "~1".
std::string pointer_segment(std::string_view key);

void append_utf8(uint32_t code, std::string& out);
bool is_utf8(std::string_view text);

/// Foreign text for a line of output: controls, marks that turn the order of letters and bytes that
/// are not UTF-8 become "?".
std::string printable(std::string_view text);
/// The same for a message: what is longer than 80 bytes is cut with "…".
std::string shown(std::string_view text);

/// The number itself, or the string "nan", "inf" or "-inf" (JSON has no such numbers).
Json number_or_name(double value);
/// The inverse of number_or_name. Throws Error(kUsage) on anything else.
double number_from(const Json& value);

}  // namespace patchbench
