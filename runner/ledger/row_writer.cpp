#include "ledger/row_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/digest.h"
#include "ledger/row_reader.h"

namespace patchbench::ledger {
namespace {

/// A shorter value costs less than its reference and its definition.
constexpr std::size_t kLeastShared = 20;
/// What a definition and a reference cost, with the comma, about.
constexpr std::size_t kDefinitionBytes = 20, kReferenceBytes = 6;
/// Bounds the memory of a writer and a reader.
constexpr std::size_t kRowsOfASection = 4096;
/// Bounds the time that a writer takes to find runs of alike rows.
constexpr std::size_t kLongestRun = 512;

/// A value of a text in RFC 8785 form, and what it holds.
struct Node {
  std::string_view text;
  int path = 0;                        ///< the same for the same keys and indices from the root on
  std::vector<std::string_view> keys;  ///< of an object: `"key":`
  std::vector<Node> children;          ///< of an object or an array

  bool is_object() const { return text.front() == '{'; }
  bool is_container() const { return is_object() || text.front() == '['; }
};

/// The numbers of paths.
class Paths {
 public:
  int child(int parent, std::string_view key) {
    return numbers_.try_emplace({parent, std::string(key)}, static_cast<int>(numbers_.size()) + 1)
        .first->second;
  }

 private:
  std::map<std::pair<int, std::string>, int> numbers_;
};

class Parser {
 public:
  static Node parse(std::string_view text, Paths& paths) { return Parser(text, paths).value(0); }

 private:
  Parser(std::string_view text, Paths& paths) : text_(text), paths_(paths) {}

  Node value(int path) {
    Node node{.text = {}, .path = path, .keys = {}, .children = {}};
    const std::size_t begin = at_;
    if (text_[at_] == '"') {
      string();
    } else if (text_[at_] == '{' || text_[at_] == '[') {
      members(node);
    } else {
      at_ = std::min(text_.find_first_of(",]}", at_), text_.size());
    }
    node.text = text_.substr(begin, at_ - begin);
    return node;
  }
  void string() {
    for (++at_; text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    ++at_;
  }
  void members(Node& node) {
    const bool is_object = text_[at_++] == '{';
    while (text_[at_] != '}' && text_[at_] != ']') {
      if (text_[at_] == ',') ++at_;
      std::string key = std::to_string(node.children.size());
      if (is_object) {
        const std::size_t begin = at_;
        string();
        ++at_;  // the colon
        node.keys.push_back(text_.substr(begin, at_ - begin));
        key = node.keys.back();
      }
      node.children.push_back(value(paths_.child(node.path, key)));
    }
    ++at_;
  }

  std::string_view text_;
  Paths& paths_;
  std::size_t at_ = 0;
};

/// Values of one shape, in the order of their first rows: the same text but for what is in the
/// holes.
struct Shape {
  /// Values [begin, end): one definition of their common part.
  struct Run {
    std::size_t begin = 0, end = 0;
    std::vector<std::size_t> open;  ///< the holes in which they differ, ascending
    int64_t id = 0;                 ///< of the definition, 0 before it is made
  };
  std::vector<const Node*> values;
  std::vector<std::vector<const Node*>> holes;  ///< of each value
  Run all;                                      ///< all values
  std::vector<Run> runs;                        ///< parts in which more is alike
  bool is_defined = false;                      ///< whether it is worth a definition

  /// The holes, of some, in which the values [begin, end) differ.
  std::vector<std::size_t> differing(std::vector<std::size_t> some, std::size_t begin,
                                     std::size_t end) const {
    std::erase_if(some, [&](std::size_t hole) {
      for (std::size_t i = begin; i < end; ++i)
        if (holes[i][hole]->text != holes[begin][hole]->text) return false;
      return true;
    });
    return some;
  }
  /// The smallest run with a value.
  Run& run_of(std::size_t value) {
    for (Run& run : runs)
      if (run.begin <= value && value < run.end) return run;
    return all;
  }
};

/// One section: what of its rows is worth a definition, and the lines.
class Section {
 public:
  explicit Section(std::span<const std::string> rows) : rows_(rows) {
    Paths paths;
    for (const std::string& row : rows)
      parsed_.push_back(is_envelope(row) ? std::nullopt : std::optional(Parser::parse(row, paths)));
    for (const auto& row : parsed_)
      if (row) count(*row);
    for (const auto& row : parsed_)
      if (row) collect(*row);
    for (auto& [text, shape] : shapes_) find_runs(shape, text.size());
  }

