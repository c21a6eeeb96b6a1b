#include <gtest/gtest.h>

#include "report/table.h"
#include "status/upstream_threads.h"
#include "unit/pack_repository.h"

namespace patchbench::cli {
namespace {

constexpr const char* kManifest = sample::PackRepository::kManifest;

/// some_pack is to become a comment on owner/thing#1; its records and claims hold.
class FilingTest : public ::testing::Test {
 protected:
  FilingTest() {
    const std::vector<Record> records = sample::run_of("some_pack");
    repository_.use_real_upstream();
    repository_.put_evidence("some_pack", records);
    repository_.replace(kManifest, std::string(64, 'a'), records.back().digest());
    thread("open", "2026-03-01");
  }

  /// The thread that the pack names, as it was seen.
  void thread(const std::string& state, const std::string& checked, const std::string& more = "") {
    repository_.put("env/threads.json",
                    R"({"threads": [{"thread": "owner/thing#1", "about": "a defect", "state": ")" +
                        state + R"(", "seen": ")" + checked + R"(", "source": "the page", )" +
                        more + R"("packs": [{"slug": "some_pack", "relation": "neighbour"}]}]})");
  }
  void related(const std::string& relation, const std::string& state) {
    const std::string status = state == "unchecked" ? "" : "2026-03-01";
    repository_.put(
        "env/threads.json",
        R"({"threads": [{"thread": "owner/thing#1", "about": "a", "state": "open", "seen": "2026-03-01", "source": "p", "packs": [{"slug": "some_pack", "relation": "neighbour"}]},
        {"thread": "owner/thing#2", "about": "b", "state": ")" +
            state + R"(", "seen": ")" + status +
            R"(", "source": "p", "packs": [{"slug": "some_pack", "relation": ")" + relation +
            R"("}]}]})");
  }
  /// A second pack of the same group, which differs in `from`.
  void put_other_pack(const std::string& from, const std::string& to) {
    std::string other = sample::PackRepository::read(repository_.path(kManifest));
    for (const auto& [old, now] :
         {std::pair<std::string, std::string>{"\"some_pack\"", "\"other_pack\""},
          {"\"number\": 42", "\"number\": 43"},
          {from, to}})
      other.replace(other.find(old), old.size(), now);
    repository_.put("packs/other_pack/manifest.json", other);
  }
  sample::Ended filing(const std::string& day = "2026-03-10", bool json = true) {
    return repository_.run(add_status_command, {"status", "--day", day, "filing", "some_pack"},
                           json);
  }
  /// All that blocks the pack, as one text; "" if it can go out.
  std::string blocks(const std::string& day = "2026-03-10") {
    const sample::Ended got = filing(day);
    if (!got.error.empty()) return got.error;
    const Json pack = got.json().at("packs").at(0);
    EXPECT_EQ(pack.at("can_go").get<bool>(), pack.at("blocks").empty());
    EXPECT_EQ(got.exit_code, pack.at("blocks").empty() ? 0 : 1);
    std::string text;
    for (const Json& block : pack.at("blocks")) text += block.get<std::string>() + "\n";
    return text;
  }

  sample::PackRepository repository_;
};

TEST_F(FilingTest, WhatNothingBlocksCanGoOut) {
  EXPECT_EQ(blocks(), "");
  const sample::Ended got = filing("2026-03-10", false);
  EXPECT_NE(
      got.out.find("Can go out today, on a person's word\n  some_pack · comment · owner/thing · "
                   "owner/thing#1"),
      std::string::npos)
      << got.out;
  std::istringstream lines(got.out);
  for (std::string line; std::getline(lines, line);) {
    const bool is_command = line.starts_with("     look: ") || line.starts_with("     send: ");
    EXPECT_LE(report::display_width(line), is_command ? 200 : 80) << line;
  }
}

TEST_F(FilingTest, WhatToLookAtAndWhatSendsItAreCommands) {
  const std::string out = filing("2026-03-10", false).out;
  for (const char* line : {"look: gh issue view 1 --repo owner/thing --comments\n",
                           "look: gh search issues ops --repo owner/thing --include-prs\n",
                           "look: gh api repos/owner/thing/commits/HEAD --jq .sha\n",
                           "send: patchbench bundle some_pack out --from \"Name <mail>\"\n",
                           "send: gh issue comment 1 --repo owner/thing --body-file out/body.md\n"})
    EXPECT_NE(out.find(line), std::string::npos) << out;
  repository_.replace(kManifest, "\"kind\": \"comment\"", "\"kind\": \"issue\"");
  EXPECT_NE(filing("2026-03-10", false).out.find("send: gh issue create --repo owner/thing"),
            std::string::npos);
  repository_.replace(kManifest, "\"answer\": \"it is known to none\", ", "");
  EXPECT_EQ(filing("2026-03-10", false).out.find("send: "), std::string::npos);
}

TEST_F(FilingTest, ARiskWithoutAnAnswerBlocks) {
  repository_.replace(kManifest, "\"answer\": \"it is known to none\", ", "");
  EXPECT_NE(blocks().find("risk: none known; the report has no answer to it"), std::string::npos);
}

