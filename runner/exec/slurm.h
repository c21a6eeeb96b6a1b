#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace patchbench::exec {

/// An array job for sbatch.
struct ArrayJob {
  std::string name;
  std::filesystem::path script;
  int num_tasks = 0;
  int max_at_once = 0;               ///< 0: as many as there are nodes
  std::string log_pattern;           ///< of sbatch --output
  std::vector<std::string> options;  ///< further words for sbatch
};

/// A task that Slurm still has: queued, running, or on its way out or back into the queue.
struct ArrayTask {
  std::string job_name;
  int index = 0;
  bool is_running = false;
};

/// Hands the job to Slurm, to be queued again when its node fails. Throws Error(kNotRunnable) with
/// sbatch's own first line.
void submit_array(const ArrayJob& job);

/// The tasks of these jobs that Slurm still has; nullopt while its controller does not answer.
std::optional<std::vector<ArrayTask>> active_tasks(const std::vector<std::string>& job_names);

/// Cancels these jobs, running tasks too. False while the controller does not answer.
bool cancel_jobs(const std::vector<std::string>& job_names);

}  // namespace patchbench::exec
