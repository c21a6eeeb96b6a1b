#include "exec/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace patchbench::exec {
namespace {

/// Which step failed in the child; crosses the status pipe with its errno.
enum class Step : int { kCgroup, kCwd, kDescriptors, kExec };
struct Failure {
  Step step = Step::kExec;
  int number = 0;
};

/// Everything the child needs, laid out before fork: between fork and exec only async-signal-safe
/// calls are allowed, so no memory may be allocated there.
struct Prepared {
  std::vector<char*> argv, env;
  const char* cwd = nullptr;
  int status_fd = -1, stdout_fd = -1, stderr_fd = -1, extra_fd = -1;
  pid_t parent = 0;
};

std::vector<char*> pointers(const std::vector<std::string>& arguments) {
  std::vector<char*> list;
  for (const std::string& word : arguments) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

/// A duplicate with a number above everything that the child's own descriptors will take.
Fd moved_above(int fd, int floor) {
  if (fd < 0) return Fd();
  Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, floor));
  if (!copy) throw Error(ErrorCode::kInternal, fmt::format("fcntl: {}", std::strerror(errno)));
  return copy;
}

[[noreturn]] void give_up(int status_fd, Step step) {
  const Failure failure{step, errno};
  [[maybe_unused]] const ssize_t sent = ::write(status_fd, &failure, sizeof failure);
  ::_exit(127);
}

/// What the parent ignored or blocked must not reach the child.
void reset_signals() {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void close_others_on_exec() {
  if (::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Kernels before 5.11 do not know the flag.
  const long limit = std::min(::sysconf(_SC_OPEN_MAX), 65536L);
  for (int fd = 3; fd < limit; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void place_descriptors(const Prepared& ready, int extra_in_child) {
  const int null_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0 || ::dup2(null_fd, 0) < 0) give_up(ready.status_fd, Step::kDescriptors);
  if (ready.stdout_fd >= 0 && ::dup2(ready.stdout_fd, 1) < 0) {
    give_up(ready.status_fd, Step::kDescriptors);
  }
  if (ready.stderr_fd >= 0 && ::dup2(ready.stderr_fd, 2) < 0) {
    give_up(ready.status_fd, Step::kDescriptors);
  }
  close_others_on_exec();
  if (ready.extra_fd >= 0 && ::dup2(ready.extra_fd, extra_in_child) < 0) {
    give_up(ready.status_fd, Step::kDescriptors);
  }
}

[[noreturn]] void run_child(const SpawnRequest& request, const Prepared& ready) {
  if (request.own_session) {
    ::setsid();
  } else {
    ::setpgid(0, 0);
  }
  reset_signals();
  if (request.death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, request.death_signal, 0, 0, 0);
    // The parent may have died before the line above.
    if (::getppid() != ready.parent) ::_exit(127);
  }
  for (const int procs : request.cgroup_procs) {
    if (::write(procs, "0", 1) != 1) give_up(ready.status_fd, Step::kCgroup);
  }
  if (ready.cwd != nullptr && ::chdir(ready.cwd) != 0) give_up(ready.status_fd, Step::kCwd);
  place_descriptors(ready, request.extra_fd_in_child);
  if (request.no_new_privileges) ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::execve(ready.argv[0], ready.argv.data(), ready.env.data());
  give_up(ready.status_fd, Step::kExec);
}

std::string describe(const SpawnRequest& request, const Failure& failure) {
  const std::string reason = std::strerror(failure.number);
  switch (failure.step) {
    case Step::kCgroup:
      return fmt::format("{}: cannot enter its cgroup: {}", request.argv[0], reason);
    case Step::kCwd:
      return fmt::format("{}: cannot start in {}: {}", request.argv[0], request.cwd.string(),
                         reason);
    case Step::kDescriptors:
      return fmt::format("{}: cannot place its descriptors: {}", request.argv[0], reason);
    case Step::kExec:
      break;
  }
  return fmt::format("{}: cannot be started: {}", request.argv[0], reason);
}

/// Waits for the status pipe: closed by exec, or a Failure.
bool read_failure(int fd, Failure& failure) {
  ssize_t got = 0;
  do {
    got = ::read(fd, &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof failure);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Fd::release() { return std::exchange(fd_, -1); }

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kInternal, fmt::format("pipe: {}", std::strerror(errno)));
  }
  Pipe pipe{Fd(ends[0]), Fd(ends[1])};
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

Spawned spawn(const SpawnRequest& request) {
  if (request.argv.empty() || request.argv[0].empty()) return {-1, "no program to start"};
  const int floor = std::max(request.extra_fd_in_child, 2) + 1;
  std::array<int, 2> status{};
  if (::pipe2(status.data(), O_CLOEXEC) != 0) {
    return {-1, fmt::format("{}: pipe: {}", request.argv[0], std::strerror(errno))};
  }
  const Fd status_read(status[0]);
  Fd status_low(status[1]);
  Fd status_write = moved_above(status_low.get(), floor);
  status_low.reset();
  const Fd out = moved_above(request.stdout_fd, floor), err = moved_above(request.stderr_fd, floor);
  const Fd extra = moved_above(request.extra_fd, floor);
  const Prepared ready{pointers(request.argv),
                       pointers(request.env),
                       request.cwd.empty() ? nullptr : request.cwd.c_str(),
                       status_write.get(),
                       out.get(),
                       err.get(),
                       extra.get(),
                       ::getpid()};
  const pid_t pid = ::fork();
  if (pid == 0) run_child(request, ready);
  if (pid < 0) return {-1, fmt::format("{}: fork: {}", request.argv[0], std::strerror(errno))};
  status_write.reset();
  Failure failure;
  if (!read_failure(status_read.get(), failure)) return {pid, ""};
  // exec never happened: this child is ours alone to reap, and it is on its way out.
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return {-1, describe(request, failure)};
}

}  // namespace patchbench::exec
