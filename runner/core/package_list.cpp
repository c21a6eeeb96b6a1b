#include "core/package_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

#include "core/digest.h"
#include "core/error.h"
#include "core/install_script.h"
#include "core/json.h"
#include "core/lock_file.h"
#include "core/pasted_list.h"
#include "core/project_file.h"
#include "core/requirements_file.h"
#include "core/software_bill.h"
#include "core/split.h"
#include "core/version_range.h"

namespace patchbench {
namespace {

constexpr std::array<std::string_view, 10> kArchives = {
    ".whl", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar", ".zip", ".egg"};

/// The first character that is neither space nor part of a byte order mark; 0 without one.
char first_character(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t\r\n");
  return at == std::string_view::npos ? '\0' : text[at];
}

/// A half of a pair that has no other becomes "?".
std::string utf8_of_utf16(std::string_view text, bool is_big) {
  const auto unit = [&](std::size_t at) -> uint32_t {
    if (at + 1 >= text.size()) return 0;
    const uint32_t first = static_cast<unsigned char>(text[at]),
                   second = static_cast<unsigned char>(text[at + 1]);
    return is_big ? first << 8 | second : second << 8 | first;
  };
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 2) {
    uint32_t code = unit(at);
    const uint32_t low = unit(at + 2);
    if (code >= 0xd800 && code < 0xdc00 && low >= 0xdc00 && low < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      at += 2;
    }
    append_utf8(code >= 0xd800 && code < 0xe000 ? uint32_t{'?'} : code, out);
  }
  return out;
}

/// "[" that begins a JSON array: a line of TOML or of requirements may begin with it, too.
bool is_json_array(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t\r\n");
  if (at == std::string_view::npos || text[at] != '[') return false;
  const char next = first_character(text.substr(at + 1));
  return next == '{' || next == ']';
}

/// The first line that says something is a key of a mapping, or begins a document: requirements
/// have no colon before a space.
bool has_yaml_key(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line[0] == '#') continue;
    if (line == "---" || line.starts_with("%YAML")) return true;
    const std::size_t key = line.find_first_of(": \t#;<>=!@[\"'");
    return key != 0 && key != std::string_view::npos && line[key] == ':' &&
           (key + 1 == line.size() || line[key + 1] == ' ');
  }
  return false;
}

/// XML, not the HTML of a text in an issue.
bool is_markup(std::string_view text) {
  text.remove_prefix(std::min(text.find('<'), text.size()));
  constexpr std::array<std::string_view, 6> kStarts = {"<?",    "<!",    "<bom",
                                                       "<rdf:", "<spdx", "<Document"};
  return std::any_of(kStarts.begin(), kStarts.end(),
                     [&](std::string_view one) { return text.starts_with(one); });
}

/// A table header of a lock, at the start of a line.
bool has_package_table(std::string_view text) {
  for (const std::string_view header : {"[[package]]", "[[packages]]"}) {
    if (text.starts_with(header) || text.find("\n" + std::string(header)) != std::string_view::npos)
      return true;
  }
  return false;
}

}  // namespace

void PackageList::leave_unread(std::string_view what) {
  lists_all = false;
  unread.push_back(printable(what));
}

void PackageList::leave_unnamed(std::string_view place, Listed one) {
  leave_unread(place);
  if (!one.repository.empty()) unnamed.emplace_back(unread.back(), std::move(one));
}

void PackageList::merge(const PackageList& other) {
  for (const auto& [name, versions] : other.packages)
    for (const Listed& one : versions) add(name, one);
  for (const std::string& line : other.unread) leave_unread(line);
  unnamed.insert(unnamed.end(), other.unnamed.begin(), other.unnamed.end());
  num_unpinned += other.num_unpinned;
}

void PackageList::add(std::string_view name, Listed one) {
  if (!is_package_name(name))
    return leave_unread(fmt::format("{}:{}: {}", one.file, one.line, shown(name)));
  one.version = printable(one.version);
  std::vector<Listed>& versions = packages[normalised(name)];
  const auto same = std::find_if(versions.begin(), versions.end(), [&](const Listed& other) {
    return other.version == one.version && other.range == one.range && other.source == one.source &&
           other.commit == one.commit && other.repository == one.repository &&
           other.tag == one.tag && other.roots == one.roots;
  });
  if (same == versions.end()) versions.push_back(std::move(one));
}

