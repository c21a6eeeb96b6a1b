#include "core/requirements_file.h"

#include <fmt/format.h>

#include <cctype>
#include <set>

#include "core/error.h"
#include "core/json.h"

namespace patchbench {
namespace {

constexpr std::size_t kMaxFiles = 100;

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

/// The value of `--word VALUE`, `--word=VALUE`; "" for another line.
std::string option_value(const std::string& line, std::initializer_list<std::string> words) {
  for (const std::string& word : words) {
    if (line.starts_with(word + " ") || line.starts_with(word + "="))
      return trimmed(line.substr(word.size() + 1));
  }
  return "";
}

class RequirementReader {
 public:
  explicit RequirementReader(const ReadIncluded& read_included) : read_included_(read_included) {}

  void read(std::string_view text, const std::string& file) {
    if (!files_.insert(file).second) return;
    if (files_.size() > kMaxFiles)
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: more than {} files include each other", file, kMaxFiles));
    std::string joined;
    int number = 0, first = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = text.substr(at, end - at);
      at = end + 1;
      ++number;
      if (joined.empty()) first = number;
      joined += line.substr(0, line.starts_with("#") ? 0 : line.find(" #"));
      while (joined.ends_with("\r")) joined.pop_back();
      if (joined.ends_with("\\") && at < text.size()) {
        joined.pop_back();
        continue;
      }
      read_line(trimmed(joined), file, first);
      joined.clear();
    }
  }

  PackageList found() {
    std::size_t num_open = 0;
    for (const auto& [name, versions] : list_.packages) {
      for (const Listed& one : versions) num_open += one.version.empty() && one.source.empty();
    }
    if (num_open > 0) {
      list_.lists_all = false;
      list_.unread.push_back(
          fmt::format("requirements that are not pinned ({}), and what they bring in; scan the "
                      "environment or a lock",
                      num_open));
    }
    return std::move(list_);
  }

 private:
  void read_line(const std::string& line, const std::string& file, int number) {
    if (line.empty()) return;
    if (const std::string other = option_value(line, {"-r", "--requirement"}); !other.empty())
      return include(other, file);
    if (const std::string place = option_value(line, {"-e", "--editable"}); !place.empty())
      return read_place(place, file, number);
    if (!line.starts_with("-")) read_requirement(line, file, number);
  }

  void include(const std::string& other, const std::string& file) {
    const std::size_t slash = file.rfind('/');
    const bool is_absolute = other.starts_with("/") || slash == std::string::npos;
    const std::string path = is_absolute ? other : file.substr(0, slash + 1) + other;
    if (!files_.contains(path)) read(read_included_(path), path);
  }

  /// A requirement that is a URL or a folder: only `#egg=` names its package.
  void read_place(const std::string& place, const std::string& file, int number) {
    const std::size_t egg = place.find("egg=");
    if (egg == std::string::npos) {
      list_.unread.push_back(place);
      return;
    }
    const std::string name = place.substr(egg + 4);
    list_.add(
        name.substr(0, name.find_first_of("&[ ;")),
        {.source = kind_of_place(place), .commit = commit_of(place), .file = file, .line = number});
  }

  /// `name[extra]==1.2 ; marker --hash=…`, `name @ URL`, a URL, a folder, or a name alone.
  void read_requirement(const std::string& line, const std::string& file, int number) {
    std::size_t end = 0;
    while (end < line.size() && is_name_char(line[end])) ++end;
    std::string rest = trimmed(std::string_view(line).substr(end));
    const bool is_place =
        !rest.empty() && std::string_view("+:/").find(rest[0]) != std::string::npos;
    if (is_place) return read_place(line, file, number);
    const auto refuse = [&] {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}:{}: is no requirement: {}", file, number, shown(line)));
    };
    if (end == 0) refuse();
    if (rest.starts_with("[")) {
      const std::size_t close = rest.find(']');
      if (close == std::string::npos) refuse();
      rest = trimmed(std::string_view(rest).substr(close + 1));
    }
    if (!rest.empty() && std::string_view("=<>!~;@(-").find(rest[0]) == std::string::npos) refuse();
    Listed one{.file = file, .line = number};
    if (rest.starts_with("==")) {
      rest = trimmed(std::string_view(rest).substr(rest.starts_with("===") ? 3 : 2));
      one.version = rest.substr(0, rest.find_first_of(" ;,\t"));
      if (one.version.find('*') != std::string::npos) one.version.clear();
    } else if (rest.starts_with("@")) {
      const std::string place = trimmed(std::string_view(rest).substr(1));
      one.source = kind_of_place(place);
      one.commit = commit_of(place);
    }
    list_.add(line.substr(0, end), std::move(one));
  }

  const ReadIncluded& read_included_;
  std::set<std::string> files_;
  PackageList list_;
};

}  // namespace

PackageList required_packages(std::string_view text, const std::string& file,
                              const ReadIncluded& read_included) {
  RequirementReader reader(read_included);
  reader.read(text, file);
  return reader.found();
}

}  // namespace patchbench
