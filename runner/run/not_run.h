#pragma once
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace patchbench {

/// The argument of NOT_RUN.
enum class NotRunReason { kNotRunnableHere, kUpstreamUnreachable };
std::string reason_name(NotRunReason reason);

/// One part of a command's work that could not be run here; the rest went on.
struct NotRun {
  std::string what;  ///< "sparse_mla_dims on slime"
  NotRunReason reason = NotRunReason::kNotRunnableHere;
  std::string why;  ///< the error's line
};

/// Of an Error(kNotRunnable).
NotRun not_run(const std::string& what, const Error& error);
Json not_run_json(const std::vector<NotRun>& parts);
/// For the end of a command's output: how many parts were not run, and a paragraph for each; "" for
/// none.
std::string not_run_text(const std::vector<NotRun>& parts);

}  // namespace patchbench
