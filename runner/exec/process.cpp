#include "exec/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/error.h"
#include "exec/spawn.h"

namespace patchbench::exec {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxCapture = std::size_t{16} << 20;
constexpr milliseconds kTermGrace{2000};
/// How often a child is asked for where the kernel has no pidfd (before 5.3).
constexpr milliseconds kReapPoll{20};

/// One pipe that the parent drains: into a capped string, or line by line into a callback.
struct Stream {
  Fd read;
  std::string* into = nullptr;
  const std::function<void(const std::string&)>* on_line = nullptr;
  std::string partial;

  void take(const char* bytes, std::size_t count) {
    if (into != nullptr) into->append(bytes, std::min(count, kMaxCapture - into->size()));
    if (on_line == nullptr) return;
    partial.append(bytes, count);
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = partial.find('\n', begin)) != std::string::npos;) {
      const std::string line = partial.substr(begin, end - begin);
      begin = end + 1;
      if (*on_line) (*on_line)(line);
    }
    partial.erase(0, begin);
  }

  /// Reads what is there now; closes at the end of file.
  void drain() {
    std::array<char, 65536> buffer{};
    while (read) {
      const ssize_t got = ::read(read.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        read.reset();
        return;
      }
      take(buffer.data(), static_cast<std::size_t>(got));
    }
  }
};

Fd open_output(const std::filesystem::path& file) {
  Fd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) {
    throw Error(ErrorCode::kInternal,
                fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
  }
  return fd;
}

std::vector<std::string> environment_of(const Command& command) {
  std::map<std::string, std::string> all = command.env;
  for (char** entry = command.clear_env ? nullptr : ::environ;
       entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos)
      all.try_emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  std::vector<std::string> list;
  for (const auto& [name, value] : all) list.push_back(name + "=" + value);
  return list;
}

/// A child on its way: its pid, its end, and the pipes that are read meanwhile.
class Running {
 public:
  explicit Running(pid_t pid)
      : pid_(pid), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}
  /// Only an exception of a callback comes here with the child still alive.
  ~Running() {
    if (has_ended_) return;
    kill_group(SIGKILL);
    reap(0);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void kill_group(int number) const { ::kill(-pid_, number); }

  /// Takes the child's end if it came; `flags` as of waitpid.
  bool reap(int flags) {
    while (!has_ended_) {
      const pid_t got = ::waitpid(pid_, &status_, flags);
      if (got == 0) return false;
      if (got < 0 && errno == EINTR) continue;
      has_ended_ = true;
    }
    return true;
  }

  /// Reads pipes until something happens or `until` is reached.
  void wait(std::vector<Stream>& streams, Clock::time_point until) {
    std::vector<pollfd> polled;
    std::vector<Stream*> open;
    for (Stream& stream : streams) {
      if (!stream.read) continue;
      polled.push_back({stream.read.get(), POLLIN, 0});
      open.push_back(&stream);
    }
    if (pidfd_) polled.push_back({pidfd_.get(), POLLIN, 0});
    auto patience = std::chrono::ceil<milliseconds>(until - Clock::now());
    if (!pidfd_) patience = std::min(patience, kReapPoll);
    const int limit = static_cast<int>(std::clamp<int64_t>(patience.count(), 0, 60'000));
    if (::poll(polled.data(), polled.size(), limit) <= 0) return;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (polled[i].revents != 0) open[i]->drain();
    }
  }

  int status() const { return status_; }

 private:
  pid_t pid_;
  Fd pidfd_;
  bool has_ended_ = false;
  int status_ = 0;
};

/// Follows the child to its end; returns whether its time ran out.
bool follow(Running& child, std::vector<Stream>& streams,
            const std::optional<milliseconds>& timeout) {
  const auto never = Clock::now() + std::chrono::hours(24 * 365);
  auto deadline = timeout ? Clock::now() + *timeout : never;
  bool timed_out = false, was_killed = false;
  while (!child.reap(WNOHANG)) {
    child.wait(streams, deadline);
    if (Clock::now() < deadline) continue;
    if (!timed_out) {
      timed_out = true;
      child.kill_group(SIGTERM);
      deadline = Clock::now() + kTermGrace;
    } else if (!was_killed) {
      was_killed = true;
      child.kill_group(SIGKILL);
      deadline = never;
    }
  }
  // The child itself is gone; members of its group that ignored SIGTERM are not.
  if (timed_out) child.kill_group(SIGKILL);
  for (Stream& stream : streams) stream.drain();
  return timed_out;
}

/// Adds a stream that fills a string; returns the write end for the child.
Fd capture(std::vector<Stream>& streams, std::string& into) {
  Pipe pipe = make_pipe();
  streams.push_back({.read = std::move(pipe.read), .into = &into});
  return std::move(pipe.write);
}

Exit failed_to_start(const std::string& reason) {
  Exit exit;
  exit.exit_code = 127;
  exit.error = reason;
  return exit;
}

}  // namespace

Exit run(const Command& command) {
  const auto started = Clock::now();
  if (command.argv.empty()) return failed_to_start("no program to start");
  const std::string program = find_program(command.argv[0]);
  if (program.empty()) return failed_to_start(command.argv[0] + ": not found on PATH");
  Exit exit;
  std::vector<Stream> streams;
  Fd out, err, records;
  try {
    out =
        command.stdout_file.empty() ? capture(streams, exit.out) : open_output(command.stdout_file);
    const bool is_shared =
        !command.stdout_file.empty() && command.stdout_file == command.stderr_file;
    if (is_shared) {
      err = Fd(::fcntl(out.get(), F_DUPFD_CLOEXEC, 3));
    } else if (!command.stderr_file.empty()) {
      err = open_output(command.stderr_file);
    } else if (!command.inherit_stderr) {
      err = capture(streams, exit.err);
    }
  } catch (const Error& e) {
    return failed_to_start(e.what());
  }
  SpawnRequest request{.argv = command.argv, .env = environment_of(command), .cwd = command.cwd};
  // Absolute, because the child changes its folder before it looks.
  request.argv[0] = std::filesystem::absolute(program);
  request.stdout_fd = out.get();
  request.stderr_fd = err.get();
  request.death_signal = SIGTERM;
  if (command.records_fd_in_child >= 3) {
    Pipe pipe = make_pipe();
    streams.push_back({.read = std::move(pipe.read), .on_line = &command.on_record});
    records = std::move(pipe.write);
    request.extra_fd = records.get();
    request.extra_fd_in_child = command.records_fd_in_child;
  }
  const Spawned spawned = spawn(request);
  if (spawned.pid < 0) return failed_to_start(spawned.error);
  Running child(spawned.pid);
  out.reset();
  err.reset();
  records.reset();
  exit.timed_out = follow(child, streams, command.timeout);
  if (WIFSIGNALED(child.status())) {
    exit.signal = WTERMSIG(child.status());
  } else {
    exit.exit_code = WEXITSTATUS(child.status());
  }
  exit.wall_s = std::chrono::duration<double>(Clock::now() - started).count();
  return exit;
}

std::string find_program(const std::string& name) {
  if (name.empty()) return "";
  const auto is_program = [](const std::string& path) {
    return ::access(path.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(path);
  };
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_program(candidate)) return candidate;
  }
  return "";
}

}  // namespace patchbench::exec
