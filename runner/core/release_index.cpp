#include "core/release_index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "core/digest.h"
#include "core/edit.h"
#include "core/error.h"
#include "core/observation.h"
#include "core/split.h"

namespace patchbench {
namespace {

using Kind = IndexFileName::Kind;
using Key = std::vector<int>;

constexpr int kPythonMinor = 11;  // CPython 3.11 of the base image (env/images/bookworm)
constexpr std::size_t kMaxDigits = 9, kNumParts = 6, kMaxKinds = 3;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Takes a number from the start of `text`; nullopt without one, or if it does not fit an int.
std::optional<int> take_digits(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  if (length == 0 || length > kMaxDigits) return std::nullopt;
  const int number = std::stoi(std::string(text.substr(0, length)));
  text.remove_prefix(length);
  return number;
}

/// Takes ".post1", "-post1", "post", "-1" and their like: 1 + the number, 0 if `text` is empty,
/// nullopt for anything else.
std::optional<int> take_post(std::string_view text) {
  if (text.empty()) return 0;
  const bool has_separator = text[0] == '.' || text[0] == '-' || text[0] == '_';
  const bool is_dash = text[0] == '-';
  if (has_separator) text.remove_prefix(1);
  const bool is_named =
      take_prefix(text, "post") || take_prefix(text, "rev") || take_prefix(text, "r");
  if (!is_named && !is_dash) return std::nullopt;
  if (is_named && text.empty()) return 1;
  if (is_named && (text[0] == '.' || text[0] == '-' || text[0] == '_')) text.remove_prefix(1);
  const std::optional<int> number = take_digits(text);
  if (!number || !text.empty()) return std::nullopt;
  return 1 + *number;
}

/// The name of a project as PEP 503 compares it.
std::string normalized(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool is_separator = c == '-' || c == '_' || c == '.';
    if (is_separator && out.ends_with('-')) continue;
    out += is_separator ? '-' : lower(c);
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at; (at = text.find(separator)) != std::string_view::npos;) {
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  parts.emplace_back(text);
  return parts;
}

bool has_part(const std::string& tag, std::string_view wanted) {
  const std::vector<std::string> parts = split(tag, '.');
  return std::find(parts.begin(), parts.end(), wanted) != parts.end();
}

bool is_x86_64_linux(const std::string& platform) {
  const std::vector<std::string> parts = split(platform, '.');
  return std::any_of(parts.begin(), parts.end(), [](const std::string& part) {
    return part.ends_with("_x86_64") && (part.starts_with("manylinux") || part == "linux_x86_64");
  });
}

/// Whether the interpreter of the base image loads a platform wheel of these tags.
bool is_for_base_python(const IndexFileName& file) {
  for (const std::string& tag : split(file.python, '.')) {
    std::string_view text = tag;
    if (!take_prefix(text, "cp3") && !take_prefix(text, "py3")) continue;
    const int minor = text.empty() ? 0 : take_digits(text).value_or(kPythonMinor + 1);
    const bool is_same = minor == kPythonMinor && has_part(file.abi, tag);
    const bool is_stable = has_part(file.abi, "abi3") || has_part(file.abi, "none");
    if (is_same || (is_stable && minor <= kPythonMinor)) return true;
  }
  return false;
}

bool is_usable(const IndexFileName& file, const IndexFileName& like) {
  if (file.kind != like.kind) return false;
  if (file.kind != Kind::kPlatformWheel) return true;
  const bool has_same_tags = file.python == like.python && file.abi == like.abi;
  return is_x86_64_linux(file.platform) && (has_same_tags || is_for_base_python(file));
}

/// A file's kind in words, for a release that has no usable one.
std::string kind_in_words(const IndexFileName& file) {
  if (file.kind == Kind::kSdist) return "an sdist";
  if (file.kind == Kind::kPureWheel) return "a pure wheel";
  return fmt::format("a wheel {}-{}-{}", file.python, file.abi, file.platform);
}

[[noreturn]] void malformed(const std::string& project, const std::string& reason) {
  throw Error(ErrorCode::kUsage, "the index page of " + project + ": " + reason);
}

std::string text_of(const Json& object, const std::string& key, const std::string& project) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || at == object.end() || !at->is_string())
    malformed(project, "a file without \"" + key + "\"");
  return at->get<std::string>();
}

/// One file of the index whose version is final.
struct File {
  IndexFileName name;
  std::string file;
  const Json* row = nullptr;
  bool is_yanked = false;
  std::string reason;  ///< why it was yanked
};

/// The files of one release; none for a version that the page only lists.
struct Release {
  std::string version;
  std::vector<File> files;
};

File read_file_row(const Json& row, IndexFileName name, const std::string& file) {
  File out{.name = std::move(name), .file = file, .row = &row, .is_yanked = false, .reason = ""};
  const Json yanked = row.value("yanked", Json(false));
  out.is_yanked = yanked.is_boolean() ? yanked.get<bool>() : !yanked.is_null();
  if (yanked.is_string()) out.reason = one_line(yanked.get<std::string>(), 200);
  if (out.reason.empty()) out.reason = "no reason given";
  return out;
}

