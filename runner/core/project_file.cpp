#include "core/project_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/python_tokens.h"
#include "core/requirement.h"
#include "core/requirements_file.h"
#include "core/split.h"
#include "core/toml_text.h"

namespace patchbench {
namespace {

/// Whether a line of the text is one of these, or begins with it.
bool has_line(std::string_view text, std::initializer_list<std::string_view> starts) {
  for (const std::string& line : split(text, "\n")) {
    for (const std::string_view start : starts)
      if (line.starts_with(start)) return true;
  }
  return false;
}

std::string without_edges(std::string_view line) {
  const std::size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
  return std::string(line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin));
}

/// What a string literal without an escape says.
std::string string_value(std::string_view literal) {
  literal.remove_prefix(std::min(literal.find_first_of("\"'"), literal.size()));
  const std::size_t quotes = literal.starts_with("\"\"\"") || literal.starts_with("'''") ? 3 : 1;
  if (literal.size() < 2 * quotes) return "";
  return std::string(literal.substr(quotes, literal.size() - 2 * quotes));
}

/// The version after the part at `part`: "1.2.3", 0 -> "2".
std::string raised(const std::vector<std::string>& parts, std::size_t part) {
  std::string out;
  for (std::size_t at = 0; at < part; ++at) out += parts[at] + ".";
  return out + std::to_string(std::stoi(parts[part]) + 1);
}

/// One comparison as Poetry writes it in PEP 440's words: "^1.2" -> ">=1.2,<2"; nullopt for one
/// that is not understood.
std::optional<std::string> comparison_of_poetry(const std::string& text) {
  if (text == "*" || text.empty()) return "";
  if (text.starts_with("~=") || text.starts_with("=") || text.starts_with("!") ||
      text.starts_with("<") || text.starts_with(">"))
    return text;
  const bool is_caret = text[0] == '^', is_tilde = text[0] == '~';
  const std::string version = is_caret || is_tilde ? split(text.substr(1), " ").front() : text;
  if (!is_caret && !is_tilde) return "==" + version;
  const std::vector<std::string> parts = split(version, ".");
  constexpr std::size_t kMaxDigits = 8;
  for (const std::string& part : parts) {
    if (part.empty() || part.size() > kMaxDigits ||
        part.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
  }
  std::size_t fixed = is_tilde ? std::min<std::size_t>(1, parts.size() - 1) : 0;
  while (is_caret && fixed + 1 < parts.size() && std::stoi(parts[fixed]) == 0) ++fixed;
  return ">=" + version + ",<" + raised(parts, fixed);
}

/// The requirements of a pyproject.toml, at their lines.
class Project {
 public:
  /// `is_pixi`: the document is a pixi.toml, with the tables of Pixi at its top.
  Project(const Json& document, const JsonLines& lines, bool is_pixi)
      : document_(document), lines_(lines), is_pixi_(is_pixi) {}

  std::vector<RequirementLine> read() {
    const Json* sources = at({"tool", "uv", "sources"});
    if (sources != nullptr && sources->is_object())
      for (const auto& [name, source] : sources->items()) sources_[normalised(name)] = source;
    add_array("/project/dependencies", at({"project", "dependencies"}));
    add_groups("/project/optional-dependencies", at({"project", "optional-dependencies"}));
    add_groups("/dependency-groups", at({"dependency-groups"}));
    add_array("/tool/uv/dev-dependencies", at({"tool", "uv", "dev-dependencies"}));
    add_groups("/tool/pdm/dev-dependencies", at({"tool", "pdm", "dev-dependencies"}));
    add_array("/tool/rye/dev-dependencies", at({"tool", "rye", "dev-dependencies"}));
    add_array("/tool/flit/metadata/requires", at({"tool", "flit", "metadata", "requires"}));
    add_groups("/tool/flit/metadata/requires-extra",
               at({"tool", "flit", "metadata", "requires-extra"}));
    add_dynamic();
    add_poetry("/tool/poetry/dependencies", at({"tool", "poetry", "dependencies"}));
    add_poetry("/tool/poetry/dev-dependencies", at({"tool", "poetry", "dev-dependencies"}));
    const Json* groups = at({"tool", "poetry", "group"});
    if (groups != nullptr && groups->is_object())
      for (const auto& [name, group] : groups->items())
        if (group.is_object() && group.contains("dependencies"))
          add_poetry("/tool/poetry/group", &group.at("dependencies"));
    add_hatch();
    if (const Json* pixi = at({"tool", "pixi"})) add_pixi("/tool/pixi", *pixi);
    if (is_pixi_) add_pixi("", document_);
    return std::move(found_);
  }

  /// What conda is asked for, as "name>=1.2".
  std::vector<RequirementLine> conda() { return std::move(conda_); }

 private:
  const Json* at(std::initializer_list<const char*> keys) const {
    const Json* value = &document_;
    for (const char* key : keys) {
      if (!value->is_object() || !value->contains(key)) return nullptr;
      value = &value->at(key);
    }
    return value;
  }

  int line_of(std::string pointer) const {
    while (!pointer.empty()) {
      if (const auto line = lines_.find(pointer); line != lines_.end()) return line->second;
      pointer.resize(pointer.rfind('/'));
    }
    return 0;
  }

  void add_array(const std::string& pointer, const Json* rows) {
    if (rows == nullptr || !rows->is_array()) return;
    for (std::size_t i = 0; i < rows->size(); ++i) {
      // A group that includes another has a table.
      if (!(*rows)[i].is_string()) continue;
      std::string text = (*rows)[i];
      const auto one = parse_requirement(text);
      const auto source = one ? sources_.find(normalised(one->name)) : sources_.end();
      if (source != sources_.end()) text = with_place(one->name, source->second, text);
      found_.push_back({text, line_of(fmt::format("{}/{}", pointer, i))});
    }
  }

  /// Adds a text that is not a requirement, so that the line is unread.
  void add_open(const std::string& pointer, const std::string& text) {
    found_.push_back({text, line_of(pointer)});
  }

  void add_hatch() {
    const Json* environments = at({"tool", "hatch", "envs"});
    if (environments == nullptr || !environments->is_object()) return;
    for (const auto& [name, environment] : environments->items()) {
      if (!environment.is_object()) continue;
      const std::string pointer = "/tool/hatch/envs/" + pointer_segment(name);
      for (const char* key : {"dependencies", "extra-dependencies"})
        if (environment.contains(key)) add_array(pointer + "/" + key, &environment.at(key));
      if (environment.contains("overrides") &&
          environment.at("overrides").dump().find("dependencies") != std::string::npos)
        add_open(pointer, "overrides of a Hatch environment");
    }
  }

  /// setuptools may take the dependencies from files; what another tool computes is not known.
  void add_dynamic() {
    const Json* dynamic = at({"project", "dynamic"});
    if (dynamic == nullptr || !dynamic->is_array()) return;
    for (const char* key : {"dependencies", "optional-dependencies"}) {
      if (std::find(dynamic->begin(), dynamic->end(), key) == dynamic->end()) continue;
      const std::string pointer = fmt::format("/tool/setuptools/dynamic/{}", key);
      const Json* from = at({"tool", "setuptools", "dynamic", key});
      if (from == nullptr || !from->is_object()) {
        add_open("/project/dynamic", fmt::format("dynamic {}, which are not in this file", key));
      } else if (from->contains("file")) {
        add_files(pointer, from->at("file"));
      } else {
        for (const auto& [name, group] : from->items())
          if (group.is_object() && group.contains("file"))
            add_files(pointer + "/" + pointer_segment(name), group.at("file"));
      }
    }
  }

  void add_files(const std::string& pointer, const Json& files) {
    for (const Json& one : files.is_array() ? files : Json::array({files}))
      if (one.is_string()) found_.push_back({"-r " + one.get<std::string>(), line_of(pointer)});
  }

  void add_groups(const std::string& pointer, const Json* groups) {
    if (groups == nullptr || !groups->is_object()) return;
    for (const auto& [name, rows] : groups->items())
      add_array(pointer + "/" + pointer_segment(name), &rows);
  }

  /// Pixi writes the same tables for the project, a feature and a platform.
  void add_pixi(const std::string& pointer, const Json& table) {
    if (!table.is_object()) return;
    for (const auto& [key, value] : table.items()) {
      const std::string inner = pointer + "/" + pointer_segment(key);
      if (key == "pypi-dependencies") add_poetry(inner, &value);
      if (key == "dependencies" || key == "host-dependencies" || key == "build-dependencies")
        add_conda(inner, value);
      if ((key != "feature" && key != "target") || !value.is_object()) continue;
      for (const auto& [name, part] : value.items())
        add_pixi(inner + "/" + pointer_segment(name), part);
    }
  }

  void add_conda(const std::string& pointer, const Json& table) {
    if (!table.is_object()) return;
    for (const auto& [name, value] : table.items()) {
      const Json version = value.is_object() ? value.value("version", Json()) : value;
      const std::string text = version.is_string() ? version.get<std::string>() : "";
      const bool is_bare = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
      conda_.push_back({name + (is_bare ? "=" : "") + (text == "*" ? "" : text),
                        line_of(pointer + "/" + pointer_segment(name))});
    }
  }

  /// Poetry: name -> "^1.2", a table with version or git, or several of them.
  void add_poetry(const std::string& pointer, const Json* table) {
    if (table == nullptr || !table->is_object()) return;
    for (const auto& [name, value] : table->items()) {
      if (name == "python") continue;
      const int line = line_of(pointer + "/" + pointer_segment(name));
      for (const Json& one : value.is_array() ? value : Json::array({value}))
        found_.push_back({poetry_text(name, one), line});
    }
  }

  static std::string poetry_text(const std::string& name, const Json& value) {
    const Json version = value.is_object() ? value.value("version", Json()) : value;
    std::string text = name;
    if (version.is_string()) {
      std::string range;
      for (const std::string& part : split(version.get<std::string>(), ",")) {
        const auto one = comparison_of_poetry(part);
        // "||" and the like: no requirement, so that the line is unread.
        if (!one) return name + " " + version.get<std::string>();
        if (!one->empty()) range += (range.empty() ? "" : ",") + *one;
      }
      text += range;
    }
    return value.is_object() ? with_place(name, value, text) : text;
  }

  /// `text` where the table names no place, else the requirement with it.
  static std::string with_place(const std::string& name, const Json& table,
                                const std::string& text) {
    const Json& source = table.is_array() && !table.empty() ? table.front() : table;
    const auto word = [&](const char* key) {
      const Json value = source.is_object() ? source.value(key, Json()) : Json();
      return value.is_string() ? value.get<std::string>() : "";
    };
    const std::string commit = word("rev").empty() ? word("tag") : word("rev");
    const std::string folder = word("subdirectory");
    if (!word("git").empty())
      return name + " @ git+" + word("git") + (commit.empty() ? "" : "@" + commit) +
             (folder.empty() ? "" : "#subdirectory=" + folder);
    if (!word("url").empty()) return name + " @ " + word("url");
    if (!word("path").empty()) return name + " @ file:" + word("path");
    return text;
  }

  const Json& document_;
  const JsonLines& lines_;
  bool is_pixi_;
  std::map<std::string, Json> sources_;
  std::vector<RequirementLine> found_, conda_;
};

/// A pixi.toml: its [workspace] names channels, and no other project file has such a line.
bool is_pixi(std::string_view text) {
  return has_line(text, {"channels = [", "channels=[", "[pypi-dependencies]"});
}

}  // namespace

bool is_project(std::string_view text) {
  return is_pixi(text) || has_line(text, {"[project]", "[project.", "[build-system]", "[tool.",
                                          "[dependency-groups]"});
}

PackageList project_packages(std::string_view text, const std::string& file,
                             const ReadIncluded& read_included) {
  JsonLines lines;
  const Json document = parse_toml(text, file, &lines);
  Project project(document, lines, is_pixi(text));
  PackageList list = required_packages(project.read(), file, read_included);
  for (const RequirementLine& one : project.conda()) {
    const auto [name, version] = conda_package(one.text);
    list.num_unpinned += version.empty() ? 1 : 0;
    list.add(name, {.version = version, .source = "conda", .file = file, .line = one.line});
  }
  if (text.find("[tool.kernels.dependencies]") != std::string_view::npos)
    list.leave_unread(file + ": kernels of the Hub, which are not read; one may be Liger's");
  return list;
}

bool is_setup(std::string_view text) {
  if (has_line(text, {"[metadata]", "[options]", "[options.", "[bdist_wheel]"})) return true;
  // The settings of other tools alone: no requirement begins with a bracket.
  for (const std::string& whole : split(text, "\n")) {
    const std::string line = without_edges(whole);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    return line.starts_with("[") && !line.starts_with("[[") && line.ends_with("]");
  }
  return false;
}

/// A value of install_requires, as setuptools takes it: a requirement, several behind semicolons,
/// or "file:" and files.
void add_setup_value(const std::string& value, int line, std::vector<RequirementLine>& found) {
  constexpr std::string_view kFile = "file:";
  if (value.starts_with(kFile)) {
    for (const std::string& one : split(value.substr(kFile.size()), ","))
      found.push_back({"-r " + one, line});
    return;
  }
  if (parse_requirement(value) || value.find(';') == std::string::npos)
    return found.push_back({value, line});
  for (const std::string& one : split(value, ";")) found.push_back({one, line});
}

PackageList setup_packages(std::string_view text, const std::string& file,
                           const ReadIncluded& read_included) {
  std::vector<RequirementLine> found;
  std::string section, key;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::string words = without_edges(line);
    if (words.empty() || words[0] == '#' || words[0] == ';') continue;
    const bool is_more = line[0] == ' ' || line[0] == '\t';
    std::string value = words;
    if (!is_more && words[0] == '[') {
      section = words;
      key.clear();
      continue;
    }
    if (!is_more) {
      const std::size_t sign = words.find_first_of("=:");
      key = normalised(without_edges(words.substr(0, sign)));
      value = sign == std::string::npos ? "" : without_edges(words.substr(sign + 1));
    }
    const bool is_asked =
        section == "[options.extras_require]" ||
        (section == "[options]" &&
         (key == "install-requires" || key == "setup-requires" || key == "tests-require"));
    if (is_asked && !value.empty()) add_setup_value(value, number, found);
  }
  return required_packages(found, file, read_included);
}

