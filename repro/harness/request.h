#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/manifest.h"

namespace patchbench::harness {

/// How a subject outside this process is started (`--subject-command`).
struct SubjectCommand {
  std::vector<std::string> argv;
  std::filesystem::path
      report;  ///< the sandbox's own account; the subject cannot write it; may be empty
  double timeout_s = 300;
};

/// `--corrupt all`: every corruption in turn, each observed as the subject `op_mutant:<name>`.
inline constexpr std::string_view kAllCorruptions = "all";

/// A reproducer's command line, checked.
struct Request {
  std::string slug;
  std::vector<std::string> classes;  ///< declared failure classes, primary first
  std::vector<Case> cases;
  Subject subject = SubjectKind::kUpstream;
  std::string device;        ///< where the subject computes
  std::string judge_device;  ///< where the plain computation is done: the same, or "cpu"
  uint64_t seed = 1;
  int repeats = 1;
  std::filesystem::path work;
  std::optional<SubjectCommand> command;
  bool stops_at_red = false;                ///< --stop-at-red: the rest only where none is red
  bool wants_regions = false;               ///< --regions: judge the mutants of regions.h, too
  std::vector<std::string> waived_regions;  ///< of them, those that are not asked for
  std::vector<std::string> conditions;      ///< regions of drawn cases that are asked for, too
  int num_drawn = 0;                        ///< --draw: cases of each seed, over all spaces
  uint64_t first_seed = 1, last_seed = 1;   ///< --seeds FIRST-LAST of drawn cases
  double most_seconds = 0;                  ///< --draw-seconds: then it stops; 0: no limit
  Json spaces = Json::array();              ///< with "count", which gives each its share
  std::vector<std::string> scenarios;       ///< that drawn cases are in (core/scenario.h)
  std::set<std::string> overwritten;        ///< inputs that the upstream says it overwrites
  /// What the subject's process looks at while it runs: "changed" lines (core/changed_lines.h) and
  /// the arguments of "functions" (manifest).
  Json watched = Json::object();
  Json given = Json::array();  ///< axes that are judged instead of drawn ones
  std::string corruption;      ///< "", a corruption's name, or kAllCorruptions
  bool wants_all_layers = false;
  int records_fd = -1;
  bool lists_corruptions = false;
  std::string probed_device;  ///< --probe: where this judge computes for a subject on that device

  /// "cpu" or "cuda", of the subject.
  std::string device_kind() const { return device.substr(0, device.find(':')); }
};

/// Parses the words after the program's name. Throws Error(kUsage) with one line.
Request parse_request(const std::vector<std::string>& arguments);

/// The cases file: {"slug", "classes", "cases": [{"name", "role", "axes", "judged_on",
/// "isolated"?}], and, where they are wanted, "waived_regions", "conditions", "spaces" and
/// "given"}. Throws Error(kUsage).
void read_cases(const std::filesystem::path& file, Request& request);

/// The whole of a regular file of ours. Throws Error(kUsage).
std::string read_text(const std::filesystem::path& file);

}  // namespace patchbench::harness