TEST_F(FilingTest, MainMustBeMeasuredLatelyAndHaveIt) {
  repository_.replace(kManifest, "\"applies\": true", "\"applies\": false");
  EXPECT_NE(blocks().find("the patch does not apply to main of liger-kernel at bbbbbbbb"),
            std::string::npos)
      << blocks();
  repository_.replace(kManifest, "\"shows\": \"present\"", "\"shows\": \"absent\"");
  EXPECT_NE(blocks().find("at bbbbbbbb (2026-03-01) no longer has it"), std::string::npos);
  repository_.replace(kManifest,
                      "\"date\": \"2026-03-01\", \"shows\": \"absent\", \"applies\": false",
                      "\"date\": \"2026-01-01\", \"shows\": \"present\"");
  EXPECT_NE(blocks().find("has it, but that is 68 days ago"), std::string::npos) << blocks();
  repository_.replace(kManifest, "\"main\": {", "\"kept\": {");
  EXPECT_NE(blocks().find("unknown key"), std::string::npos);
}

TEST_F(FilingTest, AnOldSightingOfANeighbourBlocks) {
  related("neighbour", "open");
  EXPECT_EQ(blocks(), "");
  repository_.replace("env/threads.json", R"("about": "b", "state": "open", "seen": "2026-03-01")",
                      R"("about": "b", "state": "open", "seen": "2026-02-01")");
  EXPECT_NE(blocks().find("owner/thing#2: open when seen on 2026-02-01, 37 days ago"),
            std::string::npos);
}

TEST_F(FilingTest, AThreadThatIsNotOpenBlocks) {
  thread("closed", "2026-03-01");
  EXPECT_NE(blocks().find("owner/thing#1: closed (2026-03-01)"), std::string::npos);
  thread("merged", "2026-03-01");
  EXPECT_NE(blocks().find("owner/thing#1: merged"), std::string::npos);
  thread("superseded", "2026-03-01", R"("superseded_by": "owner/thing#9", )");
  EXPECT_NE(blocks().find("superseded by owner/thing#9"), std::string::npos);
  thread("unchecked", "");
  EXPECT_NE(blocks().find("owner/thing#1: unchecked"), std::string::npos);
  repository_.put("env/threads.json", R"({"threads": []})");
  EXPECT_NE(blocks().find("owner/thing#1: unchecked"), std::string::npos);
}

TEST_F(FilingTest, AStateGrowsOld) {
  EXPECT_EQ(blocks("2026-03-31"), "");
  EXPECT_NE(blocks("2026-04-01").find("seen on 2026-03-01, 31 days ago"), std::string::npos);
}

TEST_F(FilingTest, ThreadsAboutTheSameBlock) {
  related("fixes", "merged");
  EXPECT_NE(blocks().find("owner/thing#2: upstream merged a fix"), std::string::npos);
  related("narrower", "unchecked");
  EXPECT_NE(blocks().find("owner/thing#2 (narrower): unchecked"), std::string::npos);
  related("reports", "open");
  EXPECT_EQ(blocks(), "");  // a comment does not compete with it
  repository_.replace(kManifest, "\"kind\": \"comment\"", "\"kind\": \"issue\"");
  EXPECT_NE(blocks().find("comment there instead"), std::string::npos);
}

TEST_F(FilingTest, RecordsMustShowIt) {
  repository_.put_evidence("some_pack", {});
  repository_.put("reports/evidence/some_pack/cpu.jsonl",
                  canonical_json(sample::run_of("some_pack").front().statement) + "\n");
  const std::string got = blocks();
  EXPECT_NE(got.find("1 cited record(s) do not hold"), std::string::npos) << got;
  EXPECT_NE(got.find("no record shows it on the tested release"), std::string::npos);
}

TEST_F(FilingTest, APullRequestNeedsAValidatedEdit) {
  repository_.replace(kManifest, "\"kind\": \"comment\"", "\"kind\": \"pull_request\"");
  EXPECT_NE(blocks().find("no record validates the edit"), std::string::npos);
}

TEST_F(FilingTest, HeldIsHeldAndDependenciesAreKnown) {
  repository_.replace(kManifest, "\"kind\": \"comment\"", "\"kind\": \"held\"");
  EXPECT_NE(blocks().find("held: none known"), std::string::npos);
  repository_.replace(kManifest, "\"depends_on\": []", "\"depends_on\": [\"some_pakc\"]");
  EXPECT_NE(blocks().find("depends on \"some_pakc\", which is no pack"), std::string::npos);
}

TEST_F(FilingTest, AGroupGoesOutTogether) {
  put_other_pack("\"kind\": \"comment\"", "\"kind\": \"held\"");
  EXPECT_NE(blocks().find("goes out with its group one; blocked there: other_pack"),
            std::string::npos);
}

TEST_F(FilingTest, AGroupGoesOutWithoutWhatUpstreamHasMerged) {
  put_other_pack("\"owner/thing#1\"", "\"owner/thing#2\"");
  related("neighbour", "merged");
  EXPECT_EQ(blocks(), "");
  EXPECT_NE(filing().out.find("goes out without other_pack, which upstream has merged"),
            std::string::npos);
}

TEST_F(FilingTest, BadInputIsOneLine) {
  EXPECT_EQ(blocks("2026-02-30"), "'2026-02-30' is no day; 2026-01-31 is");
  thread("open", "");
  EXPECT_NE(blocks().find("env/threads.json:1: /threads/0/seen: a day"), std::string::npos);
  thread("opened", "2026-03-01");
  EXPECT_NE(blocks().find("env/threads.json:1: /threads/0/state"), std::string::npos) << blocks();
}

TEST(Threads, TheCommittedOnesAreWellFormed) {
  Context context;
  context.root = PATCHBENCH_ROOT;
  EXPECT_GE(read_upstream_threads(context).size(), 10u);
}

}  // namespace
}  // namespace patchbench::cli
