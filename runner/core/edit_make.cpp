#include "core/edit_make.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "core/digest.h"
#include "core/error.h"

namespace patchbench {
namespace {

constexpr int64_t kMaxCells = 64'000'000;  // 256 MB of scores

/// A line split into its leading spaces and the rest; equal rests have equal `body` numbers.
struct Line {
  std::string_view text;
  int indent = 0;
  int body = 0;
  int weight = 0;  ///< 0: nothing but spaces, 1: no letter or digit, 10: words
};

/// Numbers the distinct bodies of both sides.
class Interner {
 public:
  std::vector<Line> lines_of(std::string_view text) {
    std::vector<Line> out;
    for (const std::string_view line : split_lines(text)) out.push_back(line_of(line));
    return out;
  }

 private:
  Line line_of(std::string_view text) {
    const size_t indent = std::min(text.find_first_not_of(' '), text.size());
    const std::string_view body = text.substr(indent);
    const auto [at, is_added] = ids_.try_emplace(body, static_cast<int>(ids_.size()));
    const bool has_word = std::any_of(body.begin(), body.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             (c & 0x80);
    });
    return {text, static_cast<int>(indent), at->second, body.empty() ? 0 : has_word ? 10 : 1};
  }

  std::unordered_map<std::string_view, int> ids_;
};

/// What it is worth to carry a base line to a wanted line instead of writing it; 0: it cannot be
/// carried.
int worth(const Line& base, const Line& wanted) {
  if (base.body != wanted.body || std::abs(base.indent - wanted.indent) > kMaxIndent) return 0;
  if (base.indent == wanted.indent) return 10 * base.weight + 2;
  return 10 * base.weight;
}

/// For each wanted line the base line that becomes it, or -1; strictly increasing.
struct Alignment {
  std::vector<int> base_of;
  std::vector<bool> is_kept;  ///< per base line
};

/// The dearest order-preserving pairing of base[b0..b1) with wanted[w0..w1), into `out`.
void align_range(const std::vector<Line>& base, const std::vector<Line>& wanted, size_t b0,
                 size_t b1, size_t w0, size_t w1, const std::string& path, Alignment& out) {
  const size_t rows = b1 - b0, columns = w1 - w0;
  if (static_cast<int64_t>(rows + 1) * static_cast<int64_t>(columns + 1) > kMaxCells) {
    throw Error(ErrorCode::kUsage,
                path + ": " + std::to_string(rows) + " lines against " + std::to_string(columns) +
                    " differ: too much for one edit; is this the right base version?");
  }
  // best[r][c]: worth of the rest from base line r and wanted line c on.
  std::vector<int> best((rows + 1) * (columns + 1), 0);
  const auto at = [&](size_t r, size_t c) -> int& { return best[r * (columns + 1) + c]; };
  for (size_t r = rows; r-- > 0;) {
    for (size_t c = columns; c-- > 0;) {
      const int pair = worth(base[b0 + r], wanted[w0 + c]);
      at(r, c) = std::max({at(r + 1, c), at(r, c + 1), pair > 0 ? pair + at(r + 1, c + 1) : 0});
    }
  }
  for (size_t r = 0, c = 0; r < rows && c < columns;) {
    const int pair = worth(base[b0 + r], wanted[w0 + c]);
    if (pair > 0 && at(r, c) == pair + at(r + 1, c + 1)) {
      out.base_of[w0 + c++] = static_cast<int>(b0 + r);
      out.is_kept[b0 + r++] = true;
    } else if (at(r, c) == at(r + 1, c)) {
      ++r;
    } else {
      ++c;
    }
  }
}

Alignment align(const std::vector<Line>& base, const std::vector<Line>& wanted,
                const std::string& path) {
  Alignment out{std::vector<int>(wanted.size(), -1), std::vector<bool>(base.size(), false)};
  size_t front = 0, back = 0;
  const size_t most = std::min(base.size(), wanted.size());
  while (front < most && base[front].text == wanted[front].text) ++front;
  while (back < most - front &&
         base[base.size() - 1 - back].text == wanted[wanted.size() - 1 - back].text)
    ++back;
  for (size_t i = 0; i < front; ++i) {
    out.base_of[i] = static_cast<int>(i);
    out.is_kept[i] = true;
  }
  for (size_t i = 1; i <= back; ++i) {
    out.base_of[wanted.size() - i] = static_cast<int>(base.size() - i);
    out.is_kept[base.size() - i] = true;
  }
  align_range(base, wanted, front, base.size() - back, front, wanted.size() - back, path, out);
  return out;
}

/// A block of the base that stands elsewhere in the wanted text.
struct Block {
  size_t base = 0, wanted = 0, length = 0;
};

/// How many lines from (b, w) on, unpaired on both sides, differ by one constant indentation.
size_t run_length(const std::vector<Line>& base, const std::vector<Line>& wanted,
                  const Alignment& pairs, size_t b, size_t w) {
  const int shift = wanted[w].indent - base[b].indent;
  size_t length = 0, words = 0, last_full = 0;
  for (; b + length < base.size() && w + length < wanted.size(); ++length) {
    const Line &from = base[b + length], &to = wanted[w + length];
    if (pairs.is_kept[b + length] || pairs.base_of[w + length] >= 0 || from.body != to.body) break;
    if (to.indent - from.indent != (from.weight == 0 ? 0 : shift)) break;
    if (std::abs(shift) > kMaxIndent) break;
    if (from.weight > 0) last_full = length + 1;
    if (from.weight > 1) ++words;
  }
  return words > 0 ? last_full : 0;
}

/// The longest block of two lines or more that no pairing in order could carry.
std::optional<Block> longest_moved_block(const std::vector<Line>& base,
                                         const std::vector<Line>& wanted, const Alignment& pairs) {
  std::unordered_map<int, std::vector<size_t>> free_base;
  for (size_t b = 0; b < base.size(); ++b) {
    if (!pairs.is_kept[b] && base[b].weight > 0) free_base[base[b].body].push_back(b);
  }
  Block best;
  for (size_t w = 0; w < wanted.size(); ++w) {
    if (pairs.base_of[w] >= 0 || wanted[w].weight == 0) continue;
    const auto candidates = free_base.find(wanted[w].body);
    if (candidates == free_base.end()) continue;
    for (const size_t b : candidates->second) {
      const size_t length = run_length(base, wanted, pairs, b, w);
      if (length >= 2 && length > best.length) best = {b, w, length};
    }
  }
  if (best.length == 0) return std::nullopt;
  return best;
}

/// Carries moved blocks to their places: `base` changes, the commands are returned.
std::vector<EdCommand> make_moves(std::vector<Line>& base, const std::vector<Line>& wanted,
                                  const std::string& path, Alignment& pairs) {
  std::vector<EdCommand> moves;
  while (const std::optional<Block> block = longest_moved_block(base, wanted, pairs)) {
    size_t target = 0;
    for (size_t w = block->wanted; w-- > 0;) {
      if (pairs.base_of[w] < 0) continue;
      target = static_cast<size_t>(pairs.base_of[w]) + 1;
      break;
    }
    const size_t first = block->base, end = block->base + block->length;
    if (target + 1 > first && target <= end) break;
    const auto at = [&](size_t i) { return base.begin() + static_cast<std::ptrdiff_t>(i); };
    if (target < first) {
      std::rotate(at(target), at(first), at(end));
    } else {
      std::rotate(at(first), at(end), at(target));
    }
    moves.push_back(
        {'m', static_cast<int>(first) + 1, static_cast<int>(end), static_cast<int>(target), {}});
    pairs = align(base, wanted, path);
  }
  return moves;
}

/// One step of the pairing in base order: either a hunk or a run with one shift.
struct Step {
  size_t base = 0, num_base = 0, wanted = 0, num_wanted = 0;
  int shift = 0;
  bool is_hunk = false;
};

std::vector<Step> steps_of(const std::vector<Line>& base, const std::vector<Line>& wanted,
                           const Alignment& pairs) {
  std::vector<Step> steps;
  size_t b = 0, w = 0;
  while (b < base.size() || w < wanted.size()) {
    Step step{b, 0, w, 0, 0, false};
    const bool is_pair =
        w < wanted.size() && b < base.size() && pairs.base_of[w] == static_cast<int>(b);
    if (is_pair) {
      step.shift = wanted[w].indent - base[b].indent;
      while (w < wanted.size() && pairs.base_of[w] == static_cast<int>(b) &&
             wanted[w].indent - base[b].indent == step.shift) {
        ++b, ++w;
      }
    } else {
      step.is_hunk = true;
      while (b < base.size() && !pairs.is_kept[b]) ++b;
      while (w < wanted.size() && pairs.base_of[w] < 0) ++w;
    }
    step.num_base = b - step.base;
    step.num_wanted = w - step.wanted;
    steps.push_back(step);
  }
  return steps;
}

std::optional<EdCommand> command_of(const Step& step, const std::vector<Line>& wanted) {
  EdCommand command;
  command.first = static_cast<int>(step.base) + 1;
  command.last = static_cast<int>(step.base + step.num_base);
  if (!step.is_hunk) {
    if (step.shift == 0) return std::nullopt;
    command.verb = step.shift > 0 ? '>' : '<';
    command.target = std::abs(step.shift);
    return command;
  }
  command.verb = step.num_wanted == 0 ? 'd' : step.num_base == 0 ? 'a' : 'c';
  if (command.verb == 'a') command.first = command.last = static_cast<int>(step.base);
  for (size_t i = 0; i < step.num_wanted; ++i)
    command.lines.emplace_back(wanted[step.wanted + i].text);
  return command;
}

std::vector<EdCommand> make_commands(std::string_view base_text, std::string_view wanted_text,
                                     const std::string& path) {
  Interner interner;
  std::vector<Line> base = interner.lines_of(base_text);
  const std::vector<Line> wanted = interner.lines_of(wanted_text);
  Alignment pairs = align(base, wanted, path);
  std::vector<EdCommand> commands = make_moves(base, wanted, path, pairs);
  const std::vector<Step> steps = steps_of(base, wanted, pairs);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (std::optional<EdCommand> command = command_of(*step, wanted))
      commands.push_back(std::move(*command));
  }
  return commands;
}

}  // namespace

