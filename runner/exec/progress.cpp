#include "exec/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <streambuf>
#include <thread>

namespace patchbench::exec {
namespace {

void write_stderr(const std::string& text) {
  // A run goes on when a progress line cannot be written.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// The terminal's line. A thread rewrites it each second, so that a reader sees that work goes on.
class LiveLine {
 public:
  void show(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
    started_ = Clock::now();
    is_pending_ = true;
    rewrite();
    if (!is_ticking_) std::thread([this] { tick(); }).detach();
    is_ticking_ = true;
    changed_.notify_one();
  }

  void lead_with(const std::string& text) {
    const std::lock_guard lock(mutex_);
    lead_ = text;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    if (is_pending_) write_stderr("\r\x1b[K");
    is_pending_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void rewrite() const {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started_).count();
    std::string line = lead_.empty() || text_ == lead_ ? text_ : lead_ + " · " + text_;
    const std::string time = seconds > 0 ? fmt::format(" · {} s", seconds) : "";
    const std::size_t room = terminal_columns() - 1;
    if (line.size() + time.size() > room) {
      line.resize(room > time.size() ? room - time.size() : 0);
      // A character that is cut is left out.
      while (!line.empty() && (static_cast<unsigned char>(line.back()) & 0xc0) == 0x80)
        line.pop_back();
      if (!line.empty() && static_cast<unsigned char>(line.back()) >= 0xc0) line.pop_back();
    }
    write_stderr("\r\x1b[K" + line + time);
  }

  void tick() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_pending_; });
      changed_.wait_for(lock, std::chrono::seconds(1));
      if (is_pending_) rewrite();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string lead_, text_;
  Clock::time_point started_;
  bool is_pending_ = false, is_ticking_ = false;
};

/// A stream that std::cout and std::cerr are tied to: what they print starts on a clear line.
class LineClearer : public std::streambuf {
 public:
  explicit LineClearer(LiveLine& line) : line_(line) {}

 protected:
  int sync() override {
    line_.clear();
    return 0;
  }

 private:
  LiveLine& line_;
};

/// The line of this process's terminal; nullptr where stderr is none.
LiveLine* live_line() {
  if (::isatty(STDERR_FILENO) != 1) return nullptr;
  // Never destroyed: the thread uses the line, and both streams are flushed, after the destructors
  // of statics have run.
  static LiveLine* const line = [] {
    auto* made = new LiveLine;
    auto* clearer = new std::ostream(new LineClearer(*made));
    std::cout.tie(clearer);
    std::cerr.tie(clearer);
    return made;
  }();
  return line;
}

}  // namespace

void progress(const std::string& text) {
  if (LiveLine* line = live_line())
    line->show(text);
  else
    write_stderr("patchbench: " + text + "\n");
}

void progress_on_terminal(const std::string& text) {
  if (LiveLine* line = live_line()) line->show(text);
}

Step::Step(const std::string& text) {
  if (LiveLine* line = live_line()) line->lead_with(text);
  progress(text);
}

Step::~Step() {
  if (LiveLine* line = live_line()) line->lead_with("");
}

}  // namespace patchbench::exec
