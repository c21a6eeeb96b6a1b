#pragma once
#include <sys/types.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

namespace patchbench::exec {

/// Owns one descriptor. -1: none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

/// Both ends of a close-on-exec pipe; the read end does not block. Throws Error(kInternal).
struct Pipe {
  Fd read, write;
};
Pipe make_pipe();

/// A child as fork and exec need it: everything resolved, nothing inherited by accident.
struct SpawnRequest {
  std::vector<std::string> argv;       ///< argv[0] is a path
  std::vector<std::string> env;        ///< NAME=value, all of it
  std::filesystem::path cwd;           ///< empty: inherited
  int stdout_fd = -1, stderr_fd = -1;  ///< -1: the parent's
  int extra_fd = -1;                   ///< kept open in the child as `extra_fd_in_child`
  int extra_fd_in_child = -1;
  bool own_session = false;  ///< else only a process group of its own
  int death_signal = 0;      ///< what the child gets if the thread that started it dies
  bool no_new_privileges = false;
  /// Open `cgroup.procs` files that the child enters before it runs anything.
  std::vector<int> cgroup_procs;
};

/// A started child, or why there is none. The caller reaps `pid`.
struct Spawned {
  pid_t pid = -1;
  std::string error;  ///< one line: "<program>: <reason>"
};
[[nodiscard]] Spawned spawn(const SpawnRequest& request);

}  // namespace patchbench::exec
