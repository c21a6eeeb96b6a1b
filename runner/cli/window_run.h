#pragma once
#include "cli/trial.h"

namespace patchbench::cli {

/// How a window is measured.
struct WindowOptions {
  bool bisect_commits = false;
  bool resume = false;
};

/// Runs the reproducer over every release of the pack's upstream, appends a window record, prints
/// states and intervals. Returns the exit status: 0 if every release was judged, 3 if one was not.
int run_window(const Context& context, const RunOptions& options, const WindowOptions& window);

}  // namespace patchbench::cli
