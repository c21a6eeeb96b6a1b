#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace patchbench::exec {

/// A child to start, in a process group of its own. Its stdin is empty, its signal mask and
/// dispositions are the default ones; it gets SIGTERM if the thread that started it dies.
struct Command {
  std::vector<std::string> argv;  ///< argv[0] is looked up on PATH
  std::map<std::string, std::string>
      env;  ///< added to the inherited one, or all of it if `clear_env`
  bool clear_env = false;
  std::filesystem::path cwd;  ///< empty: inherited
  std::optional<std::chrono::milliseconds> timeout;
  /// Empty: captured (at most 16 MiB, the rest is dropped) into the result. May be the same file.
  std::filesystem::path stdout_file, stderr_file;
  bool inherit_stderr = false;
  int records_fd_in_child =
      -1;  ///< if >= 3: a pipe whose write end is this number in the child only
  /// Called with each complete line read from that pipe, on the calling thread. If it throws, the
  /// child's group is killed, the child reaped and the exception passed on.
  std::function<void(const std::string& line)> on_record;
};

/// How a child ended. `signal` != 0 if killed. A child that could not be started has exit_code 127
/// and `error`.
struct Exit {
  int exit_code = -1;
  int signal = 0;
  bool timed_out = false;
  double wall_s = 0;
  std::string out, err, error;
  bool ok() const { return exit_code == 0 && signal == 0 && !timed_out && error.empty(); }
};

/// Runs it to its end; on time-out the whole group gets SIGTERM, and SIGKILL two seconds later.
/// What a descendant still holds open when the child has ended is not waited for. Every other
/// descriptor is close-on-exec. Thread-safe.
[[nodiscard]] Exit run(const Command& command);

/// The path of a program on PATH (a name with a slash: itself), or "".
std::string find_program(const std::string& name);

}  // namespace patchbench::exec
