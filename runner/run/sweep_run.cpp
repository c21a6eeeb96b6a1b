#include "run/sweep_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/shell_word.h"
#include "core/split.h"
#include "core/verdict_index.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "exec/slurm.h"
#include "ledger/jsonl.h"
#include "ledger/ledger.h"
#include "run/not_run.h"
#include "run/questions.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxTasks = 1000;  // MaxArraySize of a Slurm that nobody configured
constexpr auto kPoll = std::chrono::seconds(2);

/// The lock of the one process that runs a sweep; it holds that process's id.
class RunLock {
 public:
  explicit RunLock(const fs::path& folder)
      : fd_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (fd_ < 0 || ::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (fd_ >= 0) ::close(fd_);
      throw Error(ErrorCode::kNotRunnable,
                  folder.string() + ": another process runs this sweep; patchbench sweep status");
    }
    const std::string pid = std::to_string(::getpid());
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, pid.data(), pid.size(), 0) < 0)
      throw Error(ErrorCode::kInternal, (folder / "lock").string() + ": cannot be written");
  }
  RunLock(const RunLock&) = delete;
  ~RunLock() { ::close(fd_); }

  /// The process that holds it; 0 if none does.
  static pid_t holder(const fs::path& folder) {
    const int fd = ::open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[32] = "";
    const bool is_free = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
    const bool is_read = ::pread(fd, text, sizeof text - 1, 0) > 0;
    ::close(fd);
    return is_free || !is_read ? 0 : static_cast<pid_t>(std::stol(text));
  }

 private:
  int fd_;
};

bool is_of_type(const std::string& device, const std::string& type) {
  if (recorded_kind(type) != recorded_kind(device)) return false;
  return type == "cpu" || type == "cuda" || lower(device).find(lower(type)) != std::string::npos;
}

/// Cells that a verdict in the ledger answers: a manifest that asks the same, release and kind of
/// device.
void take_known(const Context& context, const SweepFolder& sweep) {
  const std::vector<SweepCell>& cells = sweep.plan().cells;
  const JudgedDigests judged = context.judged();
  std::map<std::string, std::string> manifests;
  for (const SweepCell& cell : cells) {
    if (!manifests.contains(cell.slug)) manifests[cell.slug] = context.manifest(cell.slug).sha256;
  }
  VerdictIndex verdict_index;
  ledger::Ledger::open(context.ledger)->each_answer({}, [&](const Finding& finding) {
    const auto manifest = manifests.find(finding.slug);
    if (manifest != manifests.end() && judged.is_same(manifest->second, finding.manifest_sha256) &&
        state_of(finding.outcome()) != BugStatus::kUnresolved)
      verdict_index.add(finding);
  });
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (sweep.result(i)) continue;
    const auto key = verdict_index.by_key().find(
        {cells[i].slug, cells[i].upstream, cells[i].version, "", "reproduce"});
    if (key == verdict_index.by_key().end()) continue;
    for (const auto& [device, cell] : key->second) {
      const Finding* newest = cell.newest();
      if (newest == nullptr || !is_of_type(newest->device, cells[i].device)) continue;
      sweep.publish(
          i,
          {{"sentinel", newest->sentinel}, {"verdict", newest->digest}, {"why", "in the ledger"}},
          "");
    }
  }
}

/// Takes the records of new results into the ledger.
class Collector {
 public:
  Collector(const Context& context, const SweepFolder& sweep) : context_(context), sweep_(sweep) {}

  std::size_t num_done() const { return done_.size(); }
  bool is_done(std::size_t cell) const { return done_.contains(cell); }

  void collect() {
    for (std::size_t cell = 0; cell < sweep_.plan().cells.size(); ++cell) {
      if (done_.contains(cell) || !sweep_.result(cell)) continue;
      if (const std::string records = sweep_.records(cell); !records.empty()) {
        std::vector<ledger::Incoming> incoming =
            ledger::read_jsonl(records, fmt::format("cell {}", cell));
        for (ledger::Incoming& one : incoming) one.origin = "local";  // nobody else can write there
        ledger::Ledger::open(context_.ledger)->append_received(incoming);
      }
      done_.insert(cell);
    }
  }

