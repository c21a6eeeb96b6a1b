#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace patchbench::ledger {

/// Evidence format 2. One row a line; a value that several rows of a section hold is written once:
///
///   {"patchbench_evidence":2}                a section begins; earlier definitions end
///   {"$":1,"value":{"cpu":"…"}}              a definition; its value may refer to earlier ones
///   {"predicate":{"context":{"$":1}},…}      a row: a record with references in place of values
///
/// The text of a value replaces each reference to it, and what comes out is the record's RFC 8785
/// form, byte for byte: digests are over that. A file without the first line is format 1: each row
/// is a whole record. Signed envelopes are never changed.

/// Writes rows (RFC 8785 texts, no line feeds) in format 2, each with a line feed at its end.
std::string pack_rows(const std::vector<std::string>& rows);

/// Reads lines of either format, in their order.
class RowReader {
 public:
  /// Whether a line is a row; else it begins a section or defines a value, which is kept. Throws
  /// Error(kUsage) on a later format, a definition that is malformed or made twice in a section,
  /// and definitions of more than 64 MiB in a section.
  bool is_row(std::string_view line);
  /// The record of a row. Throws Error(kUsage) on an unknown reference and on more than 1 MiB.
  std::string record(std::string_view row) const;

 private:
  bool is_packed_ = false;
  std::unordered_map<int64_t, std::string> values_;
  std::size_t defined_bytes_ = 0;
};

/// Calls `take` with the record of each row of a text and its place `<where>:<line>`. Errors of a
/// line have its place, too.
void each_row(std::string_view text, const std::string& where,
              const std::function<void(std::string record, const std::string& where)>& take);

}  // namespace patchbench::ledger
