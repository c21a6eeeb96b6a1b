#pragma once
#include <array>
#include <string_view>

#include "core/error.h"

namespace patchbench {

/// The exit statuses of the program: one table for every verb, printed by `patchbench --help`.
enum ExitStatus : int {
  kExitYes = 0,
  kExitNo = 1,
  kExitUsage = 2,
  kExitNoAnswer = 3,
  kExitNotHere = 4,
  kExitOurs = 5,
};

/// What each status means, by its number.
inline constexpr std::array<std::string_view, 6> kExitMeanings = {
    "yes, done, or answered (reproduce answers with 0 whether the bug is there or not)",
    "no: a fix is rejected, a thing changed or is due; of scan a hit",
    "wrong words",
    "no answer; of scan: unknown, not read, or nothing in it that a pack asks about",
    "not possible on this machine",
    "our own failure",
};

/// What `git bisect run` knows; `reproduce --bisect` alone ends with these.
enum BisectStatus : int {
  kBisectAbsent = 0,
  kBisectPresent = 1,
  kBisectCannotJudge = 125,  ///< git goes on to another commit
  kBisectStop = 200,         ///< git stops, instead of blaming a commit for a failure of ours
};

/// The status of a verb that ends with an error. What does not hold is a "no" only where the verb
/// asks for that (see `answer_whether_it_holds`); elsewhere our own data cannot be trusted.
inline ExitStatus exit_status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return kExitUsage;
    case ErrorCode::kUnresolved:
      return kExitNoAnswer;
    case ErrorCode::kNotRunnable:
      return kExitNotHere;
    case ErrorCode::kIntegrity:
    case ErrorCode::kInternal:
      return kExitOurs;
  }
  return kExitOurs;
}

/// The status of several answers: "no", else "no answer", else "yes".
inline int merged_status(int one, int other) {
  return one == kExitNo || other == kExitNo ? kExitNo : one > other ? one : other;
}

}  // namespace patchbench
