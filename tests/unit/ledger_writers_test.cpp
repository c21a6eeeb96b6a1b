#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "ledger/ledger.h"
#include "unit/sample_run.h"

namespace patchbench::ledger {
namespace {

constexpr int kNumWriters = 10, kRecordsPerWriter = 25;

Record record_of(int writer, int i) {
  return make_record("measurement", sample::context(writer), {{"writer", writer}, {"i", i}});
}

/// Starts a process that opens the ledger itself and appends its records one by one; 0 if each was
/// new.
pid_t start_writer(const std::filesystem::path& path, int writer) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 0;
  try {
    const auto ledger = Ledger::open(path);
    for (int i = 0; i < kRecordsPerWriter; ++i)
      status |= ledger->append({record_of(writer, i)}) != 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "writer %d: %s\n", writer, e.what());
    status = 1;
  }
  ::_exit(status);
}

void expect_all_succeed(const std::vector<pid_t>& children) {
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

TEST(LedgerWriters, TenProcessesOnANewFileLoseAndDoubleNothing) {
  const sample::TempFolder folder;
  const auto path = folder / "ledger.db";  // made by whichever comes first
  std::vector<pid_t> children;
  for (int writer = 0; writer < kNumWriters; ++writer)
    children.push_back(start_writer(path, writer));
  expect_all_succeed(children);
  const auto ledger = Ledger::open(path);
  const VerifyReport report = ledger->verify();
  EXPECT_TRUE(report.ok) << report.where;
  EXPECT_EQ(report.count, kNumWriters * kRecordsPerWriter);
  std::map<int, int> next;
  for (const Entry& entry : ledger->all()) {
    const Json& body = entry.record.predicate();
    EXPECT_EQ(body.at("i"), next[body.at("writer").get<int>()]++)
        << "a writer's own order was lost";
  }
  EXPECT_EQ(next.size(), static_cast<std::size_t>(kNumWriters));
}

TEST(LedgerWriters, TheSameRunFromManyProcessesIsTakenOnce) {
  const sample::TempFolder folder;
  const auto path = folder / "ledger.db";
  std::vector<pid_t> children;
  for (int writer = 0; writer < kNumWriters; ++writer) {
    const pid_t child = ::fork();
    if (child == 0) {
      int status = 1;
      try {
        const int num_new = Ledger::open(path)->append(sample::run());
        status = num_new == 3 || num_new == 0 ? 0 : 1;  // never a part of it
      } catch (const std::exception& e) {
        std::fprintf(stderr, "writer %d: %s\n", writer, e.what());
      }
      ::_exit(status);
    }
    children.push_back(child);
  }
  expect_all_succeed(children);
  EXPECT_EQ(Ledger::open(path)->all().size(), 3u);
  EXPECT_TRUE(Ledger::open(path)->verify().ok);
}

TEST(LedgerWriters, AReaderSeesWholeRunsWhileOthersWrite) {
  const sample::TempFolder folder;
  const auto path = folder / "ledger.db";
  const auto ledger = Ledger::open(path);
  constexpr int kNumRuns = 40;
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 0;
    try {
      const auto mine = Ledger::open(path);
      for (int i = 0; i < kNumRuns; ++i) mine->append(sample::run(i));
    } catch (const std::exception&) {
      status = 1;
    }
    ::_exit(status);
  }
  std::size_t num_seen = 0;
  int num_reads = 0;
  while (num_seen < 3u * kNumRuns && num_reads < 100'000) {
    const VerifyReport report = ledger->verify();
    ASSERT_TRUE(report.ok) << report.where;
    num_seen = ledger->all().size();
    EXPECT_EQ(num_seen % 3, 0u);
    EXPECT_GE(num_seen, static_cast<std::size_t>(report.count));
    ++num_reads;
  }
  expect_all_succeed({child});
  EXPECT_EQ(ledger->all().size(), 3u * kNumRuns);
}

}  // namespace
}  // namespace patchbench::ledger
