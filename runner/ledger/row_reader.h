#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace patchbench::ledger {

/// Evidence format 3. One row a line. What several rows share is defined once, with holes for what
/// differs; a row gives the values of the holes:
///
///   {"patchbench_evidence":3,"how":"…"}                     a section begins; earlier definitions
///                                                           and rows end
///   {"$":1,"value":{"case":[],"context":[],"seen":[]}}      definition 1 has three holes
///   {"$":2,"value":[1,[],{"cpu":"…"},"present"]}            definition 2 fills two of them
///   [2,"none_random"]                                       a row: a record with its holes filled
///
/// A line is JSON in which an array says what replaces it:
///   []          a hole, only in a definition
///   [0,V,…]     the array of these values
///   [N,V,…]     definition N with these values in its holes, in their order
///   [-K]        the SHA-256 of the record K rows above, as a string
///
/// What comes out is the record's RFC 8785 form, byte for byte: digests are over that. Format 2
/// has arrays as they are, definitions without holes, and {"$":N} in place of a value. A file
/// without a first line of a format is format 1: each row is a whole record. Signed envelopes are
/// never changed.
inline constexpr std::string_view kSectionLine =
    R"({"patchbench_evidence":3,"how":"[N,…] is definition N with … in its holes []; [0,…] is an array; [-K] is the digest of the record K rows above"})";

/// Reads lines of any of the formats, in their order.
class RowReader {
 public:
  /// The record of a row; nullopt for a line that begins a section or defines a value, which is
  /// kept. Throws Error(kUsage) on a later format, a malformed line, a definition made twice in a
  /// section, an unknown reference, a wrong number of values, a row with a hole, more than 64
  /// levels, more than 1 MiB in a record or a definition, and definitions of more than 64 MiB in a
  /// section.
  std::optional<std::string> take(std::string_view line);

  /// Text with holes: a hole is between each two pieces.
  using Pieces = std::vector<std::string>;

 private:
  Pieces filled(std::string_view text) const;

  int format_ = 1;
  std::unordered_map<int64_t, Pieces> definitions_;
  std::size_t defined_bytes_ = 0;
  std::vector<std::string> digests_;  ///< of each row of the section; "" for an envelope
};

/// Calls `take` with the record of each row of a text and its place `<where>:<line>`. Errors of a
/// line have its place, too.
void each_row(std::string_view text, const std::string& where,
              const std::function<void(std::string record, const std::string& where)>& take);

}  // namespace patchbench::ledger
