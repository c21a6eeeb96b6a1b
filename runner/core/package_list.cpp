#include "core/package_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/digest.h"
#include "core/error.h"
#include "core/lock_file.h"
#include "core/requirements_file.h"
#include "core/software_bill.h"

namespace patchbench {
namespace {

std::string decoded(std::string_view text) {
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

/// The first character that is neither space nor part of a byte order mark; 0 without one.
char first_character(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t\r\n");
  return at == std::string_view::npos ? '\0' : text[at];
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

void PackageList::add(std::string_view name, Listed one) {
  std::vector<Listed>& versions = packages[normalised(name)];
  const auto is_bare = [](const Listed& other) {
    return other.version.empty() && other.source.empty();
  };
  if (is_bare(one) && !versions.empty()) return;
  std::erase_if(versions, is_bare);
  const auto same = std::find_if(versions.begin(), versions.end(), [&](const Listed& other) {
    return other.version == one.version && other.source == one.source &&
           other.commit == one.commit && other.roots == one.roots;
  });
  if (same == versions.end()) versions.push_back(std::move(one));
}

std::string normalised(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool is_separator = c == '.' || c == '_' || c == '-';
    if (is_separator && out.ends_with("-")) continue;
    out += is_separator ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
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

bool read_purl(std::string_view purl, std::string& name, Listed& one) {
  constexpr std::string_view kPypi = "pkg:pypi/", kConda = "pkg:conda/";
  // The type of a package URL has no case.
  std::string start(purl.substr(0, kConda.size()));
  for (char& c : start) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool is_conda = start.starts_with(kConda);
  if (!is_conda && !start.starts_with(kPypi)) return false;
  std::string_view rest = purl.substr(is_conda ? kConda.size() : kPypi.size());
  rest = rest.substr(0, rest.find('#'));
  const std::size_t question = rest.find('?');
  const std::string qualifiers =
      question == std::string_view::npos ? "" : decoded(rest.substr(question + 1));
  rest = rest.substr(0, question);
  const std::size_t at = rest.find('@');
  name = decoded(rest.substr(0, at));
  if (at != std::string_view::npos) one.version = decoded(rest.substr(at + 1));
  if (is_conda) one.source = "conda";
  if (qualifiers.find("download_url=") != std::string::npos) one.source = "url";
  if (qualifiers.find("vcs_url=") != std::string::npos) {
    one.source = "git";
    one.commit = commit_of(qualifiers);
  }
  return !name.empty();
}

PackageList listed_packages(std::string_view text, const std::string& file,
                            const ReadIncluded& read_included) {
  if (text.size() > kMaxInputBytes) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: holds more than {} MiB; name a lock, a requirements file or an "
                            "SBOM of one environment",
                            file, kMaxInputBytes >> 20));
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (text.find('\0') != std::string_view::npos) {
    throw Error(ErrorCode::kUsage, file +
                                       ": holds zero bytes, so that it is no text in UTF-8; "
                                       "name a lock, a requirements file or an SBOM");
  }
  const char first = first_character(text);
  if (first == '<' || text.starts_with("SPDXVersion:")) {
    throw Error(ErrorCode::kUsage,
                file + ": is XML or tag-value text; name the same SBOM as CycloneDX or SPDX JSON");
  }
  PackageList found = first == '{'              ? json_packages(text, file)
                      : has_package_table(text) ? toml_lock_packages(text, file)
                                                : required_packages(text, file, read_included);
  if (found.packages.empty() && found.unread.empty()) {
    throw Error(ErrorCode::kUsage,
                file +
                    ": names no package; want requirements, a lock (uv, poetry, pdm, pylock, "
                    "Pipfile.lock) or an SBOM (CycloneDX or SPDX JSON)");
  }
  return found;
}

}  // namespace patchbench
