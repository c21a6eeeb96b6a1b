#include "status/function_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/function_table.h"
#include "core/pin.h"
#include "core/python_code.h"
#include "status/same_code.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using Functions = FunctionDigests::mapped_type;

constexpr std::size_t kMaxPythonFiles = 50'000;
constexpr std::uintmax_t kMaxPythonBytes = 4 << 20;

bool is_name_letter(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Whether the text has `keyword` in front of one of the names.
bool defines_any(std::string_view text, std::string_view keyword,
                 const std::set<std::string, std::less<>>& names) {
  for (std::size_t at = text.find(keyword); at != std::string_view::npos;
       at = text.find(keyword, at + 1)) {
    std::size_t begin = at + keyword.size(), end = begin;
    while (begin < text.size() && (text[begin] == ' ' || text[begin] == '\t')) end = ++begin;
    while (end < text.size() && is_name_letter(text[end])) ++end;
    if (names.contains(text.substr(begin, end - begin))) return true;
  }
  return false;
}

/// Reads the Python files of a project.
class CodeReader {
 public:
  CodeReader(const std::vector<Manifest>& packs, Inventory& inventory) : inventory_(inventory) {
    for (const Manifest& pack : packs) {
      for (const UpstreamUse& use : pack.upstreams) {
        for (const auto& [file, names] : use.functions) {
          for (const std::string& name : names) {
            const std::size_t dot = name.find('.');
            (dot == std::string::npos ? functions_ : classes_).insert(name.substr(0, dot));
          }
        }
      }
    }
  }

  std::vector<CodeFile> read(const std::vector<std::string>& paths) {
    std::error_code none;
    for (const std::string& name : paths) {
      const fs::path path = name;
      if (fs::is_directory(path, none)) walk(path);
      if (path.extension() == ".py" && fs::is_regular_file(path, none)) take(path);
    }
    std::sort(files_.begin(), files_.end(),
              [](const CodeFile& a, const CodeFile& b) { return a.path < b.path; });
    return std::move(files_);
  }

 private:
  bool is_left_out(const fs::path& folder) const {
    const std::string name = folder.filename().string();
    std::error_code none;
    return name.starts_with(".") || name == "__pycache__" || name == "node_modules" ||
           name == "site-packages" || name == "dist-packages" ||
           inventory_.left_out.contains(folder) || fs::exists(folder / "pyvenv.cfg", none);
  }

  void walk(const fs::path& root) {
    std::error_code none;
    std::size_t num_files = 0;
    auto it =
        fs::recursive_directory_iterator(root, fs::directory_options::skip_permission_denied, none);
    for (; it != fs::recursive_directory_iterator(); it.increment(none)) {
      if (it->is_symlink(none)) continue;
      if (it->is_directory(none)) {
        if (is_left_out(it->path())) it.disable_recursion_pending();
        continue;
      }
      if (it->path().extension() != ".py" || !it->is_regular_file(none)) continue;
      if (++num_files > kMaxPythonFiles)
        return inventory_.unread_code.push_back(
            fmt::format("{}: what lies behind the first {} Python files; name a folder with less "
                        "code",
                        root.string(), kMaxPythonFiles));
      take(it->path());
    }
  }

  void take(const fs::path& file) {
    std::error_code failed;
    if (fs::file_size(file, failed) > kMaxPythonBytes || failed) return;
    const std::optional<std::string> text = file_text(file);
    if (!text) return inventory_.unread_code.push_back(file.string() + ": cannot be read");
    if (!defines_any(*text, "def ", functions_) && !defines_any(*text, "class ", classes_)) return;
    try {
      files_.push_back({file, sha256_hex(*text), python_code(*text, file.string()).functions});
    } catch (const Error& error) {
      inventory_.unread_code.push_back(error.what());
    }
  }

  Inventory& inventory_;
  std::set<std::string, std::less<>> functions_, classes_;
  std::vector<CodeFile> files_;
};

bool has_code(const Functions& functions) {
  return std::any_of(functions.begin(), functions.end(),
                     [](const auto& one) { return one.second != FunctionTable::kAbsent; });
}

/// The file of a release with the most functions that carry the bug; null without one.
const std::string* main_file(const TableRelease& release) {
  const std::string* found = nullptr;
  std::ptrdiff_t num_most = 0;
  for (const auto& [file, functions] : release.code.functions) {
    const std::ptrdiff_t num =
        std::count_if(functions.begin(), functions.end(),
                      [](const auto& one) { return one.second != FunctionTable::kAbsent; });
    if (num > num_most) found = &file, num_most = num;
  }
  return found;
}

/// The functions of a release that no file has as the release has them, outside of its main file.
std::string missing_elsewhere(const TableRelease& release, const std::string& main,
                              const std::vector<CodeFile>& files) {
  std::string missing;
  for (const auto& [file, functions] : release.code.functions) {
    if (file == main || !has_code(functions)) continue;
    const bool is_found = std::any_of(files.begin(), files.end(), [&](const CodeFile& one) {
      Compared own;
      own.add(functions, one.functions);
      return own.is_whole();
    });
    for (const auto& [name, digest] : functions) {
      if (!is_found && digest != FunctionTable::kAbsent)
        missing += (missing.empty() ? "" : ", ") + name;
    }
  }
  return missing;
}

bool is_below(fs::path file, const std::set<fs::path>& folders) {
  while (file.has_relative_path() && !folders.contains(file)) file = file.parent_path();
  return folders.contains(file);
}

/// What one file is to one upstream; nothing where it holds none of its functions.
std::optional<FunctionCopy> copy_in(const CodeFile& file, const UpstreamUse& use,
                                    const TableUpstream& upstream,
                                    const std::vector<CodeFile>& files) {
  FunctionCopy copy{.file = &file, .use = &use, .upstream = &upstream};
  std::tuple<std::size_t, int, bool> best;  // equal, fewer that differ, a release
  const TableRelease *hit = nullptr, *right = nullptr;
  for (const TableRelease& release : upstream.releases) {
    const std::string* main = release.state.is_open() ? nullptr : main_file(release);
    if (main == nullptr) continue;
    Compared own;
    own.add(release.code.functions.at(*main), file.functions);
    if (own.num_same == 0 || own.num_there < own.num_named) continue;
    const std::string missing = own.is_whole() ? missing_elsewhere(release, *main, files) : "";
    const std::string version = short_version(release.version);
    if (own.is_whole() && missing.empty()) {
      const TableRelease*& twin = release.state == BugStatus::kPresent ? hit : right;
      if (twin == nullptr || !release.is_commit()) twin = &release;
    }
    const std::tuple rank(own.num_same, -own.num_others, !release.is_commit());
    if (copy.num_same > 0 && rank < best) continue;
    best = rank;
    copy.num_same = own.num_same;
    copy.differs =
        !own.is_whole() ? own.text(version)
        : missing.empty()
            ? "its functions are those of " + version +
                  ", where the bug is not; other code around them was not measured"
            : fmt::format("its functions are those of {}; nowhere here: {}", version, missing);
  }
  if (copy.num_same == 0) return std::nullopt;
  if (hit != nullptr && right != nullptr)
    copy.differs = fmt::format("its functions are those of {} and of {}, which differ",
                               short_version(hit->version), short_version(right->version));
  if (right == nullptr) copy.twin = hit;
  return copy;
}

}  // namespace

std::vector<CodeFile> code_files(const std::vector<std::string>& paths,
                                 const std::vector<Manifest>& packs, Inventory& inventory) {
  return CodeReader(packs, inventory).read(paths);
}

std::vector<FunctionCopy> function_copies(const Manifest& pack, const TablePack& table,
                                          const std::vector<CodeFile>& files,
                                          const Answered& answered) {
  std::vector<FunctionCopy> copies;
  const auto rank = [](const FunctionCopy& one) {
    return std::tuple(one.twin != nullptr, one.num_same);
  };
  for (const CodeFile& file : files) {
    std::error_code none;
    const fs::path real = fs::canonical(file.path, none);
    if (answered.files.contains(real)) continue;
    std::optional<FunctionCopy> best;
    for (const UpstreamUse& use : pack.upstreams) {
      const TableUpstream* upstream = table.find(use.name);
      if (upstream == nullptr) continue;
      std::optional<FunctionCopy> one = copy_in(file, use, *upstream, files);
      if (one && (!best || rank(*one) > rank(*best))) best = std::move(one);
    }
    const bool is_told = best && (best->twin != nullptr || !is_below(real, answered.packages));
    if (is_told) copies.push_back(std::move(*best));
  }
  return copies;
}

}  // namespace patchbench
