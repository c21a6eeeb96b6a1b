#include "job/triage.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/error.h"
#include "job/triage_lines.h"
#include "job/triage_rules.h"

namespace patchbench::job {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::string(PATCHBENCH_ROOT) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The built-in rules behind a user's rules.
TriageRules rules(const std::string& users = "") {
  TriageRules out;
  const std::string schema = read("env/triage.schema.json");
  if (!users.empty()) out.add("{\"rules\": [" + users + "]}", "mine.json", schema, false);
  out.add(read("env/triage.json"), "env/triage.json", schema, true);
  return out;
}

constexpr Budgets kBudgets{.graph_breaks_per_site = 2,
                           .graph_breaks_per_rank = 3,
                           .recompiles_per_site = 2,
                           .jump_window_steps = 5,
                           .step_time_jump = 1.5};

Json report(const std::vector<std::string>& blocks, const std::string& users = "",
            const TriageOptions& options = {.torch_version = "2.11.0", .today = "2026-11-22"}) {
  Triage triage(rules(users), kBudgets, options);
  triage.open("log");
  for (const std::string& block : blocks) triage.feed(block);
  return triage.finish();
}

Json rule_of(const Json& report, const std::string& name) {
  for (const Json& rule : report.at("rules")) {
    if (rule.at("rule") == name) return rule;
  }
  return nullptr;
}

std::string refusal(const std::string& users) {
  try {
    rules(users);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

std::string steps(const std::string& rank, const std::vector<double>& seconds) {
  std::string out;
  for (const double s : seconds) out += rank + "step_time=" + std::to_string(s) + "\n";
  return out;
}

TEST(TriageLines, RankIsToldByPrefixOrPath) {
  std::string_view rest;
  EXPECT_EQ(rank_of_line("[default1]:[rank9]:W1122 x", &rest), "9");
  EXPECT_EQ(rest, "W1122 x");
  EXPECT_EQ(rank_of_line("12: text", &rest), "12");
  EXPECT_EQ(rest, "text");
  EXPECT_EQ(rank_of_line("[default3]: text", &rest), "3");
  EXPECT_EQ(rest, "text");
  EXPECT_EQ(rank_of_line("2026-11-22 01:02: text", &rest), "");
  EXPECT_EQ(rank_of_line("[rank]:", nullptr), "");
  EXPECT_EQ(rank_of_line("", nullptr), "");
  EXPECT_EQ(rank_of_path("run/attempt_0/3/stderr.log"), "3");
  EXPECT_EQ(rank_of_path("run/rank_12.log"), "12");
  EXPECT_EQ(rank_of_path("train.log"), "-");
}

TEST(TriageLines, AShapeIsFreeOfWhatChanges) {
  EXPECT_EQ(
      shape_of("[rank3]:W1122 01:05:44.525000 20632 a/b.py:50] [2/0] lost 12 of 0x7fAB at 1.5"),
      "W a/b.py:50] [#/#] lost # of # at #");
  EXPECT_EQ(shape_of("10%\r20%\r1: 99 left"), "#: # left");
  EXPECT_EQ(log_prefix("[W1122 01:05:44.525000 1 a.cpp:3] x"), "W1122 01:05:44.525000 1 a.cpp:3]");
  EXPECT_EQ(log_prefix("Warning 01:05"), "");
}

TEST(Triage, TheFirstRuleThatMatchesDecides) {
  const std::string mine =
      R"({"name": "mine", "action": "count", "regex": "CUDA error: .*known", "reason": "r"})";
  const std::vector<std::string> log = {
      "[rank1]:CUDA error: an illegal access, known\n"
      "[rank2]:CUDA error: an illegal access\n"};
  const Json got = report(log, mine);
  EXPECT_EQ(rule_of(got, "mine").at("ranks"), (Json{{"1", 1}}));
  EXPECT_EQ(rule_of(got, "cuda_error").at("ranks"), (Json{{"2", 1}}));
  EXPECT_EQ(got.at("num_alerts"), 1);
  EXPECT_EQ(report(log).at("num_alerts"), 2);
}

TEST(Triage, BothNamesOfTheLimitAreAlerts) {
  for (const char* name : {"recompile_limit", "cache_size_limit", "accumulated_recompile_limit",
                           "accumulated_cache_size_limit"}) {
    const Json got = report({std::string("torch._dynamo hit config.") + name + " (8)\n"});
    EXPECT_EQ(got.at("alerts").at(0).at("rule"), "recompile_limit") << name;
  }
}

TEST(Triage, AnAlertHasTheLinesOfItsRankAroundIt) {
  const Json got =
      report({"[rank0]:a\n[rank1]:x\n[rank0]:b\n[rank0]:torch.OutOfMemoryError\n[rank1]:y\n",
              "[rank0]:c\n[rank1]:z\n[rank0]:d\n"});
  const Json& alert = got.at("alerts").at(0);
  EXPECT_EQ(alert.at("line"), 4);
  EXPECT_EQ(alert.at("before"), (Json{"[rank0]:a", "[rank0]:b"}));
  EXPECT_EQ(alert.at("after"), (Json{"[rank0]:c", "[rank0]:d"}));
  EXPECT_EQ(got.at("lines"), 8);
}

TEST(Triage, UnknownWarningsAreClusteredAndARuleTakesItsWholeRecord) {
  const std::string record = "E1122 01:05:44.525000 7 torch/_inductor/select.py:3]";
  const Json got =
      report({"a.py:1: UserWarning: lost 3 of 4\nb\na.py:1: UserWarning: lost 5 of 9\n" + record +
              " Runtime error during autotuning:\n" + record + " bad\n" + record +
              " Ignoring this choice.\n" + "V1122 01:05:44.525000 7 a.py:9] quoted Warning: no\n"});
  ASSERT_EQ(got.at("unknown").size(), 1u) << got.dump(1);
  EXPECT_EQ(got["unknown"][0].at("shape"), "a.py:#: UserWarning: lost # of #");
  EXPECT_EQ(got["unknown"][0].at("count"), 2);
  EXPECT_EQ(got.at("num_unknown"), 2);
  EXPECT_EQ(rule_of(got, "autotune_choice_dropped").at("count"), 1);
}

TEST(Triage, ADroppedChoiceMattersOnlyIfTheStepsGetSlower) {
  const std::string before = steps("[rank0]:", {1, 1, 1.1, 1, 1}),
                    event = "[rank0]:Ignoring this choice.\n";
  EXPECT_EQ(report({before + event + steps("[rank0]:", {9, 1, 1, 1})}).at("num_alerts"), 0);
  EXPECT_EQ(report({before + event + steps("[rank1]:", {2, 2, 2, 2})}).at("num_alerts"), 0);
  EXPECT_EQ(report({before + event + steps("[rank0]:", {1, 1, 1, 2, 2, 2})}).at("num_alerts"), 0);
  const Json got = report({before + event + steps("[rank0]:", {1, 2, 2, 2})});
  ASSERT_EQ(got.at("num_alerts"), 1);
  EXPECT_EQ(got["alerts"][0].at("line"), 6);
  EXPECT_NE(got["alerts"][0].at("text").get<std::string>().find("steps of 2 s after 1 s (line 10)"),
            std::string::npos);
}

TEST(Triage, BreaksAndRecompilesAreCountedBySiteAgainstTheirBudget) {
  const std::string two =
      "V1 Graph break in user code at /a.py:5\nRecompiling function f in /a.py:2\n";
  Json got = report({two + two});
  EXPECT_EQ(got.at("num_alerts"), 0);
  got = report({two + two + "[rank1]:Graph break (user stack) in user code at /a.py:5\n" + two});
  EXPECT_EQ(got.at("num_alerts"), 2);
  EXPECT_EQ(got.at("graph_breaks").at(0).at("ranks"), (Json{{"-", 3}, {"1", 1}}));
  EXPECT_EQ(got.at("recompiles").at(0).at("site"), "/a.py:2");
  const std::string trace =
      R"(V1 {"compilation_metrics": {"co_filename": "/a.py", "co_firstlineno": 2, "cache_size": )";
  got = report({trace + "0}\n" + trace + "1}\n" + "\tTraceback (most recent call last):\n"});
  EXPECT_EQ(got.at("recompiles"), (Json{{{"site", "/a.py:2"},
                                         {"count", 1},
                                         {"ranks", {{"-", 1}}},
                                         {"budget", 2},
                                         {"over", false}}}));
  EXPECT_EQ(got.at("num_unknown"), 0);
}

/// A line of TORCH_LOGS=graph_breaks: `id` is "frame/compile".
std::string break_line(const std::string& rank, const std::string& id, const std::string& site) {
  return rank + "V1123 08:23:52.428000 7 torch/_dynamo/symbolic_convert.py:5127] [" + id +
         "] [__graph_breaks] Graph break in user code at " + site + "\n";
}

TEST(Triage, BreaksUnderTheBudgetOfEachSiteCanBeOverTheTotalOfTheirRank) {
  std::string log;
  for (const char* frame : {"0/0", "1/0", "2/0"})
    log += break_line("[rank0]:", frame, std::string("/a.py:") + frame[0]);
  // Another version of a frame, and another rank, add nothing to the total.
  log += break_line("[rank0]:", "2/1", "/a.py:2") + break_line("[rank1]:", "3/0", "/a.py:3");
  Json got = report({log});
  EXPECT_EQ(got.at("num_alerts"), 0) << got.at("alerts").dump(1);
  EXPECT_EQ(got.at("graph_break_totals"),
            (Json{{{"rank", "0"}, {"count", 3}, {"budget", 3}, {"over", false}},
                  {{"rank", "1"}, {"count", 1}, {"budget", 3}, {"over", false}}}));
  // The same site in a fourth frame: two lines of it are within its own budget.
  got = report({log, break_line("[rank0]:", "3/0", "/a.py:0")});
  ASSERT_EQ(got.at("num_alerts"), 1);
  EXPECT_EQ(got.at("alerts")[0].at("rule"), "graph_break_total");
  EXPECT_EQ(got.at("alerts")[0].at("rank"), "0");
  for (const Json& site : got.at("graph_breaks")) EXPECT_EQ(site.at("over"), false) << site.dump();
  EXPECT_EQ(got.at("graph_break_totals").at(0).at("over"), true);
}

TEST(Triage, AStructuredTraceTellsTheFrameInTheLineBeforeTheBreak) {
  const std::string record =
      R"(V1123 08:23:52.1 7 a.py:1] {"artifact": {"name": "dynamo_graph_break_reason"}, "frame_id": )";
  const auto text = [&](const std::string& frame) {
    return record + frame + ", \"frame_compile_id\": 0}\n\tGraph break in user code at /a.py:5\n";
  };
  Json got = report({text("10") + text("11") + text("10")});
  EXPECT_EQ(got.at("graph_break_totals").at(0).at("count"), 2);
  // A block may end between the two lines.
  const std::string last = text("12");
  const std::size_t end = last.find('\n') + 1;
  got = report({text("10") + text("11") + last.substr(0, end), last.substr(end)});
  EXPECT_EQ(got.at("graph_break_totals").at(0).at("count"), 3);
}

TEST(Triage, ABreakWithoutAFrameCountsOnceASite) {
  const std::string line = "Graph break in user code at /a.py:";
  const Json got = report({line + "5\n" + line + "5\n" + line + "6\n"});
  EXPECT_EQ(got.at("graph_break_totals").at(0).at("count"), 2);
}

TEST(Triage, RulesExpireGoStaleAndBelongToVersions) {
  const std::string mine =
      R"({"name": "old", "action": "ignore", "text": "Warning: x", "reason": "r", "expires": "2026-11-22"},
         {"name": "new", "action": "ignore", "text": "Warning: y", "reason": "r", "expires": "2026-11-23"},
         {"name": "idle", "action": "count", "text": "zzz", "reason": "r"},
         {"name": "other", "action": "ignore", "text": "Warning: z", "reason": "r", "versions": "<2.11"})";
  const Json got = report({"Warning: x\nWarning: y\nWarning: z\n"}, mine);
  EXPECT_EQ(got.at("unknown").size(), 2u);
  EXPECT_EQ(got.at("stale"), (Json{{{"rule", "old"}, {"why", "expired 2026-11-22"}},
                                   {{"rule", "idle"}, {"why", "matched nothing"}},
                                   {{"rule", "other"}, {"why", "is for torch <2.11"}}}));
}

TEST(Triage, ACountOverItsBoundIsAnAlertByRank) {
  const std::string mine =
      R"({"name": "m", "action": "count", "text": "m", "bound": 1, "reason": "r"})";
  EXPECT_EQ(report({"[rank0]:m\n[rank1]:m\n"}, mine).at("num_alerts"), 0);
  EXPECT_EQ(report({"[rank0]:m\n[rank0]:m\n[rank0]:m\n"}, mine).at("num_alerts"), 1);
}

TEST(Triage, AHangIsLaidToWhatTheOthersWaitFor) {
  const std::string watchdog = "[rank1]:Watchdog caught collective operation timeout: x\n";
  EXPECT_EQ(report({watchdog}).at("hang").at("cause"), "ranks");
  const std::string lock = "[rank0]:The file lock '/c/x.lock' could not be acquired.\n";
  EXPECT_EQ(report({watchdog + lock}).at("hang").at("cause"), "cache");
  const std::string choice = "[rank0]:Timed out benchmarking choice 'mm'\n";
  EXPECT_EQ(report({watchdog + choice}).at("hang").at("cause"), "autotune");
  EXPECT_TRUE(report({"fine\n"}).at("hang").is_null());
  const TriageOptions hung{.torch_version = "", .today = "2026-11-22", .is_hung = true};
  const std::string compiles = "[rank0]:Recompiling function f in /a.py:2\n";
  EXPECT_EQ(report({compiles + steps("[rank1]:", {1})}, "", hung).at("hang").at("cause"), "ranks");
  EXPECT_EQ(report({"[rank0]:AUTOTUNE mm(8x8)\n"}, "", hung).at("hang").at("cause"), "autotune");
  EXPECT_EQ(report({compiles}, "", hung).at("hang").at("cause"), "unknown");
}

TEST(Triage, WhatIsOverTheBoundsIsCountedNotKept) {
  std::string log;
  for (int i = 0; i < 5000; ++i) {
    std::string name;
    for (int rest = i + 1; rest > 0; rest /= 26) name += static_cast<char>('a' + rest % 26);
    log += "Warning: " + name + "\ntorch.OutOfMemoryError\n";
  }
  const Json got = report({log});
  EXPECT_EQ(got.at("unknown").size(), 4096u);
  EXPECT_EQ(got.at("num_of_other_shapes"), 5000 - 4096);
  EXPECT_EQ(got.at("alerts").size(), 100u);
  EXPECT_EQ(got.at("num_alerts"), 5000);
}

TEST(TriageRules, RefusesWhatNoSchemaCanSay) {
  EXPECT_NE(refusal(R"({"name": "a", "action": "count", "reason": "r"})").find("regex or text"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"name": "a", "action": "alert", "text": "t", "bound": 1, "reason": "r"})")
                .find("bound is of action count"),
            std::string::npos);
  EXPECT_NE(
      refusal(
          R"({"name": "a", "action": "count", "text": "t", "expires": "2026/11/22", "reason": "r"})")
          .find("YYYY-MM-DD"),
      std::string::npos);
  EXPECT_NE(
      refusal(R"({"name": "a", "action": "warn", "text": "t", "reason": "r"})").find("mine.json:1"),
      std::string::npos);
}

}  // namespace
}  // namespace patchbench::job
