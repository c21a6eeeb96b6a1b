#include "report/table.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/observation.h"
#include "core/slug.h"

namespace patchbench::report {
namespace {

constexpr int kMinColumn = 8, kGap = 2;

using Range = std::pair<uint32_t, uint32_t>;
// After Unicode's EastAsianWidth (W, F) and the general categories Mn, Me and Cf, blocks that our
// texts can hold.
constexpr std::array<Range, 13> kWide = {{{0x1100, 0x115f},
                                          {0x231a, 0x231b},
                                          {0x2e80, 0x303e},
                                          {0x3041, 0xa4cf},
                                          {0xac00, 0xd7a3},
                                          {0xf900, 0xfaff},
                                          {0xfe30, 0xfe6f},
                                          {0xff00, 0xff60},
                                          {0xffe0, 0xffe6},
                                          {0x1f300, 0x1f64f},
                                          {0x1f680, 0x1f6ff},
                                          {0x1f900, 0x1f9ff},
                                          {0x20000, 0x3fffd}}};
constexpr std::array<Range, 7> kZero = {{{0x0300, 0x036f},
                                         {0x0591, 0x05bd},
                                         {0x200b, 0x200f},
                                         {0x2028, 0x202e},
                                         {0x20d0, 0x20ff},
                                         {0xfe00, 0xfe0f},
                                         {0xfe20, 0xfe2f}}};

template <std::size_t N>
bool is_in(const std::array<Range, N>& ranges, uint32_t code) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& r) { return code >= r.first && code <= r.second; });
}

/// One character of a text: its bytes and the columns it takes. A byte that is not UTF-8 is one
/// column.
struct Glyph {
  std::string_view bytes;
  int width = 1;
};

Glyph glyph_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  const std::size_t length = lead < 0xc2   ? 1
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 1;
  if (at + length > text.size()) return {text.substr(at, 1), 1};
  uint32_t code = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {text.substr(at, 1), 1};
    code = (code << 6) | (byte(at + i) & 0x3fu);
  }
  return {text.substr(at, length), is_in(kZero, code) ? 0 : is_in(kWide, code) ? 2 : 1};
}

std::string_view color_code(Color color) {
  switch (color) {
    case Color::kGreen:
      return "\x1b[32m";
    case Color::kRed:
      return "\x1b[31m";
    case Color::kYellow:
      return "\x1b[33m";
    case Color::kGrey:
      return "\x1b[90m";
    case Color::kNone:
      break;
  }
  return "";
}

bool is_number(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return !text.empty() && read.ec == std::errc() && read.ptr == end;
}

/// Whether JSON writes the number like this: "007" and "0x1" are texts, and digits must survive the
/// way through a double.
bool is_json_number(const std::string& text) {
  if (!is_number(text) || !std::isdigit(static_cast<unsigned char>(text.back()))) return false;
  return Json::accept(text) && Json::parse(text).dump() == text;
}

std::string snake_case(std::string_view title) {
  std::string key;
  for (const char c : title) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!key.empty() && key.back() != '_') {
      key += '_';
    }
  }
  while (key.ends_with('_')) key.pop_back();
  return key;
}

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Where the name begins that `at` lies in: letters, digits and "_".
std::size_t name_begin(std::string_view text, std::size_t at) {
  while (at > 0 && is_name_char(text[at - 1])) --at;
  return at;
}
std::size_t name_end(std::string_view text, std::size_t at) {
  while (at < text.size() && is_name_char(text[at])) ++at;
  return at;
}

/// Columns of the longest slug of several words in a text; what is longer than a slug may be is a
/// digest.
int longest_slug(std::string_view text) {
  std::size_t longest = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string name(text.substr(at, name_end(text, at) - at));
    at += name.size();
    if (name.size() <= longest || name.find('_') == name.npos) continue;
    try {
      longest = Slug(name).str().size();
    } catch (const Error&) {  // not a slug
    }
  }
  return static_cast<int>(longest);
}

/// Columns of a table's line.
int line_width(const std::vector<int>& columns) {
  return std::accumulate(columns.begin(), columns.end(),
                         kGap * (static_cast<int>(columns.size()) - 1));
}

void trim_end(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

std::string padding(int columns) {
  return std::string(static_cast<std::size_t>(std::max(columns, 0)), ' ');
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Glyph glyph = glyph_at(text, at);
    width += glyph.width;
    at += glyph.bytes.size();
  }
  return width;
}

std::vector<std::string> wrap(std::string_view text, int width) {
  std::vector<std::string> lines;
  std::string line;
  int used = 0;
  std::size_t last_space = std::string::npos;
  const auto restart = [&](std::string rest) {
    line = std::move(rest);
    used = display_width(line);
    last_space = std::string::npos;
  };
  for (std::size_t at = 0; at < text.size();) {
    const Glyph glyph = glyph_at(text, at);
    at += glyph.bytes.size();
    if (used + glyph.width > width && !line.empty()) {
      const bool is_space = glyph.bytes == " ";
      std::size_t cut = line.size();
      if (!is_space && last_space != std::string::npos) {
        cut = last_space + 1;
      } else if (is_name_char(glyph.bytes.front())) {
        const std::size_t begin = name_begin(line, line.size());
        const std::size_t length = line.size() - begin + name_end(text, at) - at + 1;
        if (begin > 0 && length <= static_cast<std::size_t>(width)) cut = begin;
      }
      const std::string rest = line.substr(cut);
      line.resize(cut);
      trim_end(line);
      lines.push_back(line);
      restart(rest);
      if (is_space) continue;
    }
    if (glyph.bytes == " ") last_space = line.size();
    line += glyph.bytes;
    used += glyph.width;
  }
  trim_end(line);
  if (!line.empty() || lines.empty()) lines.push_back(line);
  return lines;
}

