#include "git/work_folder.h"

#include <sys/stat.h>

#include <fstream>
#include <map>
#include <optional>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/json.h"
#include "git/source.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

const char* const kNote = ".git/patchbench.json";

void must_git(const fs::path& folder, std::vector<std::string> arguments) {
  std::vector<std::string> all = {"-C", folder.string(),
                                  "-c", "core.autocrlf=false",
                                  "-c", "core.hooksPath=/dev/null",
                                  "-c", "commit.gpgsign=false",
                                  "-c", "user.name=patchbench",
                                  "-c", "user.email=patchbench@localhost"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const exec::Exit exit = start_git(all);
  if (!exit.ok()) {
    throw Error(ErrorCode::kInternal, folder.string() + ": git " + arguments.front() + ": " +
                                          shown(exit.error + exit.err));
  }
}

/// A file as edits change it: nullopt text where it is absent.
struct Pending {
  std::optional<std::string> text;
  std::string mode;
};

void apply_file(const FileEdit& file, const fs::path& path,
                std::map<std::string, Pending>& pending) {
  if (!pending.contains(file.path)) {
    if (fs::is_symlink(path))
      throw Error(ErrorCode::kUsage, path.string() + ": is a link; nothing is written through it");
    Pending& now = pending[file.path];
    if (fs::exists(path)) now.text = read_disk_file(path).bytes;
  }
  Pending& now = pending[file.path];
  const std::string got = now.text ? git_blob_id(*now.text) : "";
  if (got != file.blob && got == file.result) {
    throw Error(ErrorCode::kUsage,
                path.string() + ": this edit is already applied (blob " + got + ")");
  }
  if (now.text.has_value() == file.blob.empty()) {
    throw Error(ErrorCode::kUsage,
                path.string() + (now.text ? ": is there already" : ": is not there"));
  }
  const std::string text = apply_file_edit(file, now.text.value_or(""));
  now.text = file.result.empty() ? std::nullopt : std::optional(text);
  if (!file.mode.empty()) now.mode = file.mode;
}

void write_file(const fs::path& path, const Pending& file) {
  if (!file.text) {
    fs::remove(path);
    return;
  }
  fs::create_directories(path.parent_path());
  struct stat info {};
  const bool is_there = ::stat(path.c_str(), &info) == 0;
  const fs::path part = path.string() + ".patchbench-tmp";
  std::ofstream out(part, std::ios::binary);
  out << *file.text;
  out.close();
  if (!out)
    throw Error(ErrorCode::kInternal, part.string() + ": cannot be written; is the disk full?");
  const mode_t kept = is_there ? info.st_mode & 07777 : 0644;
  const mode_t mode = file.mode == "100755"   ? kept | 0111
                      : file.mode == "100644" ? kept & ~mode_t{0111}
                                              : kept;
  ::chmod(part.c_str(), mode);
  fs::rename(part, path);
}

}  // namespace

void make_work_folder(const fs::path& folder, const Checkout& checkout, WorkFolder work) {
  if (fs::exists(folder) && (!fs::is_directory(folder) || !fs::is_empty(folder))) {
    throw Error(ErrorCode::kUsage,
                folder.string() + ": already holds something; name a new folder");
  }
  const fs::path target = fs::absolute(folder).lexically_normal();
  const fs::path part =
      (target.has_filename() ? target : target.parent_path()).string() + ".patchbench-tmp";
  fs::remove_all(part);
  fs::create_directories(part);
  try {
    for (const auto& item : fs::directory_iterator(checkout.path)) {
      if (item.path().filename() == ".git") continue;
      fs::copy(item.path(), part / item.path().filename(),
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
    must_git(part, {"init", "-q", "-b", "base"});
    must_git(part, {"add", "-A", "-f"});
    must_git(part, {"commit", "-q", "--allow-empty", "-m",
                    work.upstream + " " + work.version + " with the series of " + work.slug});
    const fs::path prefix = checkout.package.lexically_relative(checkout.path);
    work.prefix = prefix == "." ? "" : prefix.generic_string() + "/";
    const Json note = {{"slug", work.slug},
                       {"upstream", work.upstream},
                       {"version", work.version},
                       {"prefix", work.prefix},
                       {"series", work.series}};
    std::ofstream(part / kNote) << note.dump(2) << "\n";
    fs::rename(part, target.has_filename() ? target : target.parent_path());
  } catch (...) {
    fs::remove_all(part);
    throw;
  }
}

WorkFolder read_work_folder(const fs::path& folder) {
  const fs::path path = folder / kNote;
  const std::optional<std::string> text = file_text(path);
  if (!text) {
    throw Error(ErrorCode::kUsage,
                folder.string() + ": not opened by `patchbench patch new` (no " + kNote + ")");
  }
  const Json note = parse_json(*text, path.string());
  try {
    return {note.at("slug"), note.at("upstream"), note.at("version"), note.at("prefix"),
            note.at("series").get<std::vector<std::string>>()};
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kUsage,
                path.string() + ": is damaged; open a new folder with `patchbench patch new`");
  }
}

std::vector<std::string> apply_to_folder(const fs::path& package, const std::vector<Edit>& edits) {
  std::map<std::string, Pending> pending;
  for (const Edit& edit : edits) {
    for (const FileEdit& file : edit.files) {
      try {
        apply_file(file, package / file.path, pending);
      } catch (const Error& e) {
        throw e.in(edit.name);
      }
    }
  }
  std::vector<std::string> changed;
  for (const auto& [path, file] : pending) {
    write_file(package / path, file);
    changed.push_back(path);
  }
  return changed;
}

}  // namespace patchbench::git