bool is_setup_program(std::string_view text) {
  return text.find("setup(") != std::string_view::npos &&
         (text.find("setuptools") != std::string_view::npos ||
          text.find("distutils") != std::string_view::npos);
}

PackageList setup_program_packages(std::string_view text, const std::string& file,
                                   const ReadIncluded& read_included) {
  const PythonTokens source = python_tokens(text, file);
  std::vector<RequirementLine> found;
  bool is_named = false, names_any = false;  // the assignment that is read is of requirements
  int depth = 0;
  for (const PythonToken& token : source.tokens) {
    const std::string_view word = source.of(token);
    if (token.kind == PythonTokenKind::kOperator) {
      depth += word == "[" || word == "(" || word == "{" ? 1 : 0;
      depth -= word == "]" || word == ")" || word == "}" ? 1 : 0;
      // The next keyword of the call, or the end of the list.
      if (word == "]" || word == "}") is_named = is_named && depth > 1;
    } else if (token.kind == PythonTokenKind::kName) {
      const bool is_list = word.find("require") != std::string_view::npos ||
                           word.find("REQUIRE") != std::string_view::npos ||
                           word.find("extras") != std::string_view::npos;
      is_named |= is_list;
      names_any |= is_list;
    } else if (token.kind == PythonTokenKind::kString) {
      const std::string value = string_value(word);
      const auto one = parse_requirement(value);
      const bool has_version = one && (!one->version.empty() || !one->range.empty());
      if (one && (has_version || is_named))
        found.push_back({value, static_cast<int>(source.line_of(token.begin))});
    }
  }
  PackageList list = required_packages(found, file, read_included);
  if (names_any) list.leave_unread(file + ": what this program computes");
  return list;
}

}  // namespace patchbench
