#include "core/requirements_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/git_place.h"
#include "core/json.h"
#include "core/requirement.h"
#include "core/version_range.h"

namespace patchbench {
namespace {

constexpr std::size_t kMaxFiles = 100;
using Words = std::vector<std::string>;

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

/// The length of a line end at the start of a text, 0 without one. pip splits as Python's
/// str.splitlines does.
std::size_t length_of_line_end(std::string_view text) {
  if (text.starts_with("\r\n")) return 2;
  if (std::string_view("\n\r\v\f\x1c\x1d\x1e").find(text[0]) != std::string_view::npos) return 1;
  if (text.starts_with("\xc2\x85")) return 2;
  return text.starts_with("\xe2\x80\xa8") || text.starts_with("\xe2\x80\xa9") ? 3 : 0;
}

/// A line up to its comment.
std::string_view without_comment(std::string_view line) {
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] == '#' && (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t'))
      return line.substr(0, at);
  }
  return line;
}

/// The words of a shell line without expansions; nullopt where a quote is not closed.
std::optional<Words> shell_words(std::string_view text) {
  Words words;
  bool is_open = false;  // a word has begun
  char quote = '\0';
  for (std::size_t at = 0; at < text.size(); ++at) {
    char c = text[at];
    if (quote == '\0' && (c == ' ' || c == '\t')) {
      is_open = false;
      continue;
    }
    if (!is_open) words.emplace_back();
    is_open = true;
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '"' || c == '\'')) {
      quote = c;
    } else {
      if (c == '\\' && quote != '\'' && at + 1 < text.size()) c = text[++at];
      words.back() += c;
    }
  }
  return quote == '\0' ? std::optional(words) : std::nullopt;
}

/// An option with its value; `at` moves behind them. nullopt where the words there are another
/// option. Short options have their value in the same word, too.
std::optional<std::string> take_option(const Words& words, std::size_t& at,
                                       std::initializer_list<std::string_view> names) {
  const std::string& word = words[at];
  for (const std::string_view name : names) {
    if (!word.starts_with(name)) continue;
    const std::string rest = word.substr(name.size());
    const bool is_short = name.size() == 2;
    if (rest.empty() && at + 1 < words.size()) {
      at += 2;
      return words[at - 1];
    }
    if (rest.empty() || (!is_short && rest[0] != '=')) continue;
    ++at;
    return is_short ? rest : rest.substr(1);
  }
  return std::nullopt;
}

bool take_flag(const Words& words, std::size_t& at) {
  constexpr std::array<std::string_view, 4> kFlags = {"--no-index", "--pre", "--prefer-binary",
                                                      "--require-hashes"};
  if (std::find(kFlags.begin(), kFlags.end(), words[at]) == kFlags.end()) return false;
  ++at;
  return true;
}

/// Whether all words are options of one requirement.
bool are_of_a_requirement(const Words& words) {
  for (std::size_t at = 0; at < words.size();) {
    if (!take_option(words, at,
                     {"--hash", "--config-settings", "--config-setting", "-C", "--global-option",
                      "--install-option"}))
      return false;
  }
  return true;
}

