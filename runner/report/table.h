#pragma once
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace patchbench::report {

/// Columns a text takes on a terminal: East Asian wide characters and emoji count two, combining
/// marks none.
int display_width(std::string_view text);

/// A colour of a whole cell; shown only where Style says so, never the only carrier of a meaning.
enum class Color { kNone, kGreen, kRed, kYellow, kGrey };

/// A width that no text reaches.
constexpr int kNoLimit = std::numeric_limits<int>::max() / 4;

/// How a table is printed.
struct Style {
  int width = 80;  ///< columns that the widest line may take
  bool is_colored = false;
  bool is_plain = false;  ///< for programs: cells whole and separated by tabs
};

/// The style for a descriptor. On a terminal 80 columns, coloured with NO_COLOR unset (or empty);
/// into a pipe or a file one row a line, whatever its length.
Style style_of(int descriptor);

/// A small table for people: one header line, one line per row. A column of numbers is aligned
/// right, all else left.
class Table {
 public:
  explicit Table(std::vector<std::string> titles);
  /// Adds a row; missing cells are empty. Control characters in cells become spaces: a cell may
  /// hold text of a subject. Throws Error(kInternal) if there are more cells than columns.
  void add(std::vector<std::string> cells);
  /// Colours one cell of the row added last.
  void color(std::size_t column, Color color);
  std::size_t num_rows() const { return rows_.size(); }

  /// The table, each line ended by a line feed and free of trailing spaces. While a line is too
  /// wide the widest column gives up space, down to 8 columns or its longest slug: a slug is never
  /// broken. Where that is not enough each row becomes a block: a line for each filled cell, after
  /// its title.
  std::string render(const Style& style = {}) const;
  /// One object per row, keyed by the titles in snake_case. Cells are texts, but for JSON numbers
  /// in the columns of these keys: a digest of digits alone is not a number.
  Json to_json(const std::set<std::string>& numbers = {}) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::vector<Color> colors;
  };
  std::vector<int> widths(int total) const;
  std::vector<bool> numeric_columns() const;
  std::string render_tabs() const;
  std::string render_blocks(const Style& style) const;
  std::vector<std::string> titles_;
  std::vector<Row> rows_;
};

/// Text broken into lines of at most `width` columns, at spaces where there are any, else within a
/// word, where a slug that fits stays whole.
std::vector<std::string> wrap(std::string_view text, int width);
/// A paragraph with a hanging indent: `lead` in front of its first line, spaces in front of the
/// others; each line ends with a line feed.
std::string paragraph(std::string_view lead, std::string_view text, int width = 80);
/// A text in a colour, where the style shows colours.
std::string colored(const std::string& text, Color color, const Style& style);
/// The last two lines of an answer: what it means, and the command that follows (never wrapped).
std::string closing(std::string_view sentence, std::string_view command);
}  // namespace patchbench::report