std::string paragraph(std::string_view lead, std::string_view text, int width) {
  const int indent = display_width(lead);
  std::string out, margin(lead);
  for (const std::string& line : wrap(printable(text), width - indent)) {
    out += margin + line + "\n";
    margin.assign(static_cast<std::size_t>(indent), ' ');
  }
  return out;
}

std::string colored(const std::string& text, Color color, const Style& style) {
  const std::string_view code = style.is_colored && !text.empty() ? color_code(color) : "";
  return code.empty() ? text : std::string(code) + text + "\x1b[0m";
}

std::string closing(std::string_view sentence, std::string_view command) {
  return std::string(sentence) + "\nnext: " + printable(command) + "\n";
}

Style style_of(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool is_refused = no_color != nullptr && *no_color != '\0';
  if (::isatty(descriptor) != 1) return {.width = kNoLimit};
  return {.is_colored = !is_refused};
}

Table::Table(std::vector<std::string> titles) : titles_(std::move(titles)) {}

void Table::add(std::vector<std::string> cells) {
  if (cells.size() > titles_.size())
    throw Error(ErrorCode::kInternal, "table: a row has more cells than the table has columns");
  cells.resize(titles_.size());
  for (std::string& cell : cells)
    cell = printable(one_line(cell, std::numeric_limits<std::size_t>::max()));
  rows_.push_back({std::move(cells), std::vector<Color>(titles_.size(), Color::kNone)});
}

void Table::color(std::size_t column, Color color) {
  rows_.at(rows_.size() - 1).colors.at(column) = color;
}

std::vector<bool> Table::numeric_columns() const {
  std::vector<bool> numeric(titles_.size(), !rows_.empty());
  for (std::size_t column = 0; column < titles_.size(); ++column) {
    bool has_number = false;
    for (const Row& row : rows_) {
      const std::string& cell = row.cells[column];
      has_number |= is_number(cell);
      if (!cell.empty() && cell != "-" && !is_number(cell)) numeric[column] = false;
    }
    if (!has_number) numeric[column] = false;
  }
  return numeric;
}

std::vector<int> Table::widths(int total) const {
  std::vector<int> widths, spare;  // what a column may give up
  for (std::size_t column = 0; column < titles_.size(); ++column) {
    int width = display_width(titles_[column]), least = kMinColumn;
    for (const Row& row : rows_) {
      width = std::max(width, display_width(row.cells[column]));
      least = std::max(least, longest_slug(row.cells[column]));
    }
    widths.push_back(width);
    spare.push_back(width - least);
  }
  int sum = line_width(widths);
  while (sum > total) {
    std::size_t widest = widths.size();
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (spare[i] > 0 && (widest == widths.size() || widths[i] > widths[widest])) widest = i;
    }
    if (widest == widths.size()) break;
    --widths[widest];
    --spare[widest];
    --sum;
  }
  return widths;
}

std::string Table::render(const Style& style) const {
  if (style.is_plain) return render_tabs();
  const std::vector<int> columns = widths(style.width);
  if (line_width(columns) > style.width) return render_blocks(style);
  const std::vector<bool> numeric = numeric_columns();
  std::string out;
  const auto print = [&](const std::vector<std::string>& cells, const std::vector<Color>& colors) {
    std::vector<std::vector<std::string>> lines;
    std::size_t height = 1;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      lines.push_back(wrap(cells[i], columns[i]));
      height = std::max(height, lines.back().size());
    }
    for (std::size_t k = 0; k < height; ++k) {
      std::string line, gap;
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const std::string text = k < lines[i].size() ? lines[i][k] : "";
        const std::string space = padding(columns[i] - display_width(text));
        const std::string shown_text = colored(text, colors[i], style);
        line += gap + (numeric[i] ? space + shown_text : shown_text + space);
        gap = padding(kGap);
      }
      trim_end(line);
      out += line + "\n";
    }
  };
  print(titles_,
        std::vector<Color>(titles_.size(), style.is_colored ? Color::kGrey : Color::kNone));
  for (const Row& row : rows_) print(row.cells, row.colors);
  return out;
}

std::string Table::render_blocks(const Style& style) const {
  int label = 0;
  for (const std::string& title : titles_) label = std::max(label, display_width(title));
  label += kGap;
  std::string out, gap;
  for (const Row& row : rows_) {
    out += std::exchange(gap, "\n");
    for (std::size_t i = 0; i < titles_.size(); ++i) {
      const std::string& cell = row.cells[i];
      if (cell.empty()) continue;
      std::string title = titles_[i];
      for (const std::string& line :
           wrap(cell, std::max({style.width - label, longest_slug(cell), kMinColumn}))) {
        const std::string space = padding(label - display_width(title));
        out += colored(std::exchange(title, ""), Color::kGrey, style) + space +
               colored(line, row.colors[i], style) + "\n";
      }
    }
  }
  return out;
}

std::string Table::render_tabs() const {
  std::string out;
  const auto print = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) out += (i == 0 ? "" : "\t") + cells[i];
    out += "\n";
  };
  print(titles_);
  for (const Row& row : rows_) print(row.cells);
  return out;
}

Json Table::to_json(const std::set<std::string>& numbers) const {
  Json rows = Json::array();
  for (const Row& row : rows_) {
    Json object = Json::object();
    for (std::size_t i = 0; i < titles_.size(); ++i) {
      const std::string key = snake_case(titles_[i]), &cell = row.cells[i];
      const bool is_number = numbers.contains(key) && is_json_number(cell);
      object[key] = is_number ? Json::parse(cell) : Json(cell);
    }
    rows.push_back(std::move(object));
  }
  return rows;
}

}  // namespace patchbench::report
