#include "report/claim_lint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>

#include "core/digest.h"
#include "core/error.h"

namespace patchbench::report {
namespace {

void add_texts(std::vector<Quantity>& out, std::string_view text) {
  for (const Numeral& n : numerals_in(text)) {
    if (n.unreadable.empty()) out.push_back({n.value, n.measurand});
  }
}

Measurand measurand_of_key(std::string_view key) {
  if (key.find("bytes") != key.npos) return Measurand::kBytes;
  if (key.ends_with("_s")) return Measurand::kSeconds;
  return key.find("ratio") != key.npos ? Measurand::kRatio : Measurand::kPlain;
}

void add_number(std::vector<Quantity>& out, std::string_view key, const Json& value) {
  if (value.is_number()) out.push_back({value.get<double>(), measurand_of_key(key)});
}

/// Every number below `value`, told apart by the key it stands under.
void add_all(std::vector<Quantity>& out, std::string_view key, const Json& value) {
  if (value.is_object()) {
    for (const auto& [name, item] : value.items()) add_all(out, name, item);
  } else if (value.is_array()) {
    for (const Json& item : value) add_all(out, key, item);
  } else {
    add_number(out, key, value);
  }
}

void add_observation(std::vector<Quantity>& out, const Observation& o) {
  for (const Measure& m : o.measures) {
    for (const double value : {m.got, m.plain, m.limit}) {
      if (std::isfinite(value)) out.push_back({value, Measurand::kPlain});
    }
  }
  for (const Json* said : {&o.outside, &o.self_reported}) {
    if (!said->is_object()) continue;
    for (const char* key : {"wall_s", "peak_bytes"}) add_number(out, key, said->value(key, Json()));
    add_all(out, "", said->value("numbers", Json()));
    add_number(out, "", said->value("exception", Json::object()).value("cuda_code", Json()));
  }
  add_texts(out, o.reason);
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

/// A fence of three or more ` or ~, at most three spaces in.
struct Fence {
  char mark = '`';
  std::size_t length = 0;
  std::string info;
};
std::optional<Fence> fence_of(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(' ');
  if (begin > 3 || (line[begin] != '`' && line[begin] != '~')) return {};
  Fence fence{line[begin], 0, ""};
  while (begin + fence.length < line.size() && line[begin + fence.length] == fence.mark)
    ++fence.length;
  if (fence.length < 3) return {};
  std::string_view rest = line.substr(begin + fence.length);
  if (fence.mark == '`' && rest.find('`') != rest.npos) return {};
  while (!rest.empty() && std::isspace(static_cast<unsigned char>(rest.front())) != 0)
    rest.remove_prefix(1);
  fence.info = rest.substr(0, rest.find_first_of(" \t\r{"));
  return fence;
}

bool is_code(const Fence& fence) {
  static const std::set<std::string> kLanguages = {
      "sh",   "bash", "console", "python", "py",    "cpp",  "c++",  "c",
      "cuda", "diff", "patch",   "json",   "jsonl", "toml", "yaml", "ini"};
  return kLanguages.contains(fence.info);
}

/// Where a list marker ends: "- ", "3. ", "  * "; 0 if there is none.
std::size_t end_of_marker(std::string_view line) {
  std::size_t i = line.find_first_not_of(" >");
  if (i == line.npos) return 0;
  const std::size_t digits = i;
  while (i < line.size() && line[i] >= '0' && line[i] <= '9') ++i;
  const bool is_numbered =
      i > digits && i - digits <= 9 && i < line.size() && (line[i] == '.' || line[i] == ')');
  const bool is_bullet = i == digits && (line[i] == '-' || line[i] == '*' || line[i] == '+');
  if (!is_numbered && !is_bullet) return 0;
  return i + 1 < line.size() && line[i + 1] == ' ' ? i + 2 : 0;
}

/// A run of lines that share their citations: a paragraph, a list item, a heading, a table row.
struct Block {
  struct Line {
    int number;
    std::string text;
  };
  std::vector<Line> lines;
};

/// Splits a text into blocks; code that is not checked and comments that nobody sees are left out.
class Splitter {
 public:
  std::vector<Block> split(std::string_view text) {
    int number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      take(++number, text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return std::move(blocks_);
  }

 private:
  void take(int number, std::string_view line) {
    if (fence_) {
      const auto closing = fence_of(line);
      if (closing && closing->mark == fence_->mark && closing->length >= fence_->length &&
          closing->info.empty()) {
        fence_.reset();
        is_new_ = true;
      } else if (!is_code(*fence_)) {
        add(number, line, VerdictKey::kAlone);
      }
      return;
    }
    if (is_in_comment_) {
      leave_comment(number, line);
      return;
    }
    fence_ = fence_of(line);
    if (fence_) return;
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin <= 3 && line.substr(begin).starts_with("<!--")) {
      leave_comment(number, line.substr(begin + 4));
      return;
    }
    if (is_blank(line)) {
      is_new_ = true;
      return;
    }
    const std::size_t marker = end_of_marker(line);
    if (marker > 0) is_new_ = true;
    const bool is_alone = line[begin] == '#' || line[begin] == '|';
    std::string shown(line);
    std::fill_n(shown.begin(), marker, ' ');
    add(number, shown, is_alone ? VerdictKey::kAlone : VerdictKey::kFlowing);
  }

  /// A comment ends with the line that holds its "-->"; what stands behind that is seen.
  void leave_comment(int number, std::string_view line) {
    const std::size_t end = line.find("-->");
    is_in_comment_ = end == line.npos;
    if (!is_in_comment_) add(number, line.substr(end + 3), VerdictKey::kAlone);
  }

  enum class VerdictKey { kFlowing, kAlone };
  void add(int number, std::string_view line, VerdictKey place) {
    if (is_new_ || place == VerdictKey::kAlone || blocks_.empty()) blocks_.emplace_back();
    blocks_.back().lines.push_back({number, std::string(line)});
    is_new_ = place == VerdictKey::kAlone;
  }

  std::vector<Block> blocks_;
  std::optional<Fence> fence_;
  bool is_in_comment_ = false, is_new_ = true;
};

struct Citation {
  std::size_t begin, end;  ///< brackets included
  std::vector<std::string> digests;
};

/// The citation whose "[" stands at `begin`: hexadecimal digests of 8 digits or more, parted by
/// commas or spaces, in code spans or not.
std::optional<Citation> citation_at(std::string_view text, std::size_t begin) {
  const std::size_t close = text.find(']', begin);
  if (close == text.npos) return {};
  Citation citation{begin, close + 1, {}};
  std::string word;
  for (std::size_t i = begin + 1; i <= close; ++i) {
    const char c = text[i];
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')) {
      word += c;
      continue;
    }
    if (c != ',' && c != ' ' && c != '`' && c != ']') return {};
    if (word.empty()) continue;
    if (word.size() < 8 || word.size() > 64) return {};
    citation.digests.push_back(std::move(word));
    word.clear();
  }
  if (citation.digests.empty()) return {};
  return citation;
}

/// Words that state a multiple without a digit.
const char* multiple_in(const std::string& text) {
  static constexpr std::array kPhrases = {"twice as ",
                                          "half as ",
                                          "thrice",
                                          "twofold",
                                          "threefold",
                                          "fourfold",
                                          "fivefold",
                                          "tenfold",
                                          "hundredfold",
                                          "doubled ",
                                          "tripled ",
                                          "quadrupled ",
                                          "halved ",
                                          "order of magnitude",
                                          "orders of magnitude",
                                          "double the ",
                                          "half the time",
                                          "half the memory",
                                          "two times ",
                                          "three times as ",
                                          "three times faster",
                                          "ten times ",
                                          "a hundred times "};
  for (const char* phrase : kPhrases) {
    if (text.find(phrase) != text.npos) return phrase;
  }
  return nullptr;
}

std::string nearest_held(const Numeral& numeral, const std::vector<Quantity>& held) {
  const Quantity* best = nullptr;
  for (const Quantity& q : held) {
    if (q.measurand != numeral.measurand) continue;
    if (best == nullptr ||
        std::abs(q.value - numeral.value) < std::abs(best->value - numeral.value))
      best = &q;
  }
  if (best == nullptr) return "";
  const char* unit = best->measurand == Measurand::kBytes     ? " bytes"
                     : best->measurand == Measurand::kSeconds ? " s"
                                                              : "";
  return fmt::format("; nearest there: {:.4g}{}", best->value, unit);
}

class Linter {
 public:
  explicit Linter(const FindRecord& find) : find_(find) {}

