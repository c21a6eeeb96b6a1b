#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/observation.h"
#include "core/question.h"
#include "core/sentinel.h"

namespace patchbench::report {

/// How a CI system shows a case. What was not judged is never a pass.
enum class JunitStatus {
  kPassed,
  kFailed,   ///< judged, and not as it must be
  kError,    ///< no answer where one was due: crash, time-out, mixed repeats
  kSkipped,  ///< cannot be judged here: unjudged, unsupported
};

/// One <testcase>.
struct JunitCase {
  std::string group;  ///< classname: "liger_flce_none_bwd.patched"
  std::string name;   ///< the case
  JunitStatus status = JunitStatus::kPassed;
  std::string verdict;  ///< core's word: "validated", "not_fixed"
  std::string reason;   ///< one line
  double seconds = 0;
  std::vector<std::pair<std::string, std::string>> properties;  ///< e.g. {"ledger", "<digest>"}
};

/// A JUnit XML document of one <testsuite>. Text is escaped; characters that XML cannot hold are
/// removed. Byte-stable.
std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases);

/// The status of one observation of a run. A mutant passes by being red on a trigger and is skipped
/// where it is not; on a version of which nothing is expected a present bug is a failure.
JunitStatus junit_status(const Observation& observation, const QuestionContext& question);

/// What a run came to, as a case: `digest` is that of the verdict record.
JunitCase junit_of_verdict(const std::string& group, const std::string& name,
                           const QuestionContext& question, const Outcome& outcome,
                           const std::string& digest);

/// A run as JUnit: one case per observation, then one named "sentinel" for what the run came to.
/// `digest` is that of the verdict record.
std::string junit_of_run(const std::string& slug, const std::vector<Observation>& observations,
                         const QuestionContext& question, const Outcome& outcome,
                         const std::string& digest);

}  // namespace patchbench::report