std::string unpinned_text(std::size_t num_unpinned) {
  return fmt::format(
      "requirements that are not pinned ({}), and what they bring in; scan the "
      "environment or a lock",
      num_unpinned);
}

std::pair<std::string, std::string> conda_package(std::string_view spec) {
  if (const std::size_t channel = spec.find("::"); channel != std::string_view::npos)
    spec.remove_prefix(channel + 2);
  const std::size_t end = std::min(spec.find_first_of("=<>!~[ "), spec.size());
  std::string version(spec.substr(std::min(spec.find_first_not_of("= ", end), spec.size())));
  version = version.substr(0, version.find('='));
  if (version.find_first_of("<>!~*|,[ $") != std::string::npos) version.clear();
  return {std::string(spec.substr(0, end)), version};
}

std::string normalised(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool is_separator = c == '.' || c == '_' || c == '-';
    if (is_separator && out.ends_with("-")) continue;
    out += is_separator ? '-' : lower(c);
  }
  return out;
}

bool is_package_name(std::string_view name) {
  const auto is_end = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  return !name.empty() && is_end(name.front()) && is_end(name.back()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_end(c) || c == '.' || c == '_' || c == '-'; });
}

bool is_same_version(const std::string& a, const std::string& b) {
  const std::size_t plus_a = std::min(a.find('+'), a.size()),
                    plus_b = std::min(b.find('+'), b.size());
  const std::string public_a = a.substr(0, plus_a), public_b = b.substr(0, plus_b);
  return (public_a == public_b || compare_versions(public_a, public_b) == 0) &&
         normalised(a.substr(plus_a)) == normalised(b.substr(plus_b));
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_coded =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += is_coded ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (is_coded) i += 2;
  }
  return out;
}

std::string kind_of_place(std::string_view place) {
  if (place.starts_with("git+") || place.starts_with("git:")) return "git";
  return place.find("://") == std::string_view::npos ? "folder" : "url";
}

std::string commit_of(std::string_view place) {
  for (std::size_t at = 0; at < place.size(); ++at) {
    if (place[at] != '@' && place[at] != '#' && place[at] != '=') continue;
    const std::string_view word = place.substr(at + 1, 40);
    const bool is_end =
        at + 41 >= place.size() || std::isalnum(static_cast<unsigned char>(place[at + 41])) == 0;
    if (is_end && is_hex(word, 40)) return std::string(word);
  }
  return "";
}

bool is_archive(std::string_view place) {
  place = place.substr(0, place.find_first_of("#?"));
  const std::string name = lower(place.substr(place.rfind('/') + 1));
  return std::any_of(kArchives.begin(), kArchives.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

std::optional<std::pair<std::string, std::string>> package_of_archive(std::string_view place) {
  place = place.substr(0, place.find_first_of("#?"));
  const std::string file = percent_decoded(place.substr(place.rfind('/') + 1));
  if (!is_archive(file)) return std::nullopt;
  if (file.ends_with(".whl")) {
    const std::vector<std::string> parts = split(file.substr(0, file.size() - 4), "-");
    if (parts.size() != 5 && parts.size() != 6) return std::nullopt;
    return std::pair(parts[0], parts[1]);
  }
  // The name of an sdist may hold dashes: the version begins with a digit.
  std::size_t dash = file.find('-');
  while (dash != std::string::npos && std::isdigit(static_cast<unsigned char>(file[dash + 1])) == 0)
    dash = file.find('-', dash + 1);
  if (dash == std::string::npos) return std::nullopt;
  std::string version = file.substr(dash + 1);
  for (const std::string_view end : kArchives) {
    if (version.ends_with(end)) version.resize(version.size() - end.size());
  }
  return std::pair(file.substr(0, dash), version);
}

std::optional<PackageUrl> parse_package_url(std::string_view purl) {
  if (lower(purl.substr(0, 4)) != "pkg:") return std::nullopt;
  std::string_view rest = purl.substr(4);
  rest.remove_prefix(std::min(rest.find_first_not_of('/'), rest.size()));
  rest = rest.substr(0, rest.find('#'));
  const std::size_t question = rest.find('?');
  const std::string qualifiers =
      question == std::string_view::npos ? "" : percent_decoded(rest.substr(question + 1));
  rest = rest.substr(0, question);
  PackageUrl out;
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  out.type = lower(rest.substr(0, slash));
  rest = rest.substr(slash);
  // A version may hold a slash, and the namespace an "@".
  const std::size_t at = rest.rfind('@');
  if (at != std::string_view::npos) out.version = percent_decoded(rest.substr(at + 1));
  std::string_view path = rest.substr(0, at);
  while (path.ends_with('/')) path.remove_suffix(1);
  const std::string name = percent_decoded(path);
  out.name = name.substr(name.rfind('/') + 1);
  if (out.type == "conda") out.source = "conda";
  if (out.type == "github" || out.type == "gitlab" || out.type == "bitbucket") out.source = "git";
  if (out.type != "pypi" && out.source.empty()) out.source = "url";
  if (qualifiers.find("download_url=") != std::string::npos) out.source = "url";
  if (qualifiers.find("vcs_url=") != std::string::npos) {
    out.source = "git";
    out.commit = commit_of(qualifiers);
  }
  return out;
}

std::string text_in_utf8(std::string_view text, const std::string& file) {
  if (text.size() > kMaxInputBytes) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: holds more than {} MiB; name a lock, a requirements file or an "
                            "SBOM of one environment",
                            file, kMaxInputBytes >> 20));
  }
  const bool is_little = text.starts_with("\xff\xfe"), is_big = text.starts_with("\xfe\xff");
  std::string out(text.substr(text.starts_with("\xef\xbb\xbf") ? 3 : 0));
  if (is_little || is_big) out = utf8_of_utf16(text.substr(2), is_big);
  if (out.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kUsage, file +
                                       ": holds zero bytes, so that it is no text in UTF-8; "
                                       "name a lock, a requirements file or an SBOM");
  }
  return out;
}