FileEdit make_file_edit(const std::string& path, std::optional<std::string_view> base,
                        std::optional<std::string_view> wanted) {
  if (!base && !wanted)
    throw Error(ErrorCode::kUsage, path + ": neither the base nor the wanted tree has this file");
  for (const auto& side : {base, wanted}) {
    if (side && side->find('\0') != std::string_view::npos) {
      throw Error(ErrorCode::kUsage,
                  path + ": a binary file (NUL byte); an edit holds lines of text only");
    }
  }
  FileEdit edit;
  edit.path = path;
  if (base) edit.blob = git_blob_id(*base);
  if (!wanted) return edit;
  edit.result = git_blob_id(*wanted);
  edit.final_newline = wanted->empty() || wanted->back() == '\n';
  edit.commands = make_commands(base.value_or(""), *wanted, path);
  apply_file_edit(edit, base.value_or(""));
  return edit;
}

std::vector<std::string> copied_runs(const FileEdit& edit, std::string_view base) {
  constexpr size_t kShortest = 3;
  Interner interner;
  const std::vector<Line> known = interner.lines_of(base);
  std::vector<std::string> runs, texts;
  for (const EdCommand& command : edit.commands) {
    std::string text;
    for (const std::string& line : command.lines) text += line + "\n";
    texts.push_back(std::move(text));
  }
  for (const std::string& text : texts) {  // the interner keeps views of them
    const std::vector<Line> written = interner.lines_of(text);
    for (size_t w = 0; w < written.size();) {
      size_t longest = 0, where = 0;
      for (size_t b = 0; b < known.size(); ++b) {
        size_t length = 0, words = 0;
        while (b + length < known.size() && w + length < written.size() &&
               known[b + length].body == written[w + length].body) {
          words += known[b + length++].weight > 1;
        }
        if (words >= kShortest && length > longest) longest = length, where = b;
      }
      if (longest > 0) {
        runs.push_back(edit.path + ": " + std::to_string(longest) + " lines as at base line " +
                       std::to_string(where + 1));
      }
      w += std::max<size_t>(longest, 1);
    }
  }
  return runs;
}

}  // namespace patchbench