  void show(std::size_t num_running) {
    const std::string line = fmt::format("sweep: {} of {} done, {} running", num_done(),
                                         sweep_.plan().cells.size(), num_running);
    if (line != shown_) exec::progress(line);
    shown_ = line;
  }

 private:
  const Context& context_;
  const SweepFolder& sweep_;
  std::set<std::size_t> done_;
  std::string shown_;
};

std::vector<std::string> cell_arguments(const Context& context, const SweepFolder& sweep) {
  return {(context.bin / "patchbench").string(), "sweep", "cell", "--dir", sweep.path().string()};
}

void run_local(const Context& context, const SweepFolder& sweep, Collector& collector) {
  const SweepPlanOptions& sweep_options = sweep.plan().options;
  std::vector<std::size_t> todo;
  for (std::size_t i = 0; i < sweep.plan().cells.size(); ++i) {
    if (!collector.is_done(i)) todo.push_back(i);
  }
  const unsigned half = std::max(1U, std::thread::hardware_concurrency() / 2);
  const std::size_t num_workers =
      std::min(todo.size(),
               static_cast<std::size_t>(sweep_options.workers > 0 ? sweep_options.workers : half));
  std::atomic<std::size_t> next = 0, num_running = 0, num_ended = 0;
  const auto work = [&] {
    for (std::size_t at = next++; at < todo.size() && !sweep.is_cancelled(); at = next++) {
      exec::Command command{.argv = cell_arguments(context, sweep)};
      command.argv.push_back(std::to_string(todo[at]));
      const fs::path log = sweep.path() / "logs" / fmt::format("{}.log", todo[at]);
      command.stdout_file = command.stderr_file = log;
      ++num_running;
      for (int tries = 0; tries <= sweep_options.retries && !sweep.result(todo[at]); ++tries) {
        if (sweep.is_cancelled()) break;
        [[maybe_unused]] const exec::Exit exit = exec::run(command);  // the result tells
      }
      --num_running;
    }
    ++num_ended;
  };
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < num_workers; ++i) workers.emplace_back(work);
  while (num_ended < num_workers) {
    collector.collect();
    collector.show(num_running);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  workers.clear();
  collector.collect();
}

/// Cells as tasks of Slurm array jobs, one job for each kind of device.
class SlurmRun {
 public:
  SlurmRun(const Context& context, const SweepFolder& sweep, Collector& collector)
      : context_(context), sweep_(sweep), collector_(collector), jobs_(sweep.jobs()) {
    for (const auto& job : jobs_) {
      for (const std::size_t cell : job) ++tries_[cell];
    }
    if (exec::find_program("sbatch").empty())
      throw Error(ErrorCode::kNotRunnable,
                  "sweep: no sbatch on PATH; run it on a login node, or --executor local");
  }

  void run(bool is_detached) {
    for (bool is_first = true; !sweep_.is_cancelled(); is_first = false) {
      const auto tasks = exec::active_tasks(sweep_.job_names());
      collector_.collect();
      if (collector_.num_done() == sweep_.plan().cells.size()) return;
      if (tasks) {
        const std::size_t num_submitted = submit_missing(*tasks);
        if (is_detached && (is_first || num_submitted > 0)) return;
        if (tasks->empty() && num_submitted == 0 && idle_since_) return;
        idle_since_ = tasks->empty() && num_submitted == 0;
        collector_.show(static_cast<std::size_t>(std::count_if(
            tasks->begin(), tasks->end(), [](const auto& task) { return task.is_running; })));
      } else {
        exec::progress("sweep: Slurm's controller does not answer; waits");
      }
      std::this_thread::sleep_for(kPoll);
    }
  }