  void write(std::string& out) {
    out += kSectionLine;
    out += '\n';
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::string row = parsed_[i] ? formed(*parsed_[i]) : rows_[i];
      // Definitions come before the row that is the first to need them.
      out += std::exchange(definitions_, "") + row + '\n';
      if (parsed_[i]) row_of_digest_.emplace('"' + sha256_hex(rows_[i]) + '"', i);
      num_written_ = i + 1;
    }
  }

 private:
  static bool is_envelope(std::string_view row) { return row.starts_with("{\"payload\":"); }

  struct PathUse {
    std::size_t num = 0;
    std::unordered_set<std::string_view> values;
    std::set<std::size_t> lengths;
  };

  /// Counts how often a value occurs; what is inside counts once for each different value around
  /// it.
  void count(const Node& node) {
    if (node.is_container()) {
      PathUse& use = paths_[node.path];
      ++use.num;
      use.values.insert(node.text);
      use.lengths.insert(node.children.size());
    }
    if (++counts_[node.text] == 1)
      for (const Node& child : node.children) count(child);
  }

  /// Whether a value is in a hole of its container. Of the containers, those are which repeat at
  /// this place of the rows, and lists of many lengths.
  bool is_hole(const Node& node) const {
    if (!node.is_container()) return true;
    // What is inside a value that stood elsewhere before was counted there alone.
    const auto found = paths_.find(node.path);
    if (found == paths_.end()) return true;
    const PathUse& use = found->second;
    return use.num >= 2 * use.values.size() ||
           (!node.is_object() && 8 * use.lengths.size() > use.values.size());
  }

  /// The text of a container, with `hole` in place of each value that is in a hole.
  void spread(const Node& node, const std::function<std::string(const Node&)>& hole,
              std::string& out) const {
    out += node.is_object() ? "{" : "[0";
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (i > 0 || !node.is_object()) out += ',';
      if (node.is_object()) out += node.keys[i];
      if (is_hole(node.children[i])) {
        out += hole(node.children[i]);
      } else {
        spread(node.children[i], hole, out);
      }
    }
    out += node.is_object() ? '}' : ']';
  }

  void collect(const Node& node) {
    if (!node.is_container() || !places_.try_emplace(node.text).second) return;
    std::vector<const Node*> holes;
    std::string text;
    spread(
        node,
        [&](const Node& child) {
          holes.push_back(&child);
          return "[]";
        },
        text);
    Shape& shape = shapes_[text];
    places_[node.text] = {&shape, shape.values.size()};
    shape.values.push_back(&node);
    shape.holes.push_back(holes);
    for (const Node* hole : holes) collect(*hole);
  }

  bool is_shared(std::string_view text) const {
    const std::size_t num = counts_.at(text);
    return text.size() >= kLeastShared && num > 1 &&
           num * text.size() > text.size() + kDefinitionBytes + num * kReferenceBytes;
  }
  std::size_t cost(const Node& node) const {
    return is_shared(node.text) ? kReferenceBytes : node.text.size() + 1;
  }

  void find_runs(Shape& shape, std::size_t text_bytes) {
    const std::size_t num = shape.values.size(), num_holes = shape.holes.front().size();
    std::vector<std::size_t> every(num_holes);
    std::iota(every.begin(), every.end(), 0);
    shape.all = {0, num, shape.differing(every, 0, num)};
    // What every value would repeat, and what the definition costs.
    std::size_t same_bytes = text_bytes - 2 * num_holes;
    for (const std::size_t hole : every)
      if (!std::ranges::binary_search(shape.all.open, hole))
        same_bytes += cost(*shape.holes.front()[hole]);
    const std::size_t num_open = shape.all.open.size();
    shape.is_defined = num * same_bytes > num * (kReferenceBytes + num_open) + kDefinitionBytes +
                                              same_bytes + 3 * num_open;
    if (shape.is_defined) cut_into_runs(shape);
  }

