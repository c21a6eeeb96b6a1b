#include "exec/slurm.h"

#include <fmt/format.h>

#include <sstream>

#include "core/error.h"
#include "core/json.h"
#include "exec/process.h"

namespace patchbench::exec {
namespace {

std::string list_of(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

void submit_array(const ArrayJob& job) {
  const std::string at_once = job.max_at_once > 0 ? fmt::format("%{}", job.max_at_once) : "";
  Command command{.argv = {"sbatch", "--job-name=" + job.name, "--requeue", "--open-mode=append",
                           "--output=" + job.log_pattern,
                           fmt::format("--array=0-{}{}", job.num_tasks - 1, at_once)}};
  command.argv.insert(command.argv.end(), job.options.begin(), job.options.end());
  command.argv.push_back(job.script.string());
  const Exit exit = run(command);
  if (exit.ok()) return;
  const std::string text = exit.error.empty() ? exit.err : exit.error;
  throw Error(ErrorCode::kNotRunnable, "sbatch: " + shown(text.substr(0, text.find('\n'))));
}

std::optional<std::vector<ArrayTask>> active_tasks(const std::vector<std::string>& job_names) {
  std::vector<ArrayTask> tasks;
  if (job_names.empty()) return tasks;
  const Exit exit = run({.argv = {"squeue", "--noheader", "--array", "--name=" + list_of(job_names),
                                  "--format=%j %K %T"}});
  if (!exit.ok()) return std::nullopt;
  std::istringstream lines(exit.out);
  std::string name, index, state;
  while (lines >> name >> index >> state)
    tasks.push_back({name, std::stoi(index), state == "RUNNING"});
  return tasks;
}

bool cancel_jobs(const std::vector<std::string>& job_names) {
  if (job_names.empty()) return true;
  bool all = true;
  for (const std::string& name : job_names)
    all = run({.argv = {"scancel", "--name=" + name}}).ok() && all;
  return all;
}

}  // namespace patchbench::exec