/// The final and post releases of a page, oldest first.
std::map<Key, Release> releases_of(const Json& page, const std::string& project) {
  if (!page.is_object() || !page.contains("files") || !page.at("files").is_array())
    malformed(project, "no \"files\"; it is not PEP 691 JSON");
  std::map<Key, Release> releases;
  const auto at = [&](const std::string& version) -> Release* {
    const auto key = release_key(version);
    if (!key) return nullptr;
    Release& release = releases[*key];
    if (release.version.empty()) release.version = version;
    return &release;
  };
  if (page.contains("versions") && page.at("versions").is_array()) {
    for (const Json& version : page.at("versions")) {
      if (version.is_string()) at(version.get<std::string>());
    }
  }
  for (const Json& row : page.at("files")) {
    const std::string file = text_of(row, "filename", project);
    const auto name = parse_index_file_name(file, project);
    Release* release = name ? at(name->version) : nullptr;
    if (release) release->files.push_back(read_file_row(row, *name, file));
  }
  return releases;
}

std::string day_of(const File& file, const std::string& project) {
  return text_of(*file.row, "upload-time", project).substr(0, 10);
}

/// The file to lock: the newest locked release's tags first, then the oldest, then by name. Null if
/// none is usable.
const File* choose(const Release& release, const IndexFileName& like, const std::string& project) {
  const auto rank = [&](const File& f) {
    const bool has_other_tags = f.name.python != like.python || f.name.abi != like.abi;
    return std::tuple(f.is_yanked, has_other_tags, day_of(f, project), f.file);
  };
  const File* best = nullptr;
  for (const File& file : release.files) {
    if (is_usable(file.name, like) && (best == nullptr || rank(file) < rank(*best))) best = &file;
  }
  return best;
}

std::string no_usable_file(const Release& release) {
  std::set<std::string> kinds;
  for (const File& file : release.files) kinds.insert(kind_in_words(file.name));
  if (kinds.empty()) return "no usable file: no sdist and no wheel";
  const std::string rest =
      kinds.size() > kMaxKinds ? fmt::format(" and {} more", kinds.size() - kMaxKinds) : "";
  while (kinds.size() > kMaxKinds) kinds.erase(std::prev(kinds.end()));
  return fmt::format("no usable file: it has {}{}", fmt::join(kinds, ", "), rest);
}

LockableRelease lockable_of(const File& file, const std::string& project) {
  const std::string sha256 = text_of(file.row->value("hashes", Json::object()), "sha256", project);
  if (!is_hex(sha256, 64)) malformed(project, file.file + " has a malformed sha256");
  return {file.name.version, day_of(file, project), file.file, sha256, false};
}

bool is_before(const std::string& date, const std::string& version, const Pin& pin) {
  return std::tuple(date, release_key(version)) < std::tuple(pin.date, release_key(pin.version));
}

/// Where the object of a release lies in env/pins.json: first and one past its last character.
std::pair<std::size_t, std::size_t> object_of(const std::string& text, const Pin& pin) {
  const std::string mark = "\"sha256\": \"" + pin.sha256 + "\"";
  const auto at = text.find(mark);
  const auto begin = at == std::string::npos ? at : text.rfind('{', at);
  const auto end = at == std::string::npos ? at : text.find('}', at);
  const bool is_found = begin != std::string::npos && end != std::string::npos;
  const auto line = is_found ? text.rfind('\n', begin) + 1 : 0;
  if (!is_found || text.find(mark, at + 1) != std::string::npos || text.find('\n', begin) < end ||
      text.find_first_not_of(' ', line) != begin) {
    throw Error(ErrorCode::kUsage, "env/pins.json: release " + pin.version + " of " + pin.upstream +
                                       " was not found as one line; add the lines by hand");
  }
  return {begin, end + 1};
}

}  // namespace

std::optional<Key> release_key(const std::string& version) {
  std::string_view text = version;
  take_prefix(text, "v");
  Key numbers;
  for (;;) {
    const std::optional<int> number = take_digits(text);
    if (!number) return std::nullopt;
    if (numbers.empty() && take_prefix(text, "!")) {
      if (*number != 0) return std::nullopt;  // no project here has another epoch
      continue;
    }
    numbers.push_back(*number);
    if (text.size() < 2 || text[0] != '.' || !is_digit(text[1])) break;
    text.remove_prefix(1);
  }
  const std::optional<int> post = take_post(text);
  if (!post) return std::nullopt;
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();
  numbers.resize(std::max(numbers.size(), kNumParts));
  numbers.push_back(*post);
  return numbers;
}

