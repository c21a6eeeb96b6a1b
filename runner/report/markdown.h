#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/record.h"

namespace patchbench::report {

/// Text as a Markdown code span that stays inside a table cell: no mention, link, HTML or column
/// break can come out of it.
std::string code_span(std::string_view text);

/// A table whose cells are Markdown already.
std::string markdown_table(const std::vector<std::string>& titles,
                           const std::vector<std::vector<std::string>>& rows);

/// One subject of a run and what it ran on.
struct SubjectRun {
  std::string subject;
  RunContext context;
};

/// The evidence page of a run, to be put into an upstream issue: outcome, what was run with
/// versions and digests, each case with error, plain error and limit, and how to run it again.
/// `runs` is not empty; what differs between its subjects (edits, checkout, files) is shown for
/// each. `digest` is that of the verdict record. A run outside a sandbox is marked `unisolated`.
/// The page holds no upstream text and no time but the run's.
std::string markdown_of_run(const std::vector<SubjectRun>& runs,
                            const std::vector<Observation>& observations,
                            const QuestionContext& question, const Outcome& outcome,
                            const std::string& digest);

}  // namespace patchbench::report
