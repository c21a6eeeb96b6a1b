#include "core/fix_changes.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/python_tokens.h"

namespace patchbench {
namespace {

/// A logical line: its tokens, and the physical lines that it takes.
struct Statement {
  std::size_t begin = 0, end = 0;  ///< tokens
  std::size_t first = 0, last = 0;
};

constexpr std::array<std::string_view, 12> kDefinitions = {"def", "class", "import",  "from",
                                                           "@",   "async", "global",  "nonlocal",
                                                           "try", "else",  "finally", "except"};

class Changes {
 public:
  explicit Changes(std::string_view source) : source_(python_tokens(source, "the fix")) {}

  std::vector<FixChange> on(const std::vector<std::size_t>& lines) {
    for (const Statement& one : statements()) {
      const bool is_on = std::any_of(lines.begin(), lines.end(), [&](std::size_t line) {
        return line >= one.first && line <= one.last;
      });
      if (is_on && !is_definition(one)) change(one);
    }
    return std::move(changes_);
  }

 private:
  std::string_view of(std::size_t token) const { return source_.of(source_.tokens.at(token)); }
  bool is_operator(std::size_t token, std::string_view text) const {
    return source_.tokens[token].kind == PythonTokenKind::kOperator && of(token) == text;
  }

  std::vector<Statement> statements() const {
    std::vector<Statement> all;
    std::size_t begin = 0;
    bool is_open = false;
    for (std::size_t i = 0; i < source_.tokens.size(); ++i) {
      const PythonToken& token = source_.tokens[i];
      const bool is_layout = token.kind == PythonTokenKind::kNewline ||
                             token.kind == PythonTokenKind::kIndent ||
                             token.kind == PythonTokenKind::kDedent;
      if (!is_layout && !std::exchange(is_open, true)) begin = i;
      if (token.kind != PythonTokenKind::kNewline || !std::exchange(is_open, false)) continue;
      all.push_back({begin, i, source_.line_of(source_.tokens[begin].begin),
                     source_.line_of(source_.tokens[i - 1].end - 1)});
    }
    return all;
  }

  bool is_definition(const Statement& one) const {
    const std::string_view word = of(one.begin);
    const bool is_text =
        one.end == one.begin + 1 && source_.tokens[one.begin].kind == PythonTokenKind::kString;
    return is_text ||
           std::find(kDefinitions.begin(), kDefinitions.end(), word) != kDefinitions.end();
  }

  void add(const Statement& one, const char* what, std::size_t from, std::size_t to,
           const std::string& by) {
    std::string text = source_.text;
    text.replace(from, to - from, by);
    changes_.push_back({"", one.first, what, std::move(text)});
  }

  void change(const Statement& one) {
    const auto& tokens = source_.tokens;
    const std::string_view word = of(one.begin);
    const std::size_t end_byte = tokens[one.end - 1].end;
    const bool is_test = word == "if" || word == "elif" || word == "while";
    if (is_test)
      turn(one);
    else if (word != "for" && word != "with" && word != "pass")
      add(one, "left out", tokens[one.begin].begin, end_byte, "pass");
    for (std::size_t i = one.begin; i < one.end; ++i) {
      if (tokens[i].kind == PythonTokenKind::kNumber && is_whole(of(i)))
        add(one, "moved by one", tokens[i].begin, tokens[i].end,
            std::to_string(std::stoll(std::string(of(i))) + 1));
      if (is_operator(i, "(") && i > one.begin && is_callee(i - 1)) exchange(one, i);
    }
  }

  static bool is_whole(std::string_view number) {
    constexpr std::size_t kMostDigits = 15;
    return number.size() <= kMostDigits &&
           std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  }

  bool is_callee(std::size_t token) const {
    return source_.tokens[token].kind == PythonTokenKind::kName || is_operator(token, ")") ||
           is_operator(token, "]");
  }

  /// The first token at this depth of brackets that is `text`, from `begin` on.
  std::size_t find(const char* text, std::size_t begin, std::size_t end) const {
    int depth = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (depth == 0 && is_operator(i, text)) return i;
      for (const char* open : {"(", "[", "{"}) depth += is_operator(i, open);
      for (const char* close : {")", "]", "}"}) depth -= is_operator(i, close);
      if (depth < 0) return end;
    }
    return end;
  }

  void turn(const Statement& one) {
    const std::size_t colon = find(":", one.begin + 1, one.end);
    if (colon == one.end || colon == one.begin + 1) return;
    const std::size_t from = source_.tokens[one.begin + 1].begin,
                      to = source_.tokens[colon - 1].end;
    add(one, "turned", from, to, "not (" + source_.text.substr(from, to - from) + ")");
  }

  /// Exchanges the first two arguments of a call that are given by their places.
  void exchange(const Statement& one, std::size_t open) {
    const auto text_of = [&](std::size_t begin, std::size_t end) {
      const std::size_t from = source_.tokens[begin].begin;
      return source_.text.substr(from, source_.tokens[end - 1].end - from);
    };
    const std::size_t first = open + 1, comma = find(",", first, one.end);
    if (comma == one.end || comma == first) return;
    const std::size_t second = comma + 1;
    const std::size_t close = find(")", second, one.end);
    const std::size_t stop = std::min(find(",", second, one.end), close);
    if (stop == one.end || stop == second) return;
    for (const auto& [begin, end] : {std::pair(first, comma), std::pair(second, stop)}) {
      const bool is_by_place = find("=", begin, end) == end && !is_operator(begin, "*") &&
                               !is_operator(begin, "**") && !has_for(begin, end);
      if (!is_by_place) return;
    }
    const std::string one_text = text_of(first, comma), other_text = text_of(second, stop);
    if (one_text == other_text) return;
    const std::size_t from = source_.tokens[first].begin, to = source_.tokens[stop - 1].end;
    const std::string between =
        source_.text.substr(source_.tokens[comma - 1].end,
                            source_.tokens[second].begin - source_.tokens[comma - 1].end);
    add(one, "exchanged", from, to, other_text + between + one_text);
  }

  bool has_for(std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin; i < end; ++i)
      if (of(i) == "for" || of(i) == "lambda") return true;
    return false;
  }

  PythonTokens source_;
  std::vector<FixChange> changes_;
};

}  // namespace

std::vector<FixChange> fix_changes(std::string_view source, const std::vector<std::size_t>& lines) {
  return Changes(source).on(lines);
}

std::vector<FixChange> chosen_changes(const std::vector<FixChange>& all, std::size_t most) {
  // The first change of each line, then the second of each, and so on.
  std::map<std::pair<std::string, std::size_t>, std::size_t> num_of_line;
  std::vector<std::pair<std::size_t, std::size_t>> order;  // round, index
  for (std::size_t i = 0; i < all.size(); ++i)
    order.emplace_back(num_of_line[{all[i].path, all[i].line}]++, i);
  std::sort(order.begin(), order.end());
  // Of a round that does not fit, evenly spaced ones.
  std::vector<std::size_t> chosen;
  for (std::size_t begin = 0; begin < order.size() && chosen.size() < most;) {
    std::size_t end = begin;
    while (end < order.size() && order[end].first == order[begin].first) ++end;
    const std::size_t left = std::min(most - chosen.size(), end - begin);
    for (std::size_t k = 0; k < left; ++k)
      chosen.push_back(order[begin + k * (end - begin) / left].second);
    begin = end;
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<FixChange> changes;
  for (const std::size_t i : chosen) changes.push_back(all[i]);
  return changes;
}

}  // namespace patchbench
