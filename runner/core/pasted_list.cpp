#include "core/pasted_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/split.h"

namespace patchbench {
namespace {

constexpr std::string_view kSpaces = " \t\r";
using Words = std::vector<std::string>;

struct Line {
  std::string text;  ///< without spaces at its end
  int number = 0;
};

/// The lines of a text, without the marks of a quotation; a fence and a prompt's command are blank
/// ones.
std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    line = line.substr(0, line.find_last_not_of(kSpaces) + 1);
    while (line.starts_with(">")) line.remove_prefix(line.starts_with("> ") ? 2 : 1);
    const bool is_blank =
        line.starts_with("```") || line.starts_with("$ ") || line.starts_with("(");
    lines.push_back({std::string(is_blank ? "" : line), number});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Words words_of(std::string_view text) {
  Words words;
  for (std::size_t at = text.find_first_not_of(kSpaces); at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

/// "1.2", "v1.2".
bool is_version(std::string_view text) {
  if (text.starts_with("v") || text.starts_with("V")) text.remove_prefix(1);
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
}

/// Name and version, and what may follow.
bool is_row(const Words& words) {
  return words.size() >= 2 && is_package_name(words[0]) && is_version(words[1]);
}

bool is_pip_head(const Line& line) {
  const Words words = words_of(line.text);
  return words.size() >= 2 && words[0] == "Package" && words[1] == "Version";
}

bool is_rule(const Line& line) {
  return !line.text.empty() && line.text.find_first_not_of("- ") == std::string::npos;
}

/// Where the rows of pip's table begin: the rule under its head, or a rule of several columns over
/// a row, whose head was not copied.
bool is_pip_table(const std::vector<Line>& lines, std::size_t at) {
  if (!is_rule(lines[at])) return false;
  if (at > 0 && is_pip_head(lines[at - 1])) return true;
  return lines[at].text.find("- -") != std::string::npos && at + 1 < lines.size() &&
         is_row(words_of(lines[at + 1].text));
}

/// "py311_0", "pypi_0".
bool is_build(const std::string& word) {
  return word.find('_') != std::string::npos && word.find('/') == std::string::npos &&
         std::isdigit(static_cast<unsigned char>(word.back())) != 0;
}

/// "name=version=build", as `conda list --export` writes it, or "name=version".
bool is_exported(const std::string& line) {
  const std::vector<std::string> parts = split(line, "=");
  return (parts.size() == 2 || (parts.size() == 3 && !parts[2].empty())) &&
         is_package_name(parts[0]) && is_version(parts[1]);
}

constexpr std::string_view kExportHead = "# $ conda create --name";

/// The line over conda's rows; mamba's has no "#".
bool is_conda_head(const std::string& line) {
  if (line.starts_with("# packages in environment at") || line == "@EXPLICIT" ||
      line.starts_with(kExportHead))
    return true;
  Words words = words_of(line);
  if (!words.empty() && words[0] == "#") words.erase(words.begin());
  return words.size() >= 3 && words[0] == "Name" && words[1] == "Version" && words[2] == "Build";
}

/// How reports name what an index has under another name.
std::string package_named(std::string_view name) {
  static const std::map<std::string, std::string> kNames = {
      {"pytorch", "torch"},
      {"hf-hub", "huggingface-hub"},
      {"transformerengine", "transformer-engine"}};
  std::string package;
  for (const std::string& word : words_of(name)) package += (package.empty() ? "" : "-") + word;
  package = normalised(package);
  const auto known = kNames.find(package);
  return known == kNames.end() ? package : known->second;
}

/// "not installed", "None", "N/A".
bool is_absent(const std::string& value) {
  const std::string word = normalised(value);
  return word == "not" || word == "none" || word == "n/a" || word == "na" || word == "no";
}

struct Reported {
  std::string name, version, source;  ///< source as of Listed
};

/// "- `transformers` version: 4.46.1", "PyTorch version (GPU?): 2.4.0 (True)"; nullopt for another
/// line, and for what is not installed. The version of another value ("main") is not known: "".
std::optional<Reported> reported_version(std::string_view line) {
  std::string text;
  for (const char c : line)
    if (c != '`' && c != '*') text += c;
  const std::size_t first = text.find_first_not_of(" \t-");
  if (first == std::string::npos) return std::nullopt;
  const std::size_t word = text.find(" version", first), colon = text.find(':', first);
  if (word == std::string::npos || colon == std::string::npos || word > colon) return std::nullopt;
  // Between the word and the colon nothing but brackets.
  const Words between = words_of(text.substr(word + 8, colon - word - 8));
  if (!between.empty() && (between.front().front() != '(' || between.back().back() != ')'))
    return std::nullopt;
  const Words value = words_of(text.substr(colon + 1));
  const std::string name = package_named(text.substr(first, word - first));
  if (value.empty() || !is_package_name(name) || is_absent(value[0])) return std::nullopt;
  return Reported{.name = name, .version = is_version(value[0]) ? value[0] : "", .source = ""};
}

/// ds_report's "deepspeed info ................... 0.14.4, unknown, unknown".
std::optional<Reported> dotted_version(std::string_view line) {
  const std::size_t dots = line.find(" ....");
  if (dots == std::string_view::npos) return std::nullopt;
  const Words name = words_of(line.substr(0, dots));
  const std::string_view rest =
      line.substr(std::min(line.find_first_not_of('.', dots + 1), line.size()));
  const std::vector<std::string> values = split(rest, ",");
  const bool is_named = name.size() == 2 && (name[1] == "version" || name[1] == "info");
  if (!is_named || !is_package_name(name[0]) || !is_version(values[0])) return std::nullopt;
  return Reported{.name = package_named(name[0]),
                  .version = values[0],
                  .source = values.size() > 1 && values[1] != "unknown" ? "git" : ""};
}

/// collect_env's "[pip3] torch==2.4.0" and "[conda] numpy  1.26.4  py311_0  conda-forge".
std::optional<Reported> bracketed_version(std::string_view line) {
  if (line.starts_with("[pip")) {
    const std::size_t close = line.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    const std::vector<std::string> parts = split(line.substr(close + 1), "==");
    if (parts.size() != 2 || !is_package_name(parts[0]) || !is_version(parts[1]))
      return std::nullopt;
    return Reported{.name = parts[0], .version = parts[1], .source = ""};
  }
  if (!line.starts_with("[conda]")) return std::nullopt;
  const Words words = words_of(line.substr(7));
  if (!is_row(words)) return std::nullopt;
  return Reported{.name = words[0],
                  .version = words[1],
                  .source = words.size() >= 4 && words[3] == "pypi" ? "" : "conda"};
}

std::optional<Reported> report_line(const std::string& line) {
  std::optional<Reported> found = bracketed_version(line);
  if (!found) found = dotted_version(line);
  return found ? found : reported_version(line);
}

PackageList open_list() {
  PackageList list;
  list.lists_all = false;
  return list;
}

/// A text of any kind may have one such line.
constexpr int kReportLines = 2;

/// What a line between the tables of a text reports.
void add_reported(const Line& line, const std::string& file, PackageList& list) {
  const std::optional<Reported> one = report_line(line.text);
  // The interpreter is none of an index's packages.
  if (!one || one->name == "python") return;
  list.add(one->name,
           {.version = one->version, .source = one->source, .file = file, .line = line.number});
}

/// A row of `conda list`, an export or an explicit list; false for another line.
bool add_conda_row(const Line& line, const std::string& file, PackageList& list) {
  Listed one{.source = "conda", .file = file, .line = line.number};
  const Words words = words_of(line.text);
  if (is_of_conda(words[0])) return true;
  if (words[0].find("://") != std::string::npos) {
    const auto of_url = package_of_conda_url(words[0]);
    if (!of_url) return false;
    one.version = of_url->second;
    if (!is_of_conda(of_url->first)) list.add(of_url->first, one);
  } else if (is_exported(line.text)) {
    const std::vector<std::string> parts = split(line.text, "=");
    one.version = parts[1];
    if (parts.size() == 3 && parts[2].starts_with("pypi")) one.source.clear();
    list.add(parts[0], one);
  } else if (is_row(words)) {
    one.version = words[1];
    if (words.back() == "pypi" || words.back() == "<pip>") one.source.clear();
    list.add(words[0], one);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool is_pip_list(std::string_view text) {
  const std::vector<Line> lines = lines_of(text);
  for (std::size_t at = 0; at < lines.size(); ++at) {
    if (is_pip_table(lines, at)) return true;
  }
  bool is_any = false;
  for (const Line& line : lines) {
    if (line.text.empty()) continue;
    if (!is_row(words_of(line.text))) return false;
    is_any = true;
  }
  return is_any;
}

PackageList pip_list_packages(std::string_view text, const std::string& file) {
  const std::vector<Line> lines = lines_of(text);
  PackageList list = open_list();
  std::size_t place = std::string::npos;
  bool has_table = false, is_behind = false;  // a rule is over its rows; behind a blank line of it
  for (std::size_t at = 0; at < lines.size(); ++at)
    has_table = has_table || is_pip_table(lines, at);
  bool is_open = !has_table;
  for (std::size_t at = 0; at < lines.size(); ++at) {
    const Line& line = lines[at];
    if (is_pip_head(line)) place = line.text.find("Editable project location");
    if (is_pip_table(lines, at)) {
      is_open = true;
      is_behind = false;
    }
    is_behind = is_behind || (has_table && is_open && line.text.empty());
    if (line.text.empty() || is_rule(line) || is_pip_head(line)) continue;
    const Words words = words_of(line.text);
    // Behind a blank line a row goes on, and anything else is a text.
    if (!is_open || (is_behind && (!is_row(words) || words.size() > 2))) {
      add_reported(line, file, list);
    } else if (!is_row(words)) {
      list.leave_unread(fmt::format("{}:{}: {}", file, line.number, shown(line.text)));
    } else {
      const bool is_editable =
          words.size() > 2 && place < line.text.size() && line.text[place] != ' ';
      list.add(words[0], {.version = words[1],
                          .source = is_editable ? "folder" : "",
                          .file = file,
                          .line = line.number});
    }
  }
  return list;
}

std::optional<std::pair<std::string, std::string>> package_of_conda_url(std::string_view url) {
  url = url.substr(0, url.find('#'));
  std::string_view file = url.substr(url.rfind('/') + 1);
  const std::size_t build = file.rfind('-');
  if (build == std::string_view::npos || build == 0) return std::nullopt;
  const std::size_t version = file.rfind('-', build - 1);
  if (version == std::string_view::npos) return std::nullopt;
  return std::pair(std::string(file.substr(0, version)),
                   std::string(file.substr(version + 1, build - version - 1)));
}

bool is_of_conda(std::string_view name) { return name.starts_with("_"); }

bool is_conda_list(std::string_view text) {
  const std::vector<Line> lines = lines_of(text);
  if (std::any_of(lines.begin(), lines.end(),
                  [](const Line& line) { return is_conda_head(line.text); }))
    return true;
  // Rows without a head: each an export's, or each with a third column, a build in one at least.
  bool are_exported = true, are_rows = true, is_any = false, has_build = false;
  for (const Line& line : lines) {
    const Words words = words_of(line.text);
    if (words.empty() || words[0].starts_with("#") || is_of_conda(words[0])) continue;
    is_any = true;
    are_exported = are_exported && split(line.text, "=").size() == 3 && is_exported(line.text);
    are_rows = are_rows && is_row(words) && words.size() >= 3;
    has_build = has_build || (are_rows && is_build(words[2]));
  }
  return is_any && (are_exported || (are_rows && has_build));
}

PackageList conda_list_packages(std::string_view text, const std::string& file) {
  PackageList list = open_list();
  const std::vector<Line> lines = lines_of(text);
  const auto is_head = [](const Line& line) { return is_conda_head(line.text); };
  bool is_open = std::none_of(lines.begin(), lines.end(), is_head), is_behind = false;
  for (const Line& line : lines) {
    if (is_head(line)) {
      is_open = true;
      is_behind = false;
      continue;
    }
    const Words words = words_of(line.text);
    is_behind = is_behind || (is_open && words.empty() && !list.packages.empty());
    // mamba draws a line under its head.
    if (words.empty() || words[0].starts_with("#") || words[0].starts_with("\xe2\x94\x80"))
      continue;
    const bool is_text =
        !is_open || (is_behind && !is_exported(line.text) && (!is_row(words) || words.size() < 3));
    if (is_text)
      add_reported(line, file, list);
    else if (!add_conda_row(line, file, list))
      list.leave_unread(fmt::format("{}:{}: {}", file, line.number, shown(line.text)));
  }
  return list;
}

bool is_report(std::string_view text) {
  int num_found = 0;
  for (const Line& line : lines_of(text)) {
    const std::optional<Reported> one = report_line(line.text);
    num_found += one && !one->version.empty();
  }
  return num_found >= kReportLines;
}

PackageList reported_packages(std::string_view text, const std::string& file) {
  PackageList list = open_list();
  for (const Line& line : lines_of(text)) add_reported(line, file, list);
  return list;
}

}  // namespace patchbench
