#pragma once
#include <vector>

#include "run/execute.h"
#include "run/not_run.h"

namespace patchbench {

/// How a window is measured.
struct WindowOptions {
  bool bisect_commits = false;
  bool resume = false;
};

/// What a window came to: its JSON document, and the exit status: 0 if every release was judged, 3
/// if one was not. A git pin out of reach is named in `not_run` and does not change the status.
struct WindowAnswer {
  Json document;
  int status = 0;
  std::vector<NotRun> not_run;
};

/// Runs the reproducer over every release of the pack's upstream, over the named commits of one
/// that is never released, and appends a window record.
WindowAnswer measure_window(const Context& context, const RunRequest& request,
                            const WindowOptions& window);
/// States and intervals, for people.
void print_window(const Context& context, const Json& window);

/// Every pack and upstream, one after the other, releases already judged taken from the records. A
/// pack that cannot run here is named and left out. Returns the documents and the greatest status.
WindowAnswer measure_all_windows(const Context& context, const RunRequest& request);

/// What that would run, an entry an upstream of one pack or of all ("slug" empty): {"slug",
/// "upstream", "device", "known" and "on_other_cases" (counts), "to_measure" (versions)}.
Json plan_windows(const Context& context, const RunRequest& request);
/// The same for people.
void print_plans(const Context& context, const Json& plans);

/// The windows of a pack from its records; nothing is run.
void show_windows(const Context& context, const std::string& slug);

}  // namespace patchbench
