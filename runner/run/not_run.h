#pragma once
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace patchbench {

/// One part of a command's work that could not be run here; the rest went on.
struct NotRun {
  std::string what;    ///< "sparse_mla_dims on slime"
  std::string reason;  ///< of NOT_RUN: "upstream_unreachable" or "not_runnable_here"
  std::string why;     ///< the error's line
};

/// Of an Error(kNotRunnable).
NotRun not_run(const std::string& what, const Error& error);
Json not_run_json(const std::vector<NotRun>& parts);
/// For the end of a command's output: how many parts were not run, and a paragraph for each; "" for
/// none.
std::string not_run_text(const std::vector<NotRun>& parts);

}  // namespace patchbench