  void check(const Block& block) {
    std::vector<Quantity> held;
    std::vector<std::string> cited;
    std::vector<std::string> texts;
    for (const Block::Line& line : block.lines) {
      std::string text = line.text;
      for (std::size_t at = text.find('['); at != text.npos; at = text.find('[', at + 1)) {
        const auto citation = citation_at(text, at);
        if (!citation) continue;
        for (const std::string& digest : citation->digests) cite(line.number, digest, held, cited);
        std::fill(text.begin() + static_cast<std::ptrdiff_t>(citation->begin),
                  text.begin() + static_cast<std::ptrdiff_t>(citation->end), ' ');
      }
      texts.push_back(std::move(text));
    }
    for (std::size_t i = 0; i < texts.size(); ++i)
      check_line(block.lines[i].number, texts[i], held, cited);
  }

  std::vector<ClaimProblem> problems;

 private:
  void cite(int line, const std::string& digest, std::vector<Quantity>& held,
            std::vector<std::string>& cited) {
    try {
      const Record* record = find_(digest);
      if (record == nullptr) {
        problems.push_back({line, "[" + digest + "]",
                            "no such record in reports/evidence or the ledger; patchbench ledger "
                            "list shows them"});
        return;
      }
      for (const Quantity& q : quantities_of(*record)) held.push_back(q);
      cited.push_back(digest.substr(0, 12));
    } catch (const Error& e) {
      problems.push_back({line, "[" + digest + "]", e.what()});
    }
  }