std::optional<IndexFileName> parse_index_file_name(const std::string& file,
                                                   const std::string& project) {
  const std::string wanted = normalized(project);
  IndexFileName out;
  if (file.ends_with(".whl")) {
    const std::vector<std::string> parts = split(file.substr(0, file.size() - 4), '-');
    const std::size_t n = parts.size();
    if ((n != 5 && n != 6) || normalized(parts[0]) != wanted) return std::nullopt;
    out.version = parts[1];
    out.python = parts[n - 3];
    out.abi = parts[n - 2];
    out.platform = parts[n - 1];
    const bool is_pure = has_part(out.abi, "none") && out.platform == "any";
    if (is_pure && out.python.find("py3") == std::string::npos) return std::nullopt;
    out.kind = is_pure ? Kind::kPureWheel : Kind::kPlatformWheel;
    return out;
  }
  for (const std::string_view end : {".tar.gz", ".zip"}) {
    if (!file.ends_with(end)) continue;
    const std::string stem = file.substr(0, file.size() - end.size());
    for (auto at = stem.find('-'); at != std::string::npos; at = stem.find('-', at + 1)) {
      if (normalized(std::string_view(stem).substr(0, at)) != wanted) continue;
      out.version = stem.substr(at + 1);
      return out;
    }
  }
  return std::nullopt;
}

IndexComparison compare_with_index(const Upstream& upstream, const Json& page) {
  const Pin& last = upstream.releases.back();
  const std::string& project = last.project;
  const auto like = parse_index_file_name(last.filename, project);
  if (!like) {
    throw Error(ErrorCode::kUsage,
                "env/pins.json: " + last.filename + " is not named as a file of " + project);
  }
  std::map<Key, const Pin*> locked;
  for (const Pin& pin : upstream.releases) {
    if (const auto key = release_key(pin.version)) locked[*key] = &pin;
  }
  std::set<Key> left_out;
  for (const LeftOut& one : upstream.left_out) {
    if (const auto key = release_key(one.version)) left_out.insert(*key);
  }
  IndexComparison out;
  if (locked.empty()) return out;
  const Key oldest = locked.begin()->first, newest = locked.rbegin()->first;
  out.from = locked.begin()->second->version;
  std::map<std::string, std::string> yanked;  // version -> reason
  for (const auto& [key, release] : releases_of(page, project)) {
    const auto pin = locked.find(key);
    if (pin != locked.end()) {
      for (const File& file : release.files) {
        if (file.file == pin->second->filename && file.is_yanked)
          yanked[pin->second->version] = file.reason;
      }
      continue;
    }
    std::string day;
    for (const File& file : release.files) {
      const std::string uploaded = day_of(file, project);
      if (day.empty() || uploaded < day) day = uploaded;
    }
    const bool is_later = day > last.date;
    if (left_out.contains(key) || (key < oldest && !is_later)) continue;
    const File* file = choose(release, *like, project);
    if (file != nullptr && !file->is_yanked) {
      out.lockable.push_back(lockable_of(*file, project));
      out.lockable.back().is_hole = key < newest && !is_later;
    } else {
      const std::string reason = file ? "yanked: " + file->reason : no_usable_file(release);
      out.unlockable.push_back({release.version, day, reason});
    }
  }
  std::stable_sort(out.lockable.begin(), out.lockable.end(),
                   [](const LockableRelease& a, const LockableRelease& b) {
                     return std::tuple(a.date, release_key(a.version)) <
                            std::tuple(b.date, release_key(b.version));
                   });
  for (const Pin& pin : upstream.releases) {
    if (yanked.contains(pin.version)) out.yanked.push_back({pin.version, yanked.at(pin.version)});
  }
  return out;
}

std::string lock_line(const LockableRelease& release) {
  return fmt::format(R"({{"version": "{}", "date": "{}", "file": "{}", "sha256": "{}"}})",
                     release.version, release.date, release.file, release.sha256);
}

std::string with_lock_lines(std::string text, const Upstream& upstream,
                            const std::vector<LockableRelease>& releases) {
  std::vector<std::pair<std::size_t, std::string>> insertions;
  for (const LockableRelease& release : releases) {
    const auto next =
        std::find_if(upstream.releases.begin(), upstream.releases.end(),
                     [&](const Pin& pin) { return is_before(release.date, release.version, pin); });
    const bool is_last = next == upstream.releases.end();
    const auto [begin, end] = object_of(text, is_last ? upstream.releases.back() : *next);
    const std::string indent(begin - (text.rfind('\n', begin) + 1), ' ');
    if (is_last) {
      insertions.emplace_back(end, ",\n" + indent + lock_line(release));
    } else {
      insertions.emplace_back(begin, lock_line(release) + ",\n" + indent);
    }
  }
  // From the last place to the first: an insertion moves what comes after it.
  for (auto one = insertions.rbegin(); one != insertions.rend(); ++one)
    text.insert(one->first, one->second);
  return text;
}

}  // namespace patchbench
