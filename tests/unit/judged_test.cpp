#include "core/judged.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/process.h"
#include "ledger/jsonl.h"
#include "workbench/context.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = PATCHBENCH_ROOT;
const fs::path kTable = kRoot / "reports/evidence/judged.json";

Context context() {
  Context made;
  made.root = kRoot;
  return made;
}

/// Every manifest digest that a committed record names.
std::set<std::string> recorded() {
  std::set<std::string> digests;
  for (const auto& item : fs::recursive_directory_iterator(kRoot / "reports/evidence")) {
    if (item.path().extension() != ".jsonl") continue;
    for (const ledger::Incoming& one :
         ledger::read_jsonl(read_file(item.path()), item.path().string())) {
      const Json& predicate = one.record.predicate();
      if (predicate.contains("context"))
        digests.insert(predicate.at("context").at("manifest_sha256").get<std::string>());
    }
  }
  return digests;
}

std::string git(const std::vector<std::string>& words) {
  std::vector<std::string> argv = {"git", "-C", kRoot.string()};
  argv.insert(argv.end(), words.begin(), words.end());
  const exec::Exit done = exec::run({.argv = argv});
  return done.ok() ? done.out : "";
}

/// Digest of a manifest's bytes -> its judged digest, of every manifest of git's history and of the
/// tree; none where the history is not here.
std::optional<std::map<std::string, std::string>> known() {
  if (git({"rev-parse", "--is-shallow-repository"}) != "false\n") return std::nullopt;
  std::map<std::string, std::string> digests;
  std::istringstream objects(
      git({"rev-list", "--objects", "--full-history", "HEAD", "--", "packs"}));
  for (std::string id, line; objects >> id && std::getline(objects, line);) {
    if (!line.ends_with("/manifest.json")) continue;
    const std::string text = git({"cat-file", "blob", id});
    digests[sha256_hex(text)] = judged_digest(parse_json(text, line));
  }
  for (const std::string& slug : context().slugs()) {
    const Manifest pack = context().manifest(slug);
    digests[pack.sha256] = pack.judged;
  }
  return digests;
}

/// The table as it is written: one judged digest a line.
std::string table_of(const std::set<std::string>& recorded,
                     const std::map<std::string, std::string>& known) {
  std::map<std::string, std::string> rows;
  std::string unknown, text;
  for (const std::string& manifest : recorded) {
    const auto at = known.find(manifest);
    std::string& row = at == known.end() ? unknown : rows[at->second];
    row += (row.empty() ? "\"" : ", \"") + manifest + "\"";
  }
  for (const auto& [judged, manifests] : rows)
    text += (text.empty() ? "" : ",\n") + ("  [\"" + judged + "\", " + manifests) + "]";
  return "{\n \"judged\": [\n" + text + "\n ],\n \"unknown\": [" + unknown + "]\n}\n";
}

TEST(Judged, TheTableHasEveryRecordedManifestAsGitsHistoryHasIt) {
  const std::set<std::string> all = recorded();
  ASSERT_GT(all.size(), 100u);
  const auto history = known();
  if (history && std::getenv("PATCHBENCH_UPDATE") != nullptr)
    std::ofstream(kTable) << table_of(all, *history);
  const std::string text = read_file(kTable);
  JudgedDigests::parse(text, "judged.json");
  for (const std::string& digest : all)
    EXPECT_NE(text.find(digest), std::string::npos)
        << digest << ": not in reports/evidence/judged.json; run PATCHBENCH_UPDATE=1 judged_test";
  if (!history) GTEST_SKIP() << "git's history is not here: the table is not made again";
  EXPECT_EQ(text, table_of(all, *history)) << "run PATCHBENCH_UPDATE=1 judged_test";
}

TEST(Judged, EveryManifestOfTheTreeHasItsOwn) {
  std::set<std::string> digests;
  for (const std::string& slug : context().slugs()) {
    const Manifest pack = context().manifest(slug);
    EXPECT_EQ(context().judged().of(pack.sha256), pack.judged);
    EXPECT_TRUE(digests.insert(pack.judged).second) << slug;
  }
}

TEST(Judged, ProseKeepsItAndWhatIsJudgedChangesIt) {
  const Json pack = parse_json(read_file(kRoot / "packs/fp8_storage_dispatch/manifest.json"), "");
  const auto with = [&](const char* pointer, const Json& value) {
    Json changed = pack;
    changed[Json::json_pointer(pointer)] = value;
    EXPECT_NE(changed, pack) << pointer;
    return judged_digest(changed);
  };
  for (const char* prose :
       {"/title", "/number", "/classes/0/meaning", "/scope/0/claim", "/scope/0/why",
        "/mitigation/exactness", "/waivers", "/filing/risk", "/lifecycle/review_on", "/trigger",
        "/upstreams/0/functions", "/explore/seconds", "/waived_regions/0/reason", "/impact"})
    EXPECT_EQ(with(prose, "other"), judged_digest(pack)) << prose;
  for (const char* judged :
       {"/slug", "/kind", "/classes/0/name", "/cases/0/role", "/cases/0/axes/batch",
        "/cases/0/judged_on", "/cases/0/subjects", "/upstreams/0/red_pin", "/subjects",
        "/mitigation/modes", "/explore/spaces/0/count", "/waived_regions/0/region", "/new"})
    EXPECT_NE(with(judged, "other"), judged_digest(pack)) << judged;
}

TEST(Judged, UsualAxesAreJudgedAsIfEachCaseWroteThem) {
  const auto manifest = [](const char* cases) { return Json::parse(cases); };
  const Json whole = manifest(R"({"cases": [{"name": "a", "axes": {"rows": 2, "dtype": "x"}},
                                            {"name": "b", "axes": {"dtype": "x"}}]})");
  const Json usual = manifest(R"({"usual": {"rows": 2, "dtype": "x"},
                                  "cases": [{"name": "a", "axes": {}},
                                            {"name": "b", "axes": {"rows": null}}]})");
  EXPECT_EQ(with_whole_cases(usual), whole);
  EXPECT_EQ(judged_digest(usual), judged_digest(whole));
  Json other = usual;
  other["usual"]["rows"] = 3;
  EXPECT_NE(judged_digest(other), judged_digest(whole));
}

TEST(JudgedDigests, WhatNobodyKnowsIsComparedByBytes) {
  const std::string a(64, 'a'), b(64, 'b'), c(64, 'c'), d(64, 'd');
  const JudgedDigests digests = JudgedDigests::parse(
      Json{{"judged", Json::array({{d, a, b}})}, {"unknown", {c}}}.dump(), "judged.json");
  EXPECT_TRUE(digests.is_same(a, b));
  EXPECT_FALSE(digests.is_same(a, c));
  EXPECT_TRUE(digests.is_same(c, c));
  for (const char* bad :
       {"{}", R"({"judged": [[]], "unknown": []})", R"({"judged": [["x", "y"]], "unknown": []})",
        R"({"judged": [], "unknown": ["x"]})", R"({"judged": [], "unknown": [], "more": 1})"})
    EXPECT_THROW(JudgedDigests::parse(bad, "judged.json"), Error) << bad;
}

}  // namespace
}  // namespace patchbench
