#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <sstream>

#include "cli/commands.h"
#include "core/error.h"
#include "ledger/ledger.h"
#include "unit/sample_run.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// What a command left behind. `error` is the message it threw.
struct Ended {
  int exit_code = 0;
  std::string out, err, error;
  Json json() const { return Json::parse(out); }
};

class LedgerCliTest : public ::testing::Test {
 protected:
  LedgerCliTest() { ::setenv("XDG_CONFIG_HOME", (folder_ / "config").c_str(), 1); }
  ~LedgerCliTest() override { ::unsetenv("XDG_CONFIG_HOME"); }

  Ended run(std::vector<std::string> words, bool json = false) {
    Context context;
    context.ledger = ledger_;
    context.json = json;
    CLI::App app;
    add_ledger_command(app, context);
    std::ostringstream out, err;
    std::streambuf* old_out = std::cout.rdbuf(out.rdbuf());
    std::streambuf* old_err = std::cerr.rdbuf(err.rdbuf());
    Ended result;
    words.insert(words.begin(), "ledger");
    std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
    try {
      app.parse(words);
    } catch (const Error& e) {
      result.error = e.what();
      EXPECT_EQ(result.error.find('\n'), std::string::npos) << result.error;
    } catch (const CLI::Error& e) {
      result.error = std::string("usage: ") + e.what();
    }
    std::cout.rdbuf(old_out);
    std::cerr.rdbuf(old_err);
    result.exit_code = context.exit_code;
    result.out = out.str();
    result.err = err.str();
    return result;
  }

  /// Whether `work` comes out true in a process that may write nowhere in the test's folder.
  bool holds_read_only(const std::function<bool()>& work) {
    const std::string folder = folder_ / "";
    constexpr unsigned long kReadOnly =
        MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    const pid_t child = ::fork();
    if (child == 0) {
      const bool is_read_only =
          ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
          ::mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
          ::mount(nullptr, folder.c_str(), nullptr, kReadOnly, nullptr) == 0;
      if (!is_read_only) std::cerr << "no mount: " << std::strerror(errno) << "\n";
      ::_exit(is_read_only && work() ? 0 : 1);
    }
    int status = -1;
    return ::waitpid(child, &status, 0) == child && status == 0;
  }

  void fill() { ledger::Ledger::open(ledger_)->append(sample::run()); }

  std::string file_text(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  sample::TempFolder folder_;
  fs::path ledger_ = folder_ / "ledger.db";
};

TEST_F(LedgerCliTest, OnAReadOnlyFileSystemItIsReadAndAnAppendIsRefused) {
  fill();
  EXPECT_TRUE(holds_read_only([&] {
    for (const char* verb : {"verify", "list", "export"}) {
      const Ended ended = run({verb});
      if (!ended.error.empty() || ended.exit_code != 0 || ended.out.empty()) {
        std::cerr << verb << ": " << ended.error << ended.out << "\n";
        return false;
      }
    }
    const std::string digest = sample::run().back().digest();
    return run({"evict", digest, "--why", "x"}).error.find("readonly") != std::string::npos;
  }));
}

TEST_F(LedgerCliTest, OnAReadOnlyFileSystemALogWithRecordsIsNotPassedOver) {
  fill();
  std::ofstream(ledger_.string() + "-wal") << "records";
  EXPECT_TRUE(holds_read_only([&] {
    const Ended ended = run({"verify"});
    std::cerr << ended.error << ended.out;
    return ended.error.find("ledger.db-wal holds records") != std::string::npos;
  }));
}

TEST_F(LedgerCliTest, VerifySaysCountHeadAndWhatItCannotSee) {
  fill();
  const Ended ended = run({"verify"});
  const auto report = ledger::Ledger::open(ledger_)->verify();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_NE(ended.out.find("3 records hold; head " + report.head), std::string::npos) << ended.out;
  EXPECT_NE(ended.err.find("truncation"), std::string::npos);
  const Json json = run({"verify", "--expect", "3:" + report.head}, true).json();
  EXPECT_EQ(json.at("ok"), true);
  EXPECT_EQ(json.at("count"), 3);
  EXPECT_EQ(json.at("note"), "");
}

TEST_F(LedgerCliTest, VerifyEndsInOneWhereItDoesNotHold) {
  fill();
  const Ended ended = run({"verify", "--expect", "4:" + std::string(64, 'a')});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_NE(ended.out.find("does not hold: cut off"), std::string::npos) << ended.out;
}

TEST_F(LedgerCliTest, AMissingLedgerIsNotMade) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"verify"},
                                                {"export"},
                                                {"list"},
                                                {"show", "abcd"},
                                                {"evict", "abcd", "--why", "x"}}) {
    EXPECT_NE(run(words).error.find("no ledger there"), std::string::npos) << words[0];
  }
  EXPECT_FALSE(fs::exists(ledger_));
}

TEST_F(LedgerCliTest, MalformedWordsAreOneClearLine) {
  fill();
  for (const char* expect : {"3", "three:abc", "3:abc", ":", "-1:aa"}) {
    EXPECT_NE(run({"verify", "--expect", expect}).error.find("COUNT:HEAD"), std::string::npos)
        << expect;
  }
  EXPECT_NE(run({"export", "--since", "yesterday"}).error.find("--since"), std::string::npos);
  EXPECT_NE(run({"export", "liger_flce_none_bw"}).error.find("did you mean liger_flce_none_bwd"),
            std::string::npos);
  EXPECT_NE(run({"show", "xyz"}).error.find("digest"), std::string::npos);
  EXPECT_NE(run({"show", std::string(64, '0')}).error.find("no record"), std::string::npos);
  EXPECT_NE(run({"verify", (folder_ / "none.jsonl").string()}).error, "");
  EXPECT_NE(run({"import"}).error.find("usage"), std::string::npos);
}