const std::vector<std::string>& list_kind_names() {
  static const std::vector<std::string> kNames = {
      "json",     "lock",   "pyproject", "setup.cfg", "setup.py",    "conda-list",
      "pip-list", "report", "script",    "yaml",      "requirements"};
  return kNames;
}

ListKind list_kind_named(const std::string& name) {
  const std::vector<std::string>& names = list_kind_names();
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) throw Error(ErrorCode::kInternal, name + " is no kind of list");
  return static_cast<ListKind>(at - names.begin());
}

ListKind list_kind_of(std::string_view text, const std::string& file) {
  const char first = first_character(text);
  if ((first == '<' && is_markup(text)) || text.starts_with("SPDXVersion:")) {
    throw Error(ErrorCode::kUsage,
                file + ": is XML or tag-value text; name the same SBOM as CycloneDX or SPDX JSON");
  }
  if (first == '{' || is_json_array(text)) return ListKind::kJson;
  if (has_package_table(text)) return ListKind::kLock;
  if (is_project(text)) return ListKind::kProject;
  if (is_setup(text)) return ListKind::kSetup;
  if (is_setup_program(text)) return ListKind::kSetupProgram;
  if (is_conda_list(text)) return ListKind::kCondaList;
  if (is_pip_list(text)) return ListKind::kPipList;
  if (is_report(text)) return ListKind::kReport;
  if (is_install_script(text)) return ListKind::kScript;
  return has_yaml_key(text) ? ListKind::kYaml : ListKind::kRequirements;
}

PackageList listed_packages(std::string_view text, ListKind kind, const std::string& file,
                            const ReadIncluded& read_included) {
  switch (kind) {
    case ListKind::kJson:
      return json_packages(text, file);
    case ListKind::kLock:
      return toml_lock_packages(text, file);
    case ListKind::kPipList:
      return pip_list_packages(text, file);
    case ListKind::kCondaList:
      return conda_list_packages(text, file);
    case ListKind::kReport:
      return reported_packages(text, file);
    case ListKind::kProject:
      return project_packages(text, file, read_included);
    case ListKind::kSetup:
      return setup_packages(text, file, read_included);
    case ListKind::kSetupProgram:
      return setup_program_packages(text, file, read_included);
    case ListKind::kScript:
      return installed_packages(text, file, read_included);
    case ListKind::kYaml:
      break;
    case ListKind::kRequirements:
      return required_packages(text, file, read_included);
  }
  throw Error(ErrorCode::kInternal, file + ": YAML has another reader");
}

}  // namespace patchbench