  /// The runs for which a definition of their own pays: the best cut of the sequence of values, by
  /// what each run saves.
  void cut_into_runs(Shape& shape) {
    const std::size_t num = shape.values.size();
    std::vector<int64_t> saved(num + 1, 0);
    std::vector<std::size_t> begins(num + 1, 0);  // of the run that ends there
    for (std::size_t end = 1; end <= num; ++end) {
      saved[end] = saved[end - 1];
      begins[end] = end;
      std::vector<std::size_t> alike = shape.all.open;
      const std::size_t first = end > kLongestRun ? end - kLongestRun : 0;
      for (std::size_t begin = end - 1; begin-- > first && !alike.empty();) {
        std::erase_if(alike, [&](std::size_t hole) {
          return shape.holes[begin][hole]->text != shape.holes[end - 1][hole]->text;
        });
        std::size_t of_one = 0;
        for (const std::size_t hole : alike) of_one += cost(*shape.holes[begin][hole]);
        const int64_t gain = saved[begin] + static_cast<int64_t>((end - begin - 1) * of_one) -
                             static_cast<int64_t>(kDefinitionBytes + kReferenceBytes +
                                                  3 * (shape.all.open.size() - alike.size()));
        if (gain <= saved[end]) continue;
        saved[end] = gain;
        begins[end] = begin;
      }
    }
    for (std::size_t end = num; end > 0; end = std::min(end - 1, begins[end]))
      if (begins[end] < end)
        shape.runs.push_back({begins[end], end, shape.differing(shape.all.open, begins[end], end)});
  }

  /// What a line has in place of a value: a reference, or its text.
  std::string valued(const Node& node) {
    const auto row = row_of_digest_.find(node.text);
    if (row != row_of_digest_.end()) return fmt::format("[-{}]", num_written_ - row->second);
    if (const auto found = ids_.find(node.text); found != ids_.end())
      return fmt::format("[{}]", found->second);
    std::string text = node.is_container() ? formed(node) : std::string(node.text);
    if (!is_shared(node.text)) return text;
    const int64_t id = define(text);
    ids_.emplace(node.text, id);
    return fmt::format("[{}]", id);
  }

  int64_t define(const std::string& text) {
    definitions_ += fmt::format("{{\"$\":{},\"value\":{}}}\n", ++num_defined_, text);
    return num_defined_;
  }

  /// A container by its shape, or as it is where a definition does not pay.
  std::string formed(const Node& node) {
    const auto [shape, at] = places_.at(node.text);
    std::string text;
    if (!shape->is_defined) {
      spread(node, [&](const Node& hole) { return valued(hole); }, text);
      return text;
    }
    Shape::Run& run = shape->run_of(at);
    if (shape->all.id == 0) define_shape(*shape);
    if (run.id == 0) define_run(*shape, run);
    text = fmt::format("[{}", run.id);
    for (const std::size_t hole : run.open) text += ',' + valued(*shape->holes[at][hole]);
    return text + ']';
  }

  void define_shape(Shape& shape) {
    std::string text;
    std::size_t hole = 0;
    spread(
        *shape.values.front(),
        [&](const Node& value) {
          return std::ranges::binary_search(shape.all.open, hole++) ? "[]" : valued(value);
        },
        text);
    shape.all.id = define(text);
  }

  void define_run(Shape& shape, Shape::Run& run) {
    std::string text = fmt::format("[{}", shape.all.id);
    for (const std::size_t hole : shape.all.open)
      text += "," + (std::ranges::binary_search(run.open, hole)
                         ? "[]"
                         : valued(*shape.holes[run.begin][hole]));
    run.id = define(text + "]");
  }

  std::span<const std::string> rows_;
  std::vector<std::optional<Node>> parsed_;
  std::map<int, PathUse> paths_;
  std::unordered_map<std::string_view, std::size_t> counts_;
  std::unordered_map<std::string_view, std::pair<Shape*, std::size_t>> places_;
  std::map<std::string, Shape> shapes_;
  std::unordered_map<std::string_view, int64_t> ids_;
  std::map<std::string, std::size_t, std::less<>> row_of_digest_;
  std::size_t num_written_ = 0;
  std::string definitions_;
  int64_t num_defined_ = 0;
};

}  // namespace

std::string pack_rows(const std::vector<std::string>& rows) {
  std::string out;
  for (std::size_t first = 0; first < rows.size(); first += kRowsOfASection)
    Section(std::span(rows).subspan(first, std::min(kRowsOfASection, rows.size() - first)))
        .write(out);
  return out;
}

}  // namespace patchbench::ledger
