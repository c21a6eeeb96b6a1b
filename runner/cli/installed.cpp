#include "cli/installed.h"

#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/file_text.h"
#include "core/json.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

/// Name and version of one METADATA: its first lines, up to the empty one.
void read_metadata(const fs::path& file, Installed& found) {
  std::ifstream in(file);
  std::string line, name, version;
  while (std::getline(in, line) && !trimmed(line).empty()) {
    if (line.starts_with("Name:")) name = trimmed(line.substr(5));
    if (line.starts_with("Version:")) version = trimmed(line.substr(8));
  }
  if (!name.empty()) found.emplace(normalised(name), version);
}

/// lib/python3*/{site,dist-packages} below a prefix.
std::set<fs::path> package_folders(const fs::path& prefix) {
  std::set<fs::path> folders;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    std::error_code none;
    for (const auto& python : fs::directory_iterator(prefix / lib, none)) {
      if (!python.path().filename().string().starts_with("python3")) continue;
      for (const char* kind : {"site-packages", "dist-packages"}) {
        if (fs::is_directory(python.path() / kind, none))
          folders.insert(fs::canonical(python.path() / kind));
      }
    }
  }
  return folders;
}

/// One line of a requirements file: `name[extra]==1.2 ; marker --hash=…`, or a name without a
/// version.
void read_requirement(const std::string& line, Installed& found) {
  size_t end = 0;
  while (end < line.size() && is_name_char(line[end])) ++end;
  if (end == 0) return;
  std::string rest = trimmed(line.substr(end));
  if (rest.starts_with("["))
    rest = trimmed(rest.substr(std::min(rest.find(']'), rest.size() - 1) + 1));
  std::string version;
  if (rest.starts_with("==")) {
    rest = trimmed(rest.substr(rest.starts_with("===") ? 3 : 2));
    version = rest.substr(0, rest.find_first_of(" ;,\t"));
    if (version.find('*') != std::string::npos) version.clear();
  }
  found[normalised(line.substr(0, end))] = version;
}

void read_requirements(const fs::path& file, Installed& found, std::set<fs::path>& read) {
  if (!read.insert(fs::weakly_canonical(file)).second) return;
  std::istringstream in(read_file(file));
  std::string line, joined;
  while (std::getline(in, line)) {
    joined += line.substr(0, line.starts_with("#") ? 0 : line.find(" #"));
    if (joined.ends_with("\\")) {
      joined.pop_back();
      continue;
    }
    const std::string text = trimmed(joined);
    joined.clear();
    for (const std::string word : {"-r", "--requirement"}) {
      if (text.starts_with(word + " ") || text.starts_with(word + "="))
        read_requirements(file.parent_path() / trimmed(text.substr(word.size() + 1)), found, read);
    }
    if (!text.starts_with("-")) read_requirement(text, found);
  }
}

/// The value of `key = "value"`, "" for another line.
std::string toml_string(const std::string& line, std::string_view key) {
  const size_t equals = line.find('=');
  if (equals == std::string::npos || trimmed(line.substr(0, equals)) != key) return "";
  const std::string value = trimmed(line.substr(equals + 1));
  const bool is_quoted = value.size() > 1 && (value[0] == '"' || value[0] == '\'');
  return is_quoted ? value.substr(1, value.find(value[0], 1) - 1) : "";
}

Installed toml_packages(const std::string& text) {
  Installed found;
  std::istringstream in(text);
  std::string line, name;
  bool is_package = false;
  while (std::getline(in, line)) {
    line = trimmed(line);
    if (line.starts_with("[")) {
      is_package = line == "[[package]]" || line == "[[packages]]";
      name.clear();
    }
    if (!is_package) continue;
    if (const std::string value = toml_string(line, "name"); !value.empty())
      found.emplace(name = normalised(value), "");
    if (const std::string value = toml_string(line, "version"); !value.empty() && !name.empty())
      found[name] = value;
  }
  return found;
}

Installed pipfile_packages(const std::string& text, const fs::path& file) {
  const Json document = Json::parse(text, nullptr, false);
  if (!document.is_object()) throw Error(ErrorCode::kUsage, file.string() + ": is no JSON object");
  Installed found;
  for (const char* group : {"default", "develop"}) {
    const Json packages = document.value(group, Json::object());
    for (const auto& [name, one] : packages.items()) {
      const std::string version = one.is_object() ? one.value("version", "") : "";
      found[normalised(name)] = version.starts_with("==") ? version.substr(2) : "";
    }
  }
  return found;
}

Installed named(Installed found, const fs::path& file) {
  if (found.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: names no package; want requirements, a lock of [[package]] tables "
                            "(uv, poetry, pdm, pylock) or a Pipfile.lock",
                            file.string()));
  }
  return found;
}

}  // namespace

std::string normalised(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool is_separator = c == '.' || c == '_' || c == '-';
    if (is_separator && out.ends_with("-")) continue;
    out += is_separator ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

Installed installed_in(const fs::path& python) {
  const fs::path prefix =
      fs::is_directory(python) ? python : fs::absolute(python).parent_path().parent_path();
  const std::set<fs::path> folders =
      fs::exists(python) ? package_folders(prefix) : std::set<fs::path>{};
  if (folders.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--python {}: no lib/python3*/site-packages belongs to it; name a venv "
                            "or the interpreter in its bin folder",
                            python.string()));
  }
  Installed found;
  for (const fs::path& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".dist-info") read_metadata(entry.path() / "METADATA", found);
    }
  }
  return found;
}

Installed locked_in(const fs::path& lock) {
  const std::string text = read_file(lock);
  if (text.find("[[package") != std::string::npos) return named(toml_packages(text), lock);
  if (trimmed(text).starts_with("{")) return named(pipfile_packages(text, lock), lock);
  return required_in(lock);
}

Installed required_in(const fs::path& requirements) {
  Installed found;
  std::set<fs::path> read;
  read_requirements(requirements, found, read);
  return named(found, requirements);
}

}  // namespace patchbench::cli
