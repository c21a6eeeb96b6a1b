#include "git/source.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <map>
#include <string_view>

#include "core/edit.h"
#include "core/file_text.h"
#include "exec/process.h"
#include "exec/progress.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

constexpr auto kFetchTimeout = std::chrono::minutes(30);

std::string last_line(const std::string& text) {
  const std::vector<std::string_view> lines = split_lines(text);
  return lines.empty() ? "" : std::string(lines.back());
}

/// How a child of ours failed, in one line.
std::string failure(const exec::Exit& exit) {
  if (!exit.error.empty()) return exit.error;
  if (exit.timed_out) return "timed out";
  // git names the cause first and its own stages after it.
  std::string line = last_line(exit.err);
  for (const std::string_view said : split_lines(exit.err)) {
    if (said.find("fatal: ") == std::string_view::npos) continue;
    line = said.substr(0, said.find_last_not_of(" \r") + 1);
    break;
  }
  if (!line.empty()) return line;
  return exit.signal != 0 ? "killed by signal " + std::to_string(exit.signal)
                          : "exit status " + std::to_string(exit.exit_code);
}

/// A folder that goes with the object.
class Scratch {
 public:
  explicit Scratch(const fs::path& near) : path_(near.string() + ".unpack") {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Runs env/fetch.py and returns the line it prints.
std::string run_fetch(const Places& places, const std::vector<std::string>& arguments,
                      const std::string& what) {
  exec::Command command;
  command.argv = {"python3", (places.root / "env" / "fetch.py").string()};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  // fetch.py derives its cache from XDG_CACHE_HOME; both must mean the same folder.
  if (places.cache.filename() == "patchbench")
    command.env["XDG_CACHE_HOME"] = places.cache.parent_path().string();
  command.timeout = kFetchTimeout;
  const exec::Exit exit = exec::run(command);
  if (exit.ok()) return last_line(exit.out);
  const std::string message = what + ": " + failure(exit);
  if (exit.exit_code == 3) throw Error(ErrorCode::kIntegrity, message);
  throw Error::unreachable(message);
}

Entries import_files(const fs::path& folder, const std::vector<std::string>& files,
                     Objects& objects) {
  Entries entries;
  for (const std::string& file : files) {
    const DiskFile disk = read_disk_file(folder / file);
    entries[file] = {objects.write_blob(disk.bytes), disk.mode};
  }
  return entries;
}

std::vector<std::string> walk(const fs::path& folder) {
  std::vector<std::string> files;
  for (auto at = fs::recursive_directory_iterator(folder); at != fs::recursive_directory_iterator();
       ++at) {
    const std::string name = at->path().filename().string();
    if (name == ".git" || name == "__pycache__") {
      at.disable_recursion_pending();
      continue;
    }
    const bool is_file = at->is_symlink() || at->is_regular_file();
    if (is_file && !name.ends_with(".pyc"))
      files.push_back(at->path().lexically_relative(folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Source bring_file(const Pin& pin, const Places& places, Objects& objects) {
  const std::string ref = "refs/patchbench/files/" + pin.sha256;
  std::string commit = objects.ref(ref);
  if (commit.empty()) {
    exec::progress("fetching " + pin.upstream + " " + pin.version + " (" + pin.filename + ")");
    const std::string what = pin.upstream + " " + pin.version;
    const std::string file =
        run_fetch(places, {"file", pin.project, pin.filename, pin.sha256}, what);
    const Scratch scratch(places.bare(pin.upstream));
    run_fetch(places, {"unzip", file, scratch.path().string()}, what);
    const std::string tree =
        objects.write_tree(import_files(scratch.path(), walk(scratch.path()), objects));
    commit = objects.write_commit(
        tree, pin.upstream + " " + pin.version + "\n\n" + pin.filename + " " + pin.sha256);
    objects.set_ref(ref, commit);
  }
  return {commit, objects.tree_of(commit), pin.prefix};
}

/// Files of the import package alone: what a checkout of a git pin holds. All where it is unknown.
Entries package_files(const Entries& entries, const std::string& prefix,
                      const std::string& package) {
  if (package.empty()) return entries;
  std::string folder = prefix + package + "/";
  std::replace(folder.begin() + static_cast<std::ptrdiff_t>(prefix.size()), folder.end(), '.', '/');
  Entries inside;
  for (const auto& [path, entry] : entries) {
    if (path.starts_with(folder)) inside.emplace(path, entry);
  }
  return inside;
}

/// Fetches a commit and its trees, then the contents of the package's files that are not there
/// yet: of a large upstream a few MiB instead of all. A server that cannot filter sends all.
Source bring_commit(const Pin& pin, const std::string& package, const Places& places,
                    Objects& objects) {
  const std::string ref = "refs/patchbench/commits/" + pin.commit;
  const fs::path bare = places.bare(pin.upstream);
  const auto git = [&](const std::vector<std::string>& arguments) {
    run_git(bare, arguments, pin.url + " " + pin.commit);
  };
  if (objects.ref(ref).empty()) {
    exec::progress("fetching " + pin.upstream + " " + pin.commit.substr(0, 10) + " from " +
                   pin.url);
    // A git that was killed leaves these; nobody else can hold them while we hold the upstream's
    // lock.
    fs::remove(bare / "shallow.lock");
    fs::remove(bare / (ref + ".lock"));
    make_partial(bare, pin.url);
    git({"fetch", "--quiet", "--no-tags", "--depth", "1", "--no-write-fetch-head",
         "--filter=blob:none", "upstream", "+" + pin.commit + ":" + ref});
  }
  const Entries wanted =
      package_files(objects.read_tree(objects.tree_of(pin.commit)), pin.prefix, package);
  if (wanted.empty()) {
    throw Error(ErrorCode::kUsage, pin.upstream + " " + pin.commit.substr(0, 10) + " has no " +
                                       package + " under '" + pin.prefix + "'");
  }
  std::vector<std::string> fetch = {"-c",
                                    "fetch.negotiationAlgorithm=noop",
                                    "fetch",
                                    "--quiet",
                                    "--no-tags",
                                    "--no-write-fetch-head",
                                    "--filter=blob:none",
                                    "upstream"};
  const std::size_t num_words = fetch.size();
  for (const auto& [path, entry] : wanted) {
    if (entry.mode != "160000" && !objects.has(entry.id)) fetch.push_back(entry.id);
  }
  if (fetch.size() > num_words) git(fetch);
  const std::string tree = objects.write_tree(wanted);
  return {objects.write_commit(tree, pin.upstream + " " + pin.version), tree, pin.prefix};
}

Source bring_folder(const Pin& pin, const std::string& package, Objects& objects) {
  const fs::path folder = pin.version.substr(std::string("path:").size());
  const std::vector<std::string> files = files_of_folder(folder);
  const std::string prefix = prefix_of_folder(folder, package, pin.prefix);
  const std::string tree = objects.write_tree(import_files(folder, files, objects));
  return {objects.write_commit(tree, pin.upstream + " from a folder"), tree, prefix};
}

}  // namespace

void say(const std::string& text) { std::cerr << "patchbench: " << text << std::endl; }

exec::Exit start_git(const std::vector<std::string>& arguments) {
  if (exec::find_program("git").empty()) {
    throw Error(ErrorCode::kNotRunnable, "the git program is not installed: apt-get install git");
  }
  exec::Command command;
  command.argv = {"env"};
  for (const char* name : {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
                           "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_PREFIX"}) {
    command.argv.insert(command.argv.end(), {"-u", name});
  }
  command.argv.push_back("git");
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  command.env = {{"GIT_TERMINAL_PROMPT", "0"}, {"LC_ALL", "C"}};
  command.timeout = kFetchTimeout;
  return exec::run(command);
}

std::string prefix_of_folder(const fs::path& folder, const std::string& package,
                             const std::string& known) {
  if (package.empty()) return known;
  std::string inside = package;
  std::replace(inside.begin(), inside.end(), '.', '/');
  for (const std::string& prefix : {std::string(), std::string("src/"), known}) {
    // Not by its __init__.py: a namespace package has none.
    if (fs::is_directory(folder / (prefix + inside))) return prefix;
  }
  throw Error(ErrorCode::kUsage, folder.string() + ": no folder " + inside +
                                     " here or under src/; give the folder of the clone or the one "
                                     "that holds the package");
}

UpstreamLock::UpstreamLock(const Places& places, const std::string& upstream) {
  fs::create_directories(places.cache / "git");
  const std::string path = (places.cache / "git" / (upstream + ".lock")).string();
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw Error(ErrorCode::kInternal, path + ": " + std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  exec::progress("waiting for another run that works on " + upstream);
  while (::flock(fd_, LOCK_EX) != 0) {
    if (errno != EINTR) throw Error(ErrorCode::kInternal, path + ": " + std::strerror(errno));
  }
}

UpstreamLock::~UpstreamLock() { ::close(fd_); }

std::string run_git(const fs::path& bare, const std::vector<std::string>& arguments,
                    const std::string& what) {
  std::vector<std::string> all = {"--git-dir=" + bare.string(), "-c", "gc.auto=0", "-c",
                                  "maintenance.auto=false"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const exec::Exit exit = start_git(all);
  if (exit.ok()) return exit.out;
  throw Error::unreachable(what + ": " + failure(exit) +
                           "; check the network, http.proxy, http.sslCAInfo, url.<base>.insteadOf");
}

void make_partial(const fs::path& bare, const std::string& url) {
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"remote.upstream.url", url},
                                          {"remote.upstream.promisor", "true"},
                                          {"remote.upstream.partialclonefilter", "blob:none"},
                                          {"core.repositoryformatversion", "1"},
                                          {"extensions.partialclone", "upstream"}})
    run_git(bare, {"config", key, value}, url);
}

DiskFile read_disk_file(const fs::path& path) {
  if (fs::is_symlink(path)) return {fs::read_symlink(path).string(), "120000"};
  DiskFile file{read_file(path), "100644"};
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & S_IXUSR) != 0) file.mode = "100755";
  return file;
}

std::vector<std::string> files_of_folder(const fs::path& folder) {
  if (!fs::is_directory(folder))
    throw Error(ErrorCode::kUsage, folder.string() + ": no such folder");
  const exec::Exit listing = start_git(
      {"-C", folder.string(), "ls-files", "-z", "--cached", "--others", "--exclude-standard"});
  if (!listing.ok() && fs::exists(folder / ".git")) {
    throw Error(ErrorCode::kUsage,
                folder.string() + ": git cannot list this clone: " + failure(listing));
  }
  std::vector<std::string> files;
  for (size_t at = 0; listing.ok() && at < listing.out.size();) {
    const size_t end = std::min(listing.out.find('\0', at), listing.out.size());
    const std::string file = listing.out.substr(at, end - at);
    at = end + 1;
    if (fs::is_symlink(folder / file) || fs::is_regular_file(folder / file)) files.push_back(file);
  }
  // No clone, or a folder that the repository around it ignores (a virtual environment in a
  // project).
  if (files.empty()) return walk(folder);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

Source bring(const Pin& pin, const std::string& package, const Places& places, Objects& objects) {
  switch (pin.kind) {
    case PinKind::kFile:
      return bring_file(pin, places, objects);
    case PinKind::kGit:
      return bring_commit(pin, package, places, objects);
    case PinKind::kPath:
      return bring_folder(pin, package, objects);
  }
  throw Error(ErrorCode::kInternal, "unknown kind of pin");
}

}  // namespace patchbench::git
