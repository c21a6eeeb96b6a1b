#include "exec/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "core/error.h"

namespace patchbench::exec {
namespace {

using Clock = std::chrono::steady_clock;

/// How often the limits are looked at. A watchdog's overshoot is what a subject can take in this
/// time.
constexpr auto kTick = std::chrono::milliseconds(25);
constexpr std::string_view kCut = "\n[cut here: the log is longer than 8 MiB]\n";

std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "request_stop runs in signal handlers");

/// The subject's words on disk: at most kMaxLog, then one line that says so.
class Log {
 public:
  Log(const std::filesystem::path& file, Fd read)
      : out_(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)),
        read_(std::move(read)) {
    if (!out_) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
    }
  }

  int fd() const { return read_.get(); }

  /// Takes what is there now, at most `budget` bytes, so that a flood cannot keep the watch from
  /// its limits.
  void drain(std::size_t budget) {
    std::array<char, 65536> buffer{};
    for (std::size_t taken = 0; read_ && taken < budget;) {
      const ssize_t got = ::read(read_.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        read_.reset();
        return;
      }
      taken += static_cast<std::size_t>(got);
      keep(buffer.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  void keep(const char* bytes, std::size_t count) {
    const std::size_t room = kMaxLog - kCut.size() - kept_;
    write_all(bytes, std::min(count, room));
    kept_ += std::min(count, room);
    if (count > room && !is_cut_) {
      write_all(kCut.data(), kCut.size());
      is_cut_ = true;
    }
  }

  /// A full disk costs the log, not the verdict: what cannot be written is dropped.
  void write_all(const char* bytes, std::size_t count) {
    while (count > 0) {
      const ssize_t put = ::write(out_.get(), bytes, count);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return;
      bytes += put;
      count -= static_cast<std::size_t>(put);
    }
  }

  Fd out_, read_;
  std::size_t kept_ = 0;
  bool is_cut_ = false;
};

/// Sets the cause if one of the limits is passed now.
bool is_over_a_limit(const Supervision& watch, const ProcessTree* tree, Clock::time_point deadline,
                     Ending& ending) {
  ending.stopped_by = stop_signal.load();
  if (watch.look) ending.limit = watch.look(tree);
  ending.timed_out = Clock::now() >= deadline;
  return ending.stopped_by != 0 || ending.limit != Limit::kNone || ending.timed_out;
}

/// Waits for output or one tick.
void wait_a_tick(const Log& log) {
  pollfd polled{log.fd(), POLLIN, 0};
  // With its pipe closed a poll of no descriptor is a plain wait.
  ::poll(&polled, log.fd() >= 0 ? 1 : 0, static_cast<int>(kTick.count()));
}

/// Follows the child until it ends by itself (true, `status` is set) or passes a limit.
bool follow(const Supervision& watch, pid_t pid, const ProcessTree* tree, Log& log, int& status,
            Ending& ending) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(watch.timeout);
  auto next_look = Clock::now();
  for (;;) {
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid) return true;
    wait_a_tick(log);
    log.drain(std::size_t{1} << 20);
    if (Clock::now() < next_look) continue;
    next_look = Clock::now() + kTick;
    if (tree != nullptr) tree->reap_orphans(pid);
    if (is_over_a_limit(watch, tree, deadline, ending)) return false;
  }
}

/// Waits for a child that is on its way out; one that is not gets SIGKILL.
void take_end(pid_t pid, int& status) {
  for (int i = 0; i < 500; ++i) {
    if (::waitpid(pid, &status, WNOHANG) == pid) return;
    ::poll(nullptr, 0, 10);
  }
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

void request_stop(int signal) { stop_signal.store(signal); }

Ending supervise(const Supervision& supervision) {
  Ending ending;
  const auto started = Clock::now();
  Pipe pipe = make_pipe();
  Log log(supervision.log, std::move(pipe.read));
  SpawnRequest request = supervision.child;
  request.stdout_fd = request.stderr_fd = pipe.write.get();
  std::optional<ProcessTree> tree;
  if (supervision.scope == KillScope::kTree) tree.emplace();
  const Spawned child = spawn(request);
  pipe.write.reset();
  if (child.pid < 0) {
    ending.error = child.error;
    return ending;
  }
  int status = 0;
  const ProcessTree* const members = tree ? &*tree : nullptr;
  const bool by_itself = follow(supervision, child.pid, members, log, status, ending);
  if (!by_itself && supervision.kill) supervision.kill();
  if (tree && !tree->kill_all(by_itself ? 0 : child.pid)) {
    ending.error = "some processes of the subject could not be killed";
  }
  if (!by_itself) take_end(child.pid, status);
  // The kernel may have killed it between two looks.
  if (by_itself && supervision.look) ending.limit = supervision.look(members);
  log.drain(kMaxLog);
  if (WIFSIGNALED(status)) {
    ending.signal = WTERMSIG(status);
  } else {
    ending.exit_code = WEXITSTATUS(status);
  }
  ending.wall_s = std::chrono::duration<double>(Clock::now() - started).count();
  return ending;
}

}  // namespace patchbench::exec
