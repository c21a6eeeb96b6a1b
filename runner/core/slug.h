#pragma once
#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// The name of a pack, `[a-z][a-z0-9]*(_[a-z0-9]+)*`, at most 48 characters: the row of the table.
class Slug {
 public:
  /// Throws Error(kUsage) if text is no slug.
  explicit Slug(std::string text);
  const std::string& str() const { return text_; }
  auto operator<=>(const Slug&) const = default;

 private:
  std::string text_;
};

/// The columns of the table: one cell per (slug, column).
enum class Column { kPack, kRepro, kPatches, kMitigation, kTest, kEvidence };

/// Every column, in the order in which they are shown.
const std::vector<Column>& all_columns();
/// The column's folder name as used in a manifest's waivers: "packs", "repro", "patches", ….
std::string column_name(Column column);
/// The path of a cell, relative to the repository root; the only place where it is computed.
std::string cell_path(const Slug& slug, Column column);

/// The candidate nearest to `word` by edit distance (at most a third of its length), or "".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
/// `; did you mean X?` or `; one of: a, b, c` for an error's end.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace patchbench
