#include "function/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/error.h"

extern char** environ;

namespace patchbench::function {
namespace {

using harness::Answer;
using harness::SubjectCase;

/// For an import of torch on a busy machine.
constexpr double kStartSeconds = 180;
/// At least this long is waited for a batch, and for a case that is asked alone after its batch had
/// no answer; of the time that is left at most a third, and a sixth: a case that hangs must not
/// take all of it.
constexpr double kBatchSeconds = 10, kAloneSeconds = 5;
constexpr int kSaysInChild = 3;

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(ErrorCode::kInternal, std::string("a pipe: ") + std::strerror(errno));
    read = ends[0];
    write = ends[1];
  }
};

/// The last line of a log, from a position on, that is not empty, where a Python traceback names
/// its error.
std::string last_line(const std::filesystem::path& file, std::streamoff from = 0) {
  std::ifstream in(file, std::ios::binary);
  in.seekg(from);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t end = text.find_last_not_of("\n ");
  if (end == std::string::npos) return "";
  const std::size_t begin = text.rfind('\n', end);
  return harness::printable(std::string_view(text).substr(
      begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin)));
}

bool is_unanswered(const Answer& answer) {
  return answer.state == Answer::State::kUnresolved && !answer.self_reported.contains("exception");
}

}  // namespace

Worker::Worker(std::vector<std::string> argv, std::filesystem::path work, std::string device,
               std::chrono::steady_clock::time_point deadline)
    : argv_(std::move(argv)),
      work_(std::move(work)),
      device_(std::move(device)),
      deadline_(deadline) {
  std::filesystem::create_directories(work_);
  argv_.push_back(work_.string());
  argv_.push_back(device_);
  start();
}

Worker::~Worker() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);  // it keeps nothing
  ended();
}

double Worker::seconds_left() const {
  return std::chrono::duration<double>(deadline_ - std::chrono::steady_clock::now()).count();
}

void Worker::start() {
  const Pipe asks, says;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  const std::string log = (work_ / "log").string();
  // What a function prints must not mix with what this program prints. The ends are duplicated to
  // a number above kSaysInChild first: a pipe may have that number itself.
  ::posix_spawn_file_actions_adddup2(&actions, asks.read, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  ::posix_spawn_file_actions_adddup2(&actions, says.write, kSaysInChild);
  std::vector<char*> raw;
  for (std::string& word : argv_) raw.push_back(word.data());
  raw.push_back(nullptr);
  const int error = ::posix_spawnp(&pid_, raw[0], &actions, nullptr, raw.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(asks.read);
  ::close(says.write);
  asks_ = asks.write;
  says_ = says.read;
  is_ready_ = false;
  if (error == 0) return;
  pid_ = -1;
  throw Error(ErrorCode::kNotRunnable, argv_.front() + ": " + std::strerror(error));
}

std::string Worker::line(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::string text;
  for (;;) {
    const std::chrono::duration<double, std::milli> left = until - std::chrono::steady_clock::now();
    is_late_ = left.count() <= 0;
    if (is_late_) return "";
    pollfd waited = {says_, POLLIN, 0};
    const int num = ::poll(&waited, 1, static_cast<int>(left.count()) + 1);
    if (num < 0 && errno != EINTR) return "";
    if (num <= 0) continue;
    char c = 0;
    if (::read(says_, &c, 1) != 1) return "";
    if (c == '\n') return text;
    text += c;
  }
}

std::string Worker::ended() {
  ::close(asks_);
  ::close(says_);
  int status = 0;
  // A process that is only late, or only asked to go, is killed; one that ended has a status.
  if (::waitpid(pid_, &status, WNOHANG) == 0) {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    pid_t done = 0;
    while (!is_late_ && done == 0 && std::chrono::steady_clock::now() < patience) {
      done = ::waitpid(pid_, &status, WNOHANG);
      if (done == 0) ::poll(nullptr, 0, 10);
    }
    if (done == 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
    }
  }
  pid_ = -1;
  if (is_late_) return "took too long";
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("exited with {}", WEXITSTATUS(status));
}

void Worker::check_refused() const {
  const std::filesystem::path file = work_ / "refused.json";
  if (!std::filesystem::exists(file)) return;
  const Json said = parse_json(harness::read_text(file), file.string());
  throw Error(said.at("is_usage").get<bool>() ? ErrorCode::kUsage : ErrorCode::kNotRunnable,
              said.at("why").get<std::string>());
}

std::map<std::string, Answer> Worker::once(const std::vector<SubjectCase>& cases) {
  if (pid_ < 0) start();
  std::map<std::string, Answer> answers;
  std::string why;
  if (!is_ready_ && line(kStartSeconds) != "ready") {
    why = ended();
    check_refused();
    throw Error(ErrorCode::kInternal, fmt::format("the Python process {} before it was ready: {}",
                                                  why, last_line(work_ / "log")));
  }
  is_ready_ = true;
  harness::write_work_folder(work_, device_, cases);
  const double seconds = cases.size() == 1 ? std::max(seconds_left() / 6, kAloneSeconds)
                                           : std::max(seconds_left() / 3, kBatchSeconds);
  constexpr std::string_view kEnded = "ended ";
  const auto logged = static_cast<std::streamoff>(std::filesystem::file_size(work_ / "log"));
  std::string said;
  if (::write(asks_, "go\n", 3) == 3) {
    // A process that follows one that ended says first that it is ready.
    do said = line(seconds);
    while (said == "ready");
  }
  if (said == "done") {
    try {
      answers = harness::read_answers(work_, cases);
    } catch (const std::exception& e) {
      why = e.what();
    }
  } else {
    const bool was_late = is_late_;
    why = "the process " + (said.starts_with(kEnded) ? said.substr(kEnded.size()) : ended());
    if (const std::string last = last_line(work_ / "log", logged); !was_late && !last.empty())
      why += ": " + last;
    for (const SubjectCase& one : cases) {
      Answer answer = Answer::unresolved(why);
      if (cases.size() == 1 && !was_late)
        answer.self_reported = {{"exception", {{"type", "ended"}, {"frames", Json::array()}}}};
      answers.emplace(one.item->name, std::move(answer));
    }
  }
  for (const SubjectCase& one : cases)
    answers.try_emplace(one.item->name, Answer::unresolved(harness::printable(why, 300)));
  return answers;
}

std::map<std::string, Answer> Worker::answers(const std::vector<SubjectCase>& cases) {
  if (cases.empty()) return {};
  std::map<std::string, Answer> answers = once(cases);
  if (cases.size() == 1) return answers;
  for (const SubjectCase& one : cases) {
    Answer& answer = answers.at(one.item->name);
    if (is_unanswered(answer) && seconds_left() > 0) answer = once({one}).at(one.item->name);
  }
  return answers;
}

}  // namespace patchbench::function
