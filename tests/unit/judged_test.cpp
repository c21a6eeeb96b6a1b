#include "core/judged.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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
#include "status/behind.h"
#include "status/pack_records.h"
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

/// Whether today's gate relies on a verdict: of a fix, an op or a mitigation, at a tested release,
/// on a CPU.
bool is_relied_on(const Finding& finding, const Manifest& pack) {
  const bool is_of_it =
      finding.question.is(Question::kValidate) || finding.question.is(Question::kEquivalence) ||
      finding.question.is(Question::kOp) || finding.question.is(Question::kMitigation);
  const bool is_tested =
      finding.version == "-" ||
      std::any_of(pack.upstreams.begin(), pack.upstreams.end(), [&](const UpstreamUse& use) {
        return use.name == finding.upstream && use.red_pin == finding.version;
      });
  return is_of_it && is_tested && finding.companions.empty() && finding.device == "cpu";
}

/// Verdicts on a CPU that are older than the cases of their pack and wait for a run: slug and
/// question. A run takes its line away; a manifest that changes must not add one.
const std::set<std::pair<std::string, std::string>>& waiting() {
  static const std::set<std::pair<std::string, std::string>> kWaiting = {
      {"dsa_graph_capture", "mitigation"},
      {"dsa_graph_capture", "op"},
      {"dsa_graph_capture", "validate"},
      {"fp8_storage_dispatch", "mitigation"},
      {"fp8_storage_dispatch", "mitigation dequantize"},
      {"fp8_storage_dispatch", "mitigation fp8"},
      {"fp8_storage_dispatch", "op"},
      {"fp8_storage_dispatch", "validate"},
      {"liger_flce_frozen_hidden", "mitigation"},
      {"liger_flce_frozen_hidden", "op"},
      {"liger_flce_frozen_hidden", "validate"},
      {"liger_flce_none_bwd", "mitigation"},
      {"liger_flce_none_bwd", "op"},
      {"liger_flce_none_bwd", "validate"},
      {"mamba3_mimo_gqa_bwd", "mitigation"},
      {"mamba3_mimo_gqa_bwd", "op"},
      {"mamba3_mimo_gqa_bwd", "validate"},
      {"mamba3_mimo_smem_2d", "op"},
      {"mamba3_mimo_smem_2d", "validate"},
      {"mamba3_siso_bwd_cse", "equivalence"},
      {"mamba3_siso_bwd_cse", "mitigation"},
      {"mamba3_siso_bwd_cse", "op"},
      {"megatron_float16_cast", "mitigation"},
      {"megatron_float16_cast", "validate"},
      {"sparse_mla_dims", "mitigation"},
      {"sparse_mla_dims", "op"},
      {"sparse_mla_dims", "validate"},
      {"sparse_mla_pdp_precision", "mitigation"},
      {"sparse_mla_pdp_precision", "op"},
      {"sparse_mla_pdp_precision", "validate"},
      {"te_fused_ce", "mitigation"},
      {"te_fused_ce", "op"},
      {"te_fused_ce", "validate"},
      {"zero2_grad_accumulation", "mitigation"},
      {"zero2_grad_accumulation", "validate"},
  };
  return kWaiting;
}

/// The gate runs few cases of each pack. That the whole set holds is said by records, which must be
/// of the cases, limits, subjects and edits that the tree has.
TEST(Judged, TheNewestVerdictsOnACpuAreOfTodaysManifestsAndEdits) {
  const PackRecords records = read_pack_records(context(), {.with_ledger = false});
  int num_relied_on = 0;
  for (const Manifest& pack : records.packs) {
    for (const auto& [key, devices] : records.verdict_index.by_key()) {
      for (const auto& [device, cell] : devices) {
        const Finding* finding = key.slug == pack.slug.str() ? cell.newest() : nullptr;
        if (finding == nullptr || !is_relied_on(*finding, pack)) continue;
        ++num_relied_on;
        const std::string name = fmt::format("{} {} of {} {}, {}", key.slug, key.question.text(),
                                             key.upstream, key.version, finding->digest);
        const bool is_waiting = waiting().contains({key.slug, key.question.text()});
        const std::optional<Record> record = records.records.find(finding->digest);
        ASSERT_TRUE(record) << name;
        const auto question = QuestionContext::from_json(record->predicate().at("question"));
        EXPECT_EQ(is_older_run(records, *finding, question), is_waiting)
            << name
            << (is_waiting ? ": was run; take its line away"
                           : ": the manifest has other cases now; run it again");
        for (const std::string& mark : behind(context(), records, pack, *finding).marks)
          EXPECT_FALSE(mark.starts_with("stale")) << name << ": " << mark;
      }
    }
  }
  EXPECT_GT(num_relied_on, 30);
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