 private:
  /// Cells that no task holds and that may be tried (again). One that was held in the last look may
  /// have a result that the file system does not show yet.
  std::size_t submit_missing(const std::vector<exec::ArrayTask>& tasks) {
    std::set<std::size_t> held;
    for (const exec::ArrayTask& task : tasks) {
      for (std::size_t job = 0; job < jobs_.size(); ++job) {
        if (sweep_.job_name(job) == task.job_name)
          held.insert(jobs_[job].at(static_cast<std::size_t>(task.index)));
      }
    }
    std::map<std::string, std::vector<std::size_t>> by_device;
    std::size_t count = 0;
    for (std::size_t cell = 0; cell < sweep_.plan().cells.size(); ++cell) {
      const bool is_free =
          !collector_.is_done(cell) && !held.contains(cell) && !held_.contains(cell);
      if (!is_free || tries_[cell] > sweep_.plan().options.retries) continue;
      if (tries_[cell]++ > 0)
        exec::progress(fmt::format("sweep: cell {} ended without a result; again", cell));
      by_device[sweep_.plan().cells[cell].device].push_back(cell);
      ++count;
    }
    held_ = std::move(held);
    for (const auto& [device, cells] : by_device) {
      for (std::size_t at = 0; at < cells.size(); at += kMaxTasks) {
        const auto begin = cells.begin() + static_cast<std::ptrdiff_t>(at);
        submit({begin, begin + static_cast<std::ptrdiff_t>(std::min(kMaxTasks, cells.size() - at))},
               device);
      }
    }
    return count;
  }

  void submit(const std::vector<std::size_t>& cells, const std::string& device) {
    const std::size_t number = sweep_.add_job(cells);
    jobs_.push_back(cells);
    held_.insert(cells.begin(), cells.end());
    const fs::path jobs = sweep_.path() / "jobs";
    const fs::path script = jobs / fmt::format("{}.sh", number);
    std::string command;
    for (const std::string& word : cell_arguments(context_, sweep_))
      command += shell_word(word) + " ";
    write_whole(
        script,
        fmt::format("#!/bin/sh\ncell=$(sed -n \"$((SLURM_ARRAY_TASK_ID + 1))p\" {})\n"
                    "exec {}\"$cell\"\n",
                    shell_word((jobs / fmt::format("{}.cells", number)).string()), command));
    std::vector<std::string> options;
    const bool is_gpu = recorded_kind(device) == DeviceKind::kCuda;
    if (is_gpu) options.push_back("--gres=gpu:1");
    if (is_gpu && device != "cuda") options.push_back("--constraint=" + device);
    const SweepPlanOptions& sweep_options = sweep_.plan().options;
    options.insert(options.end(), sweep_options.sbatch.begin(), sweep_options.sbatch.end());
    exec::submit_array(
        {.name = sweep_.job_name(number),
         .script = script,
         .num_tasks = static_cast<int>(cells.size()),
         .max_at_once = sweep_options.workers,
         .log_pattern = (sweep_.path() / "logs" / fmt::format("{}-%a.log", number)).string(),
         .options = options});
  }

  const Context& context_;
  const SweepFolder& sweep_;
  Collector& collector_;
  std::vector<std::vector<std::size_t>> jobs_;
  std::map<std::size_t, int> tries_;
  std::set<std::size_t> held_;
  bool idle_since_ = false;
};

}  // namespace

std::vector<CellState> states_of(const SweepFolder& sweep) {
  std::vector<CellState> states(sweep.plan().cells.size(), CellState::kWaiting);
  if (sweep.plan().options.executor == "slurm") {
    const auto jobs = sweep.jobs();
    for (const exec::ArrayTask& task :
         exec::active_tasks(sweep.job_names()).value_or(std::vector<exec::ArrayTask>{})) {
      for (std::size_t job = 0; job < jobs.size(); ++job) {
        if (task.is_running && sweep.job_name(job) == task.job_name)
          states.at(jobs[job].at(static_cast<std::size_t>(task.index))) = CellState::kRunning;
      }
    }
  } else if (RunLock::holder(sweep.path()) != 0) {
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (fs::exists(sweep.path() / "logs" / fmt::format("{}.log", i)))
        states[i] = CellState::kRunning;
    }
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (sweep.result(i)) states[i] = CellState::kDone;
  }
  return states;
}

