#pragma once
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "harness/subject_process.h"

namespace patchbench::function {

/// One side of a comparison: a Python process that stays, because the import of torch takes seconds
/// where a small case takes milliseconds. It is started again where it ended. Not thread-safe.
class Worker {
 public:
  /// Starts call.py, without waiting for it. `argv` is followed by the work folder.
  Worker(std::vector<std::string> argv, std::filesystem::path work, std::string device,
         std::chrono::steady_clock::time_point deadline);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// An answer for each case. Where the process ends or says nothing of a case, each case without
  /// an answer is asked again alone; one whose process ends then, too, has raised "ended". Throws
  /// Error(kUsage) where the function cannot be imported and Error(kNotRunnable) where the
  /// interpreter has no torch.
  std::map<std::string, harness::Answer> answers(const std::vector<harness::SubjectCase>& cases);

 private:
  std::map<std::string, harness::Answer> once(const std::vector<harness::SubjectCase>& cases);
  void start();
  /// Waits for a line from the process; "" where it ended or was late.
  std::string line(double seconds);
  /// Ends the process and says how it ended.
  std::string ended();
  void check_refused() const;
  double seconds_left() const;

  std::vector<std::string> argv_;
  std::filesystem::path work_;
  std::string device_;
  std::chrono::steady_clock::time_point deadline_;
  pid_t pid_ = -1;
  int asks_ = -1, says_ = -1;
  bool is_ready_ = false, is_late_ = false;
};

}  // namespace patchbench::function
