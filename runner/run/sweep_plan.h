#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "workbench/context.h"

namespace patchbench {

/// One run of the matrix.
struct SweepCell {
  std::string slug, upstream, version;
  std::string device;  ///< "cpu", "cuda" (any GPU) or a GPU type, "h200"
};

/// What a sweep was asked for.
struct SweepPlanOptions {
  std::vector<std::string> packs;      ///< empty: all
  std::vector<std::string> upstreams;  ///< "red", "all", versions or NAME=VERSION; empty: red
  std::vector<std::string> devices;    ///< empty: cpu
  std::string executor = "local", sandbox;
  std::vector<std::string> sbatch;
  uint64_t seed = 1;
  int workers = 0;  ///< 0: half the cores; with Slurm as many as it has nodes for
  int retries = 2;
};

struct SweepPlan {
  SweepPlanOptions options;
  std::vector<SweepCell> cells;
};

/// The matrix of those words. Throws Error(kUsage) on a pack, version or executor that is none.
SweepPlan plan_sweep(const Context& context, const SweepPlanOptions& options);

/// The folder of one sweep:
///   plan.json · cells/N/{result.json, records.jsonl} · jobs/K.cells · logs/ · cancelled · lock
/// A cell's folder appears by one rename and once: of two runs of a cell the first to end counts.
class SweepFolder {
 public:
  /// The folder of a plan: named, or by the plan's digest next to the ledger.
  static std::filesystem::path path_for(const Context& context, const SweepPlan& plan,
                                        const std::string& named);
  /// The one named, or the newest. Throws Error(kUsage) if there is none.
  static SweepFolder open(const Context& context, const std::string& named);
  /// Makes it, or takes up one of the same plan. Throws Error(kUsage) if it holds another plan,
  /// Error(kNotRunnable) if others can write to it.
  static SweepFolder create(const std::filesystem::path& path, const SweepPlan& plan);

  const std::filesystem::path& path() const { return path_; }
  const SweepPlan& plan() const { return plan_; }
  std::optional<Json> result(std::size_t cell) const;
  std::string records(std::size_t cell) const;  ///< exported lines; "" where the ledger had it
  /// False if the cell had a result already.
  bool publish(std::size_t cell, const Json& result, const std::string& records) const;

  /// Array jobs handed out so far: for each the cells of its tasks.
  std::vector<std::vector<std::size_t>> jobs() const;
  /// Writes the next job's list of cells; returns its number.
  std::size_t add_job(const std::vector<std::size_t>& cells) const;
  std::string job_name(std::size_t job) const;
  std::vector<std::string> job_names() const;

  bool is_cancelled() const;
  void set_cancelled(bool is_cancelled) const;

 private:
  SweepFolder(std::filesystem::path path, SweepPlan plan);
  std::filesystem::path path_;
  SweepPlan plan_;
};

}  // namespace patchbench
