#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "ledger/ledger.h"
#include "unit/sample_run.h"

// The bounds are 1,000,000 records opened, filtered and rendered in 2 s and 300 MB on two cores,
// and 100,000 records imported in 10 s. A test run takes fewer records, counts the time that a
// process computed, as the machine may be busy, and lets an import take three times what is due,
// for a busy machine computes slower too; PATCHBENCH_SCALE=1 takes all of them and the time on the
// wall.

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Records asked for, 0 where none are: then a few, held against the time computed.
int asked_records() {
  const char* text = std::getenv("PATCHBENCH_SCALE");
  return text != nullptr ? std::max(std::atoi(text), 1000) : 0;
}
bool is_full() { return asked_records() > 0; }

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds that a process computed: what it took on a machine that others use too.
double computed(const rusage& usage) {
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double computed_here() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return computed(usage);
}

constexpr int kObservationsOfARun = 13;

/// The records of one run: thirteen observations and their verdict, as a reproduction leaves.
std::vector<Record> records_of_run(int number) {
  const std::vector<std::string> devices = {"cpu", "NVIDIA H200 (sm_90)", "NVIDIA A100 (sm_80)",
                                            "NVIDIA B200 (sm_100)"};
  RunContext context = sample::context(number);
  context.started = fmt::format("2026-{:02}-{:02}T{:02}:00:00Z", number % 12 + 1,
                                number / 12 % 28 + 1, number / 336 % 24);
  context.pin["version"] = fmt::format("0.{}.{}", number / 7 % 9, number % 7);
  context.machine["device"] = devices[static_cast<std::size_t>(number) % devices.size()];
  std::vector<Observation> seen;
  for (int i = 0; i < kObservationsOfARun; ++i) {
    const bool is_red = i < 5 && number % 7 < 4;
    seen.push_back(sample::observation("upstream", fmt::format("case_{:02}", i),
                                       i < 5 ? CaseRole::kTrigger : CaseRole::kControl,
                                       is_red ? Seen::kPresent : Seen::kAbsent));
  }
  std::vector<Record> records;
  std::vector<std::string> digests;
  for (const Observation& o : seen) {
    records.push_back(make_observation_record(context, o));
    digests.push_back(records.back().digest());
  }
  const QuestionContext question = sample::question();
  records.push_back(make_verdict_record(context, question, sentinel_of(seen, question), digests));
  return records;
}

/// `count` records as JSON lines, the runs numbered from `first`.
std::string lines_of_runs(int first, int count) {
  std::string text;
  for (int made = 0, run = first; made < count; ++run) {
    for (const Record& record : records_of_run(run)) {
      text += canonical_json(record.statement) + "\n";
      ++made;
    }
  }
  return text;
}

struct Spent {
  double wall_s = 0, computed_s = 0, peak_mib = 0;
  int status = -1;
  /// What is held against a bound.
  double seconds() const { return is_full() ? wall_s : computed_s; }
};

/// What an import takes, in a process of its own: a program started later is counted with
/// the memory that this one ever had.
Spent import_apart(const fs::path& ledger, int first, int count) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = lines_of_runs(first, count);
    const Clock::time_point start = Clock::now();
    const double before = computed_here();
    const int num_new = import_jsonl(*Ledger::open(ledger), text, "made");
    const Spent spent{seconds_since(start), computed_here() - before, 0, num_new >= count ? 0 : 1};
    ::_exit(::write(ends[1], &spent, sizeof spent) == sizeof spent ? 0 : 1);
  }
  ::close(ends[1]);
  Spent spent;
  if (::read(ends[0], &spent, sizeof spent) != sizeof spent) spent.status = -1;
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return spent;
}

/// Runs the program on two cores with its output thrown away.
Spent run_program(const fs::path& ledger, std::vector<std::string> words) {
  words.insert(words.begin(), {PATCHBENCH_BIN "/patchbench", "--ledger", ledger.string()});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const Clock::time_point start = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    cpu_set_t two;
    CPU_ZERO(&two);
    CPU_SET(0, &two);
    CPU_SET(1, &two);
    ::sched_setaffinity(0, sizeof two, &two);
    const int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, STDOUT_FILENO);
    ::setenv("PATCHBENCH_ROOT", PATCHBENCH_ROOT, 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Spent spent;
  rusage usage{};
  ::wait4(child, &spent.status, 0, &usage);
  spent.wall_s = seconds_since(start);
  spent.computed_s = computed(usage);
  spent.peak_mib = static_cast<double>(usage.ru_maxrss) / 1024;
  return spent;
}

TEST(LedgerScale, ImportAndStatusStayWithinTheirBounds) {
  const int num_records = is_full() ? asked_records() : 20'000;
  const int batch = std::min(num_records, 100'000);
  sample::TempFolder folder;
  const fs::path path = folder / "ledger.db";
  Spent slowest;
  int next_run = 1;
  for (int done = 0; done < num_records; done += batch) {
    const Spent spent = import_apart(path, next_run, batch);
    ASSERT_EQ(spent.status, 0);
    if (spent.seconds() > slowest.seconds()) slowest = spent;
    next_run += batch / (kObservationsOfARun + 1) + 1;
  }
  std::cout << fmt::format("import of {} records: {:.2f} s, {:.2f} s computed\n", batch,
                           slowest.wall_s, slowest.computed_s);
  EXPECT_LT(slowest.seconds(), 10.0 * batch / 100'000 * (is_full() ? 1 : 3));

  for (const std::vector<std::string>& words : {std::vector<std::string>{"status"},
                                                {"status", "liger_flce_none_bwd"},
                                                {"--json", "status"},
                                                {"status", "--since", "2026-06-01"}}) {
    const Spent spent = run_program(path, words);
    std::cout << fmt::format("{} of {} records: {:.2f} s, {:.2f} s computed, {:.0f} MiB\n",
                             fmt::join(words, " "), num_records, spent.wall_s, spent.computed_s,
                             spent.peak_mib);
    EXPECT_EQ(spent.status, 0);
    EXPECT_LT(spent.seconds(), 2);
    EXPECT_LT(spent.peak_mib, 300);
  }
}

}  // namespace
}  // namespace patchbench::ledger