TEST_F(LedgerCliTest, ExportAndImportGoRound) {
  fill();
  const fs::path file = folder_ / "records.jsonl";
  const Json written = run({"export", "-o", file.string()}, true).json();
  EXPECT_EQ(written.at("count"), 3);
  EXPECT_EQ(run({"export"}).out, file_text(file));
  const std::string expect = "3:" + written.at("head").get<std::string>();
  EXPECT_EQ(run({"verify", file.string(), "--expect", expect}).exit_code, 0);
  ledger_ = folder_ / "other.db";
  EXPECT_EQ(run({"import", file.string()}, true).json().at("new"), 3);
  EXPECT_NE(run({"import", file.string()}).out.find("0 new records"), std::string::npos);
  EXPECT_NE(run({"verify"}).out.find("3 unsigned imports (never counted)"), std::string::npos);
}

TEST_F(LedgerCliTest, ExportTakesPackAndDate) {
  fill();
  EXPECT_EQ(run({"export", "liger_flce_none_bwd", "--since", "2026-02-03"}).out,
            run({"export"}).out);
  EXPECT_NE(run({"export", "--since", "2026-02-03T04:05:07Z"}).error.find("no record matches"),
            std::string::npos);
}

TEST_F(LedgerCliTest, ImportTakesAllFilesOrNone) {
  fill();
  const fs::path good = folder_ / "good.jsonl", bad = folder_ / "bad.jsonl";
  run({"export", "-o", good.string()});
  std::ofstream(bad) << "{}\n";
  const fs::path from = ledger_;
  ledger_ = folder_ / "other.db";
  EXPECT_NE(run({"import", good.string(), bad.string()}).error.find("bad.jsonl:1: "),
            std::string::npos);
  EXPECT_TRUE(ledger::Ledger::open(ledger_)->all().empty());
  EXPECT_NE(run({"import", from.string()}).error.find("export it first"), std::string::npos);
}

TEST_F(LedgerCliTest, SignedRecordsCountForWhoTrustsTheKey) {
  fill();
  const fs::path key = folder_ / "key.pem", file = folder_ / "signed.jsonl",
                 trusted = folder_ / "trusted_keys.json";
  const Json entry = run({"keygen", key.string()}, true).json();
  std::ofstream(trusted) << Json{{"keys", {entry}}}.dump();
  run({"export", "--key", key.string(), "-o", file.string()});
  EXPECT_NE(run({"verify", file.string()}).err.find("not trusted"), std::string::npos);
  EXPECT_EQ(run({"verify", file.string(), "--trusted", trusted.string()}).err.find("not trusted"),
            std::string::npos);
  ledger_ = folder_ / "other.db";
  EXPECT_NE(
      run({"import", file.string(), "--trusted", trusted.string()}).out.find("3 signed imports"),
      std::string::npos);
  EXPECT_NE(run({"keygen", key.string()}).error.find("never overwritten"), std::string::npos);
}

TEST_F(LedgerCliTest, TheUsersOwnTrustFileIsTheDefault) {
  fill();
  const fs::path key = folder_ / "key.pem", file = folder_ / "signed.jsonl";
  const Json entry = run({"keygen", key.string()}, true).json();
  fs::create_directories(folder_ / "config" / "patchbench");
  std::ofstream(folder_ / "config" / "patchbench" / "trusted_keys.json")
      << Json{{"keys", {entry}}}.dump();
  run({"export", "--key", key.string(), "-o", file.string()});
  ledger_ = folder_ / "other.db";
  EXPECT_NE(run({"import", file.string()}).out.find("3 signed imports"), std::string::npos);
}

TEST_F(LedgerCliTest, ShowPrintsOneRecord) {
  fill();
  const Record record = sample::run()[2];
  const Json json = run({"show", record.digest().substr(0, 12)}, true).json();
  EXPECT_EQ(json.at("statement"), record.statement);
  EXPECT_EQ(json.at("index"), 2);
  EXPECT_EQ(json.at("evicted"), false);
  EXPECT_NE(run({"show", record.digest()}).out.find("row 2  verdict  " + record.digest()),
            std::string::npos);
}

TEST_F(LedgerCliTest, EvictAppendsOnce) {
  fill();
  const std::string digest = sample::run()[2].digest();
  EXPECT_NE(run({"evict", digest, "--why", "  "}).error.find("say why"), std::string::npos);
  EXPECT_NE(run({"evict", digest, "--why", "measured on a broken driver"}).out.find(digest),
            std::string::npos);
  EXPECT_NE(run({"evict", digest, "--why", "again"}).error.find("evicted already"),
            std::string::npos);
  EXPECT_EQ(run({"show", digest}, true).json().at("evicted"), true);
  EXPECT_EQ(run({"verify"}, true).json().at("count"), 4);
  EXPECT_NE(run({"list"}).out.find("evicted:"), std::string::npos);
}

TEST_F(LedgerCliTest, ListShowsUnsignedImportsApart) {
  fill();
  ledger::Ledger::open(ledger_)->append(sample::run(2), "import");
  const Ended ended = run({"list"});
  const auto apart = ended.out.find("unsigned imports (never counted):");
  ASSERT_NE(apart, std::string::npos);
  EXPECT_LT(ended.out.find(sample::run(1)[0].digest().substr(0, 10)), apart);
  EXPECT_GT(ended.out.find(sample::run(2)[0].digest().substr(0, 10)), apart);
  const Json json = run({"list"}, true).json();
  EXPECT_EQ(json.at("records").size(), 3u);
  EXPECT_EQ(json.at("unsigned_imports").size(), 3u);
}

}  // namespace
}  // namespace patchbench::cli
