#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>

#include "ledger/ledger.h"
#include "unit/sample_run.h"

// PATCHBENCH_KILLS sets how often a writer is killed (default 50), PATCHBENCH_KILL_SEED the
// moments, PATCHBENCH_KILL_REPORT a file to write what was measured to.

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kKillsPerLedger = 25;
constexpr std::size_t kDigestBytes = 64;

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

/// The batch a writer appends at its i-th turn: a whole run with its verdict, or a single record.
std::vector<Record> batch_of(int writer, int i) {
  const int run = writer * 100'000 + i;
  if (i % 3 == 0) return sample::run(run);
  return {make_record("measurement", sample::context(run), {{"i", i}})};
}

/// Appends until it is killed; tells each digest on `acknowledge` only after append has returned.
[[noreturn]] void write_for_ever(const fs::path& path, int writer, int acknowledge) {
  try {
    const auto ledger = Ledger::open(path);
    for (int i = 0;; ++i) {
      const std::vector<Record> batch = batch_of(writer, i);
      ledger->append(batch);
      std::string digests;
      for (const Record& record : batch) digests += record.digest();
      if (::write(acknowledge, digests.data(), digests.size()) !=
          static_cast<ssize_t>(digests.size()))
        ::_exit(3);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "writer: %s\n", e.what());
    ::_exit(2);
  }
}

/// When a writer is killed: `delay` after it has acknowledged so many records. Counting its own
/// steps keeps the moments spread over its work on a busy machine too.
struct Moment {
  std::size_t num_acknowledged = 0;
  std::chrono::microseconds delay{0};
};

/// What a writer had acknowledged when it was killed.
struct Killed {
  std::set<std::string> acknowledged;
  bool was_killed = false;  ///< false: it ended by itself, which is a failure
};

Killed kill_a_writer(const fs::path& path, int writer, const Moment& moment) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    write_for_ever(path, writer, ends[1]);
  }
  ::close(ends[1]);
  std::string said;
  const auto read_some = [&] {
    char buffer[4096];
    const ssize_t length = ::read(ends[0], buffer, sizeof buffer);
    if (length > 0) said.append(buffer, static_cast<std::size_t>(length));
    return length > 0;
  };
  bool is_writing = true;
  while (is_writing && said.size() < moment.num_acknowledged * kDigestBytes)
    is_writing = read_some();
  const auto deadline = Clock::now() + moment.delay;
  while (is_writing) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (left <= 0) break;
    pollfd one{ends[0], POLLIN, 0};
    const timespec wait{left / 1'000'000'000, left % 1'000'000'000};
    if (::ppoll(&one, 1, &wait, nullptr) > 0) is_writing = read_some();
  }
  ::kill(child, SIGKILL);
  while (read_some()) continue;  // what it said before it died is still in the pipe
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  Killed killed{.was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL};
  for (std::size_t at = 0; at + kDigestBytes <= said.size(); at += kDigestBytes) {
    killed.acknowledged.insert(said.substr(at, kDigestBytes));
  }
  return killed;
}

/// What a lane of kills came to.
struct Lane {
  int num_kills = 0, num_ledgers = 0, num_broken = 0, num_refused_appends = 0,
      num_partial_batches = 0;
  int64_t num_acknowledged = 0, num_lost = 0, num_records = 0;
  double seconds = 0;
};

/// Batches of which some records are there and some are not.
int partial_batches(const std::set<std::string>& there, int writer) {
  int num_partial = 0;
  for (int i = 0;; ++i) {
    std::size_t num_there = 0;
    const std::vector<Record> batch = batch_of(writer, i);
    for (const Record& record : batch) num_there += there.contains(record.digest());
    if (num_there == 0) return num_partial;
    num_partial += num_there != batch.size();
  }
}

void check_after_kill(const fs::path& path, const Killed& killed, int writer, Lane& lane) {
  const auto ledger = Ledger::open(path);
  const VerifyReport report = ledger->verify();
  if (!report.ok) {
    ++lane.num_broken;
    ADD_FAILURE() << "after kill " << writer << ": " << report.where;
  }
  std::set<std::string> there;
  for (const Entry& entry : ledger->all()) there.insert(entry.digest);
  for (const std::string& digest : killed.acknowledged) lane.num_lost += !there.contains(digest);
  lane.num_acknowledged += static_cast<int64_t>(killed.acknowledged.size());
  lane.num_partial_batches += partial_batches(there, writer);
  const Record next = make_record("measurement", sample::context(writer), {{"after_kill", writer}});
  lane.num_refused_appends += ledger->append({next}) != 1;
}

void write_report(const Lane& lane, int seed, const std::string& started) {
  const char* path = std::getenv("PATCHBENCH_KILL_REPORT");
  if (path == nullptr || *path == '\0') return;
  const Json json = {{"what", "SIGKILL of a process that appends to a ledger, at random moments"},
                     {"test", "ledger_kill_test"},
                     {"started", started},
                     {"seed", seed},
                     {"kills", lane.num_kills},
                     {"kills_per_ledger", kKillsPerLedger},
                     {"records_acknowledged_before_a_kill", lane.num_acknowledged},
                     {"records_in_the_ledgers", lane.num_records},
                     {"acknowledged_records_lost", lane.num_lost},
                     {"partial_batches", lane.num_partial_batches},
                     {"failed_verifications", lane.num_broken},
                     {"refused_appends_after_a_kill", lane.num_refused_appends},
                     {"duration_s", std::round(lane.seconds * 10) / 10}};
  std::ofstream(path) << json.dump(2) << "\n";
}

TEST(LedgerKill, WhatWasAcknowledgedIsThereAfterKillNine) {
  const int num_kills = from_environment("PATCHBENCH_KILLS", 50);
  const int seed = from_environment("PATCHBENCH_KILL_SEED", 1);
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const std::string started_at = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto started = Clock::now();
  Lane lane;
  while (lane.num_kills < num_kills) {
    const sample::TempFolder folder;
    const fs::path path = folder / "ledger.db";
    ++lane.num_ledgers;
    for (int i = 0; i < kKillsPerLedger && lane.num_kills < num_kills; ++i) {
      // Log-uniform from 0.05 ms to 50 ms: within one append, or some appends later. A moment that
      // waits for nothing falls into opening and, on a new file, creating.
      const double exponent = std::uniform_real_distribution<double>(0, 1)(random);
      const Moment moment{
          .num_acknowledged = random() % 8,
          .delay = std::chrono::microseconds(static_cast<int64_t>(50 * std::pow(1000, exponent)))};
      const int writer = lane.num_kills++;
      const Killed killed = kill_a_writer(path, writer, moment);
      ASSERT_TRUE(killed.was_killed) << "writer " << writer << " ended by itself";
      check_after_kill(path, killed, writer, lane);
    }
    lane.num_records += Ledger::open(path)->verify().count;
  }
  lane.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  write_report(lane, seed, started_at);
  EXPECT_EQ(lane.num_lost, 0);
  EXPECT_EQ(lane.num_broken, 0);
  EXPECT_EQ(lane.num_partial_batches, 0);
  EXPECT_EQ(lane.num_refused_appends, 0);
  EXPECT_GT(lane.num_acknowledged, num_kills)
      << "the writers hardly wrote: the kills prove nothing";
}

}  // namespace
}  // namespace patchbench::ledger
