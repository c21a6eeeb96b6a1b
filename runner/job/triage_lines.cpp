#include "job/triage_lines.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace patchbench::job {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The digits at `at`, at most six: a rank, not a time stamp.
std::string_view digits_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - at > 6 ? std::string_view() : text.substr(at, end - at);
}

/// The digits after a word in a file's name: "rank3", "rank_3", "rank-3".
std::string rank_in_name(const std::string& name) {
  const std::size_t word = name.find("rank");
  if (word == std::string::npos) return "";
  std::size_t at = word + 4;
  if (at < name.size() && (name[at] == '_' || name[at] == '-')) ++at;
  return std::string(digits_at(name, at));
}

}  // namespace

std::string_view rank_of_line(std::string_view line, std::string_view* rest) {
  constexpr std::string_view kWords[] = {"[rank", "[default", ""};
  std::string_view rank;
  if (rest != nullptr) *rest = line;
  if (line.empty() || (line[0] != '[' && !is_digit(line[0]))) return rank;
  for (std::string_view before; before != line;) {
    before = line;
    for (const std::string_view word : kWords) {
      if (!line.starts_with(word)) continue;
      const std::string_view digits = digits_at(line, word.size());
      const std::string_view end = line.substr(std::min(line.size(), word.size() + digits.size()));
      const std::string_view close = word.empty() ? ": " : "]:";
      if (digits.empty() || !end.starts_with(close)) continue;
      // A launcher's prefix counts within a node, torch's own over the job: the inner one stands.
      rank = digits;
      line = end.substr(2);
      break;
    }
    if (!rank.empty() && line.starts_with(' ')) line.remove_prefix(1);
  }
  if (rest != nullptr) *rest = line;
  return rank;
}

std::string rank_of_path(const std::string& path) {
  const std::filesystem::path file(path);
  std::string in_name = rank_in_name(file.filename());
  if (!in_name.empty()) return in_name;
  const std::string folder = file.parent_path().filename();
  const bool is_number =
      !folder.empty() && folder.size() <= 6 && std::all_of(folder.begin(), folder.end(), is_digit);
  return is_number ? folder : "-";
}

std::string_view log_prefix(std::string_view text) {
  // W1122 01:05:44.525000 20632 torch/_dynamo/guards.py:4760], in C++ with a bracket before it.
  constexpr std::string_view kForm = "WDDDD DD:DD:DD.";
  if (text.starts_with('[')) text.remove_prefix(1);
  if (text.size() < kForm.size()) return {};
  for (std::size_t i = 1; i < kForm.size(); ++i) {
    if (kForm[i] == 'D' ? !is_digit(text[i]) : text[i] != kForm[i]) return {};
  }
  if (std::string_view("VDIWEFC").find(text[0]) == std::string_view::npos) return {};
  const std::size_t end = text.substr(0, 300).find("] ");
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end + 1);
}

std::string shape_of(std::string_view line) {
  constexpr std::size_t kLongest = 160;
  std::string_view text;
  rank_of_line(line.substr(0, 4096), &text);
  // A progress bar's earlier states are overwritten on a terminal.
  const std::size_t rewritten = text.rfind('\r');
  if (rewritten != std::string_view::npos && rewritten + 1 < text.size())
    text.remove_prefix(rewritten + 1);
  const std::string_view prefix = log_prefix(text);
  std::string shape;
  if (!prefix.empty()) {
    // Level and source line stay: they name the warning better than its words.
    shape = std::string(1, prefix[0]) + std::string(prefix.substr(prefix.rfind(' ')));
    text.remove_prefix(static_cast<std::size_t>(prefix.end() - text.begin()));
  }
  for (std::size_t i = 0; i < text.size() && shape.size() < kLongest; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool is_in_number = std::isdigit(c) != 0;
    if (is_in_number) {
      // Hexadecimal, decimal and dotted alike, with the letters that a number carries.
      while (i + 1 < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0 ||
              (text[i + 1] == '.' && i + 2 < text.size() && is_digit(text[i + 2]))))
        ++i;
      shape += '#';
    } else {
      shape += c < 0x20 || c >= 0x7f ? '?' : static_cast<char>(c);
    }
  }
  while (!shape.empty() && shape.back() == ' ') shape.pop_back();
  return shape;
}

std::string clean(std::string_view text) {
  std::string out(text.substr(0, 400));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.size() > 400 ? out + "..." : out;
}

}  // namespace patchbench::job
