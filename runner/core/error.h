#pragma once
#include <stdexcept>
#include <string>
#include <utility>

namespace patchbench {

/// What kind of end a piece of work came to; core/exit_status.h has the exit status of each.
enum class ErrorCode {
  kUsage,        ///< the caller's words are wrong: unknown slug, flag, file, malformed input
  kNotRunnable,  ///< right words, but this machine cannot: no engine, no GPU, upstream unreachable
  kUnresolved,   ///< the work ran and gave no answer: crash, time-out, mixed repeats
  kIntegrity,    ///< a digest, chain or signature does not hold
  kInternal,     ///< ours: I/O, a child of ours, a broken invariant
};

/// The one exception of the project. `what()` is one line: what, where, what to try; context lines
/// are put in front on the way up. Answers (a child's exit, a failed patch, a missing GPU) are not
/// errors.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }
  /// The same error, said of something larger: `context: message`.
  Error in(const std::string& context) const {
    Error larger(code_, context + ": " + what());
    larger.is_unreachable_ = is_unreachable_;
    return larger;
  }
  /// kNotRunnable: an upstream cannot be had from here.
  static Error unreachable(const std::string& message) {
    Error error(ErrorCode::kNotRunnable, "upstream_unreachable: " + message);
    error.is_unreachable_ = true;
    return error;
  }
  bool is_unreachable() const { return is_unreachable_; }

 private:
  ErrorCode code_;
  bool is_unreachable_ = false;
};

}  // namespace patchbench