std::size_t run_sweep(const Context& context, const SweepFolder& sweep, bool is_detached) {
  const RunLock lock(sweep.path());
  sweep.set_cancelled(false);
  take_known(context, sweep);
  Collector collector(context, sweep);
  collector.collect();
  if (sweep.plan().options.executor == "slurm") {
    SlurmRun(context, sweep, collector).run(is_detached);
  } else {
    run_local(context, sweep, collector);
  }
  return sweep.plan().cells.size() - collector.num_done();
}

void run_cell(const Context& context, const SweepFolder& sweep, std::size_t cell) {
  if (cell >= sweep.plan().cells.size())
    throw Error(ErrorCode::kUsage, fmt::format("sweep: no cell {}", cell));
  if (sweep.result(cell)) return;
  const SweepCell& what = sweep.plan().cells[cell];
  const SweepPlanOptions& sweep_options = sweep.plan().options;
  // A ledger of its own, on a local disk: SQLite and network file systems do not go together.
  std::string scratch = (fs::temp_directory_path() / "patchbench-cell-XXXXXX").string();
  if (::mkdtemp(scratch.data()) == nullptr)
    throw Error(ErrorCode::kInternal, scratch + ": cannot be made");
  const std::unique_ptr<std::string, void (*)(std::string*)> removed(
      &scratch, [](std::string* path) { fs::remove_all(*path); });
  Context own = context;
  own.ledger = fs::path(scratch) / "ledger.db";
  RunRequest request{.slug = what.slug,
                     .upstream = what.upstream,
                     .version = what.version,
                     .choice = {.seeds = {sweep_options.seed, sweep_options.seed}},
                     .device = Device{recorded_kind(what.device)}.text(),
                     .needs_pin = true};
  if (!sweep_options.sandbox.empty()) request.sandbox = exec::sandbox_from(sweep_options.sandbox);
  // A sandbox that breaks once, because its node dies or is short of memory, says nothing about the
  // machine: that a cell cannot run here has to be seen twice.
  for (bool is_first = true;; is_first = false) {
    try {
      const Setup setup = prepare(own, request);
      const std::string device = setup.machine.value("device", "");
      if (!is_of_type(device, what.device))
        throw Error(ErrorCode::kNotRunnable, device + " is no " + what.device);
      const Answer answer = reproduce(own, setup, request);
      sweep.publish(cell,
                    {{"sentinel", answer.outcome.sentinel ? answer.outcome.text() : "NONE"},
                     {"verdict", answer.digest},
                     {"why", answer.outcome.why}},
                    ledger::export_jsonl(ledger::Ledger::open(own.ledger)->all()));
      return;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kNotRunnable) throw;
      exec::progress(fmt::format("sweep: cell {}: {}", cell, e.what()));
      if (is_first) continue;
      const Outcome not_run{Sentinel::kNotRun, reason_name(NotRunReason::kNotRunnableHere),
                            e.what(), ""};
      sweep.publish(cell, {{"sentinel", not_run.text()}, {"verdict", ""}, {"why", e.what()}}, "");
      return;
    }
  }
}

bool cancel_sweep(const SweepFolder& sweep) {
  sweep.set_cancelled(true);
  if (sweep.plan().options.executor == "slurm") return exec::cancel_jobs(sweep.job_names());
  // Its workers' children end with it.
  if (const pid_t pid = RunLock::holder(sweep.path()); pid > 0) ::kill(pid, SIGTERM);
  return true;
}

}  // namespace patchbench
