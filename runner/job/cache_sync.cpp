#include "job/cache_sync.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/json.h"

namespace patchbench::job {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOurs = ".patchbench-sync.";  ///< how every name of ours begins

/// Owns a descriptor.
struct Descriptor {
  int fd = -1;
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

std::string reason() { return std::strerror(errno); }

/// "" if nobody but this user and root can change a folder's entries.
std::string open_to_others(const fs::path& folder) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return folder.string() + ": " + reason();
  if (!S_ISDIR(info.st_mode)) return folder.string() + ": is no folder";
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    return fmt::format("{}: belongs to another user (uid {})", folder.string(), info.st_uid);
  if ((info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0)
    return folder.string() + ": other users can write to it";
  return "";
}

bool is_left_out(const fs::path& path) {
  const std::string name = path.filename();
  return name.starts_with(kOurs) || name.starts_with("tmp.pid_") || path.extension() == ".lock" ||
         (name.starts_with(".") && path.extension() == ".tmp");
}

bool is_index(const fs::path& file) { return file.filename().string().starts_with("__grp__"); }

/// Every file below a folder, relative, a Triton entry's index after the files that it names.
std::vector<fs::path> files_below(const fs::path& folder, std::vector<std::string>& left_out) {
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator it(folder), end; it != end; ++it) {
    const fs::file_status status = it->symlink_status();
    const bool is_folder = fs::is_directory(status);
    if (is_left_out(it->path()) || (is_folder && it->path().filename() == "locks")) {
      if (is_folder) it.disable_recursion_pending();
    } else if (fs::is_regular_file(status)) {
      files.push_back(it->path().lexically_relative(folder));
    } else if (!is_folder) {
      left_out.push_back(it->path().string() + ": is a link or no file");
    }
  }
  const auto key = [](const fs::path& p) {
    return std::tuple(p.parent_path().string(), is_index(p), p.filename().string());
  };
  std::sort(files.begin(), files.end(),
            [&](const fs::path& a, const fs::path& b) { return key(a) < key(b); });
  return files;
}

/// Triton's index names the files of its entry by absolute paths: paths in the source are turned
/// into paths in the destination.
std::string moved_index(const std::string& text, const fs::path& source,
                        const fs::path& destination) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("child_paths") || !json["child_paths"].is_object())
    return text;
  const std::string from = source.string() + "/";
  for (auto& [name, path] : json["child_paths"].items()) {
    if (path.is_string() && path.get<std::string>().starts_with(from))
      path = (destination / path.get<std::string>().substr(from.size())).string();
  }
  return json.dump();
}

/// Makes the folders of a file below the destination; "" or why it may not be used.
std::string make_folders(const fs::path& destination, const fs::path& relative) {
  fs::path folder = destination;
  for (const fs::path& part : relative.parent_path()) {
    folder /= part;
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
      return folder.string() + ": " + reason();
    const std::string wrong = open_to_others(folder);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

/// A file that is written under a name of ours and takes its own by a rename.
class NewFile {
 public:
  NewFile(const fs::path& target, mode_t mode) : target_(target) {
    static int num_made = 0;
    part_ = target.parent_path() / fmt::format("{}{}.{}", kOurs, ::getpid(), num_made++);
    fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & 0755);
    if (fd_ < 0) throw Error(ErrorCode::kInternal, part_.string() + ": " + reason());
  }
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!is_placed_) ::unlink(part_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) throw Error(ErrorCode::kInternal, target_.string() + ": " + reason());
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
  }
  void place() {
    if (::close(std::exchange(fd_, -1)) != 0 || ::rename(part_.c_str(), target_.c_str()) != 0)
      throw Error(ErrorCode::kInternal, target_.string() + ": " + reason());
    is_placed_ = true;
  }

 private:
  fs::path target_, part_;
  int fd_ = -1;
  bool is_placed_ = false;
};