/// The encoding that a comment declares, as pip looks for it: letters and digits in lower case.
std::string declared_encoding(std::string_view line) {
  std::size_t at = line.starts_with("#") ? line.find("coding") : std::string_view::npos;
  while (at != std::string_view::npos && line.substr(at + 6, 1) != ":" &&
         line.substr(at + 6, 1) != "=")
    at = line.find("coding", at + 1);
  std::string name;
  if (at == std::string_view::npos) return name;
  at = std::min(line.find_first_not_of(" \t", at + 7), line.size());
  for (const char c : line.substr(at)) {
    const bool is_part = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (!is_part && c != '-' && c != '_' && c != '.') break;
    if (is_part) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name;
}

/// Whether ASCII has its own bytes in the encoding that one of the first two lines declares.
bool is_ascii_superset(std::string_view text) {
  constexpr std::array<std::string_view, 7> kSupersets = {"utf8",    "ascii", "usascii",   "latin",
                                                          "iso8859", "cp125", "windows125"};
  for (int line = 0; line < 2; ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string name = declared_encoding(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (name.empty()) continue;
    return std::any_of(kSupersets.begin(), kSupersets.end(),
                       [&](std::string_view one) { return name.starts_with(one); });
  }
  return true;
}

class RequirementReader {
 public:
  explicit RequirementReader(const ReadIncluded& read_included) : read_included_(read_included) {
    list_.lists_all = false;
  }

  void read(std::string_view text, const std::string& file) {
    if (!files_.insert(file).second) return;
    if (files_.size() > kMaxFiles)
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: more than {} files include each other", file, kMaxFiles));
    if (!is_ascii_superset(text))
      throw Error(ErrorCode::kUsage, file + ": declares an encoding that is not read; write UTF-8");
    if (!is_utf8(text)) list_.leave_unread(file + ": bytes that are not UTF-8");
    std::string joined;
    int number = 1, first = 1;
    for (std::size_t at = 0, begin = 0; begin < text.size(); ++at) {
      const std::size_t length = at < text.size() ? length_of_line_end(text.substr(at)) : 1;
      if (length == 0) continue;
      if (joined.empty()) first = number;
      joined += without_comment(text.substr(begin, at - begin));
      const bool is_last = at + length >= text.size();
      number += static_cast<int>(
          std::count(text.data() + at, text.data() + std::min(at + length, text.size()), '\n'));
      begin = at + length;
      at = begin - 1;
      if (joined.ends_with("\\") && !is_last) {
        joined.pop_back();
        continue;
      }
      place_ = {.file = file, .line = first};
      read_line(trimmed(joined));
      joined.clear();
    }
  }

  void read(const std::vector<RequirementLine>& lines, const std::string& file) {
    is_recipe_ = true;
    for (const RequirementLine& one : lines) {
      place_ = {.file = file, .line = one.line};
      read_line(trimmed(without_comment(one.text)));
    }
  }

  PackageList found() {
    if (!is_recipe_ && num_strange_ > num_understood_) throw Error(ErrorCode::kUsage, strange_);
    for (auto& [name, versions] : list_.packages) {
      const auto is_open = [](const Listed& one) {
        return one.version.empty() && one.source.empty();
      };
      // A pin without a marker holds for every other line of the package.
      if (is_pinned(name)) std::erase_if(versions, is_open);
      list_.num_unpinned +=
          static_cast<std::size_t>(std::count_if(versions.begin(), versions.end(), is_open));
    }
    return std::move(list_);
  }

 private:
  /// Whether the pins of a package lie in all of its ranges.
  bool is_pinned(const std::string& name) const {
    const auto pins = pins_.find(name);
    const auto ranges = ranges_.find(name);
    if (pins == pins_.end() || ranges == ranges_.end()) return pins != pins_.end();
    return std::all_of(pins->second.begin(), pins->second.end(), [&](const std::string& pin) {
      return std::all_of(
          ranges->second.begin(), ranges->second.end(),
          [&](const std::string& range) { return in_version_range(pin, range) == true; });
    });
  }

  void read_line(const std::string& line) {
    if (line.empty()) return;
    std::size_t options = 0;
    while (options < line.size() &&
           (line[options] != '-' ||
            (options > 0 && line[options - 1] != ' ' && line[options - 1] != '\t')))
      ++options;
    const std::string requirement = trimmed(std::string_view(line).substr(0, options));
    const std::optional<Words> words = shell_words(std::string_view(line).substr(options));
    const bool is_understood = words && (requirement.empty() ? read_options(*words)
                                                             : are_of_a_requirement(*words) &&
                                                                   read_requirement(requirement));
    ++(is_understood ? num_understood_ : num_strange_);
    if (is_understood) return;
    list_.leave_unread(fmt::format("{}:{}: {}", place_.file, place_.line, shown(line)));
    if (num_strange_ == 1)
      strange_ = fmt::format("{}:{}: is no requirement: {}", place_.file, place_.line, shown(line));
  }

  /// A line of options alone.
  bool read_options(const Words& words) {
    for (std::size_t at = 0; at < words.size();) {
      if (const auto other =
              take_option(words, at, {"-r", "--requirement", "-c", "--constraint"})) {
        if (other->find("${") != std::string::npos) return false;
        include(*other);
      } else if (const auto place = take_option(words, at, {"-e", "--editable"})) {
        const auto one = parse_requirement(*place);
        const bool is_named = one && !one->place.empty();
        if (!is_named || !read_requirement(*place)) read_place(*place);
      } else if (!take_flag(words, at) &&
                 !take_option(
                     words, at,
                     {"-i", "--index-url", "--pypi-url", "--extra-index-url", "-f", "--find-links",
                      "--no-binary", "--only-binary", "--trusted-host", "--use-feature"})) {
        return false;
      }
    }
    return true;
  }

  void include(const std::string& other) {
    const Listed place = place_;
    const std::size_t slash = place.file.rfind('/');
    const bool is_absolute = other.starts_with("/") || slash == std::string::npos;
    const std::string path = is_absolute ? other : place.file.substr(0, slash + 1) + other;
    try {
      if (!files_.contains(path)) read(text_in_utf8(read_included_(path), path), path);
    } catch (const Error& error) {
      if (!is_recipe_) throw;
      list_.leave_unread(error.what());
    }
    place_ = place;
  }

  void add(std::string_view name, const std::string& version, const std::string& place,
           const std::string& range = "") {
    Listed one = place_;
    one.version = version;
    if (version.empty() && place.empty()) one.range = range.empty() ? kAnyVersion : range;
    if (!place.empty()) read_origin(place, one);
    list_.add(name, std::move(one));
  }

  static void read_origin(const std::string& place, Listed& one) {
    one.source = kind_of_place(place);
    if (one.source == "git") read_git_place(place, one);
  }

  /// A requirement that is a URL, a folder or an archive: `#egg=` or its file name tells what it
  /// is.
  void read_place(std::string_view text) {
    const std::string place(text);
    const auto archive = package_of_archive(place);
    if (archive) add(archive->first, archive->second, place);
    const std::size_t egg = place.find("egg=", std::min(place.find('#'), place.size()));
    if (egg != std::string::npos) {
      const std::string name = place.substr(egg + 4);
      add(percent_decoded(name.substr(0, name.find_first_of("&["))), "", place);
    } else if (!archive) {
      Listed one = place_;
      read_origin(place, one);
      list_.leave_unnamed(place, std::move(one));
    }
  }

  /// False where the line is not understood.
  bool read_requirement(const std::string& line) {
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view first = std::string_view(line).substr(0, end);
    const auto one = parse_requirement(line);
    // The file name of an archive may pass for a package's name.
    if (one && (!one->place.empty() || !is_archive(first))) {
      const auto archive = package_of_archive(one->place);
      const bool is_same = archive && normalised(archive->first) == normalised(one->name);
      add(one->name, is_same ? archive->second : one->version, one->place, one->range);
      if (archive && !is_same) add(archive->first, archive->second, one->place);
      const std::string name = normalised(one->name);
      if (!one->version.empty() && !one->has_marker) pins_[name].insert(one->version);
      if (one->version.empty() && !one->range.empty()) ranges_[name].insert(one->range);
      return true;
    }
    const std::string rest = trimmed(std::string_view(line).substr(end));
    const bool is_alone =
        rest.empty() || (rest[0] == ';' && is_marker(std::string_view(rest).substr(1)));
    const bool is_place = first.find('/') != std::string_view::npos || first.starts_with(".") ||
                          is_archive(first.substr(0, first.find('[')));
    if (!is_alone || !is_place) return false;
    read_place(first.ends_with("]") && first.find('#') == std::string_view::npos
                   ? first.substr(0, first.rfind('['))
                   : first);
    return true;
  }

  const ReadIncluded& read_included_;
  std::set<std::string> files_;
  std::map<std::string, std::set<std::string>> pins_, ranges_;  ///< by normalised name
  PackageList list_;
  Listed place_;  ///< file and first line of the requirement that is read
  bool is_recipe_ = false;
  std::size_t num_understood_ = 0, num_strange_ = 0;
  std::string strange_;  ///< the message for the first line that was not understood
};

}  // namespace

PackageList required_packages(std::string_view text, const std::string& file,
                              const ReadIncluded& read_included) {
  RequirementReader reader(read_included);
  reader.read(text, file);
  return reader.found();
}

PackageList required_packages(const std::vector<RequirementLine>& lines, const std::string& file,
                              const ReadIncluded& read_included) {
  RequirementReader reader(read_included);
  reader.read(lines, file);
  return reader.found();
}

}  // namespace patchbench