  void check_line(int line, const std::string& text, const std::vector<Quantity>& held,
                  const std::vector<std::string>& cited) {
    for (const Numeral& n : numerals_in(text)) {
      const std::string written = text.substr(n.begin, n.end - n.begin);
      if (!n.unreadable.empty()) {
        problems.push_back({line, written, n.unreadable});
      } else if (!is_held(n, held)) {
        problems.push_back(
            {line, written,
             cited.empty()
                 ? "no record is cited here; put the digest of one that states it in brackets "
                   "behind it, or leave the number out"
                 : fmt::format("not stated by {}{}; cite the record that does, or leave it out",
                               fmt::join(cited, ", "), nearest_held(n, held))});
      }
    }
    if (const char* phrase = multiple_in(text))
      problems.push_back({line, phrase, "a multiple in words: write its number and cite a record"});
  }

  const FindRecord& find_;
};

}  // namespace

std::vector<Quantity> quantities_of(const Record& record) {
  std::vector<Quantity> out;
  const Json& predicate = record.predicate();
  const std::string type = record.type();
  // A device's name has numbers of its own: "NVIDIA H100 80GB HBM3".
  if (const Json context = predicate.value("context", Json()); context.is_object())
    add_texts(out, context.value("machine", Json::object()).value("device", ""));
  if (type == "observation") {
    add_observation(out, observation_of(record));
  } else if (type == "verdict") {
    add_texts(out, predicate.value("why", ""));
    for (const char* key : {"bound_bytes", "measured_bytes"})
      add_number(out, key, predicate.at("question").value(key, Json()));
  } else if (type != "evict" && type != "plan") {
    for (const auto& [key, value] : predicate.items()) {
      if (key != "context") add_all(out, key, value);
    }
  }
  return out;
}

bool is_held(const Numeral& numeral, const std::vector<Quantity>& held) {
  return std::any_of(held.begin(), held.end(), [&](const Quantity& q) {
    if (q.measurand != numeral.measurand) return false;
    const double slack = 1e-9 * std::abs(q.value);
    const double distance = std::abs(q.value - numeral.value);
    if (distance <= slack) return true;
    return numeral.num_digits >= 2 && distance <= numeral.half_unit + slack;
  });
}

std::string claim_rule() {
  return "Every number in a body must be stated by a record that its block cites.\n"
         "  block    a paragraph, a list item, a heading, a table row, one line of a fence\n"
         "           without a language\n"
         "  cites    [3d2887b6b14a]: 8 or more first digits of a record's digest in\n"
         "           brackets, several parted by commas, anywhere in the block\n"
         "  states   the record itself, not what it cites: an observation its errors,\n"
         "           limits, times, peaks and counts; a verdict its bytes and the numbers\n"
         "           of its reason; a window or measurement every number of its body;\n"
         "           each of them its device's name\n"
         "  written  as the record has it, or rounded to two significant digits or more;\n"
         "           KiB, MB, ms, % are converted; bytes, seconds and ratios (3x) are\n"
         "           compared with their like alone\n"
         "No numbers: versions (0.8.0, Triton 3.6), days (2026-01-31), list numbers, words\n"
         "that begin with a letter (sm_90, fp32, H200) and their subscript (grad[0]),\n"
         "hexadecimal ids, #968, cuda:0, file.py:12-34, 1st, 2-D, 0001-name, addresses,\n"
         "HTML comments of whole lines, and fenced blocks that name a language (sh, bash,\n"
         "console, python, cpp, cuda, c, diff, patch, json, toml, yaml, ini).\n"
         "Inline code, other fences, tables, link texts and tags are checked. Digits of\n"
         "other scripts, digits split by markup and multiples in words (tenfold) are\n"
         "refused. Which of a record's numbers is meant is the author's to say: the error\n"
         "and the limit of one case can stand in each other's place unseen.\n";
}

std::vector<ClaimProblem> lint_claims(std::string_view markdown, const FindRecord& find) {
  Linter linter(find);
  for (const Block& block : Splitter().split(markdown)) linter.check(block);
  std::stable_sort(linter.problems.begin(), linter.problems.end(),
                   [](const ClaimProblem& a, const ClaimProblem& b) { return a.line < b.line; });
  return std::move(linter.problems);
}

std::string without_unheld(std::string_view text, const std::vector<Quantity>& held) {
  std::string out;
  std::size_t from = 0;
  for (const Numeral& n : numerals_in(text)) {
    if (n.unreadable.empty() && is_held(n, held)) continue;
    out += std::string(text.substr(from, n.begin - from)) + "…";
    from = n.end;
  }
  return out + std::string(text.substr(from));
}

}  // namespace patchbench::report