bool is_same_state(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

/// One run of sync_cache.
struct Sync {
  fs::path source, destination;
  SyncReport report;

  void copy(const fs::path& relative) {
    const fs::path from = source / relative, to = destination / relative;
    const Descriptor in(::open(from.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    struct stat before {
    }, after{};
    // A compiler may remove what it has just replaced.
    if (in.fd < 0 || ::fstat(in.fd, &before) != 0) return leave_out(from, reason());
    std::optional<std::string> index;
    if (is_index(relative)) index = moved_index(file_text(from).value_or(""), source, destination);
    const std::string there = file_sha256(to);
    if (!there.empty() && there == (index ? sha256_hex(*index) : file_sha256(from))) {
      ++report.num_matched;
      return;
    }
    const std::string wrong = make_folders(destination, relative);
    if (!wrong.empty()) return leave_out(from, wrong);
    NewFile out(to, before.st_mode);
    int64_t bytes = 0;
    if (index) {
      out.write(*index);
      bytes = static_cast<int64_t>(index->size());
    } else {
      std::string chunk(1 << 20, '\0');
      for (ssize_t got; (got = ::read(in.fd, chunk.data(), chunk.size())) > 0; bytes += got)
        out.write(std::string_view(chunk).substr(0, static_cast<std::size_t>(got)));
    }
    if (::fstat(in.fd, &after) != 0 || !is_same_state(before, after) ||
        (!index && bytes != before.st_size))
      return leave_out(from, "changed while it was read");
    out.place();
    ++report.num_copied;
    report.bytes += bytes;
  }

  void leave_out(const fs::path& file, const std::string& why) {
    report.left_out.push_back(file.string() + ": " + why);
  }
};

/// What killed runs left; nobody else runs while this is called.
void sweep(const fs::path& folder) {
  std::vector<fs::path> parts;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kOurs) && !name.ends_with("lock")) parts.push_back(entry.path());
  }
  for (const fs::path& part : parts) fs::remove(part);
}

/// The real path of a folder, so that neither a link nor "." hides where it is.
fs::path real(const fs::path& folder) {
  fs::path path = fs::weakly_canonical(fs::absolute(folder));
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::string unfit_destination(const fs::path& folder) {
  const fs::path path = real(folder);
  fs::path there = path;
  while (!fs::exists(there) && there.has_relative_path()) there = there.parent_path();
  for (fs::path at = there;; at = at.parent_path()) {
    const std::string wrong = open_to_others(at);
    if (!wrong.empty()) return wrong;
    if (!at.has_relative_path()) break;
  }
  struct stat info {};
  ::stat(path.c_str(), &info);
  // A sticky folder is a fit parent, but others can put files into it.
  if (there == path && (info.st_mode & 022) != 0)
    return path.string() + ": other users can write to it";
  // Asked by trying: a read-only mount and a full quota let access() pass for root.
  std::string attempt = (there / (std::string(kOurs) + "XXXXXX")).string();
  const int fd = ::mkstemp(attempt.data());
  if (fd < 0) return there.string() + ": cannot be written: " + reason();
  ::close(fd);
  ::unlink(attempt.c_str());
  return "";
}

SyncReport sync_cache(const fs::path& source, const fs::path& destination) {
  if (!fs::is_directory(source))
    throw Error(ErrorCode::kUsage, source.string() + ": is no folder; name a compile cache");
  Sync sync{real(source), real(destination), {}};
  const auto holds = [](const fs::path& outer, const fs::path& inner) {
    return (inner.string() + "/").starts_with(outer.string() + "/");
  };
  if (holds(sync.source, sync.destination) || holds(sync.destination, sync.source))
    throw Error(ErrorCode::kUsage, "one of the two folders stands in the other");
  const std::string unfit = unfit_destination(sync.destination);
  if (!unfit.empty()) throw Error(ErrorCode::kNotRunnable, unfit);
  // As private as the folders below it: what it holds will be run.
  const mode_t mask = ::umask(077);
  fs::create_directories(sync.destination);
  ::umask(mask);
  const fs::path lock_file = sync.destination / (std::string(kOurs) + "lock");
  const Descriptor lock(::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.fd >= 0 && ::flock(lock.fd, LOCK_EX | LOCK_NB) == 0) sweep(sync.destination);
  if (lock.fd < 0 || ::flock(lock.fd, LOCK_SH) != 0)
    throw Error(ErrorCode::kInternal, lock_file.string() + ": " + reason());
  for (const fs::path& file : files_below(sync.source, sync.report.left_out)) sync.copy(file);
  return sync.report;
}

}  // namespace patchbench::job
