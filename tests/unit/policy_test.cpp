#include "job/policy.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/error.h"
#include "job/policy_print.h"

namespace patchbench::job {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::string(PATCHBENCH_ROOT) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Policy parse(const std::string& text) {
  return Policy::parse(text, "policy.json", read("env/policy.schema.json"));
}

/// A policy of these rules alone.
std::string document(const std::string& rules) {
  return R"({"budgets": {"graph_breaks_per_site": 1, "graph_breaks_per_rank": 1, "recompiles_per_site": 1,
      "step_time_jump": 2, "jump_window_steps": 3}, "disk_gib": 1, "packages": {}, "rules": [)" +
         rules + "]}";
}

std::string rule(const std::string& name, const std::string& kind, const std::string& target,
                 const std::string& rest) {
  return R"({"name": ")" + name + R"(", "kind": ")" + kind + R"(", "target": ")" + target +
         R"(", "why": "w", "since": "2.11", "source": "s", )" + rest + "}";
}

std::string refusal(const std::string& rules) {
  try {
    parse(document(rules));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

/// The state of the only rule.
std::string state_of(const std::string& rules, const Facts& facts,
                     const std::set<std::string>& choices = {}) {
  const Policy policy = parse(document(rules));
  const std::vector<Finding> found = check(policy, facts, choices);
  return found.empty() ? "left out" : state_name(found.front().state);
}

TEST(Policy, TheCommittedOneHolds) {
  const Policy policy = parse(read("env/policy.json"));
  EXPECT_EQ(policy.rule("recompile_limit").wanted(), "64");
  EXPECT_THROW(policy.rule("recompile_limits"), Error);
  EXPECT_NO_THROW(policy.check_choices({"no_autotune_memory"}));
  EXPECT_THROW(policy.check_choices({"no_autotune"}), Error);
}

TEST(Policy, RefusesWhatNoSchemaCanSay) {
  const std::string a = rule("a", "environment", "A", R"("expect": {"equals": "1"})");
  const std::string b = rule("b", "environment", "B", R"("expect": {"equals": "1"})");
  EXPECT_EQ(refusal(a + "," + b), "no error");
  EXPECT_NE(refusal(b + "," + a).find("sorted by name"), std::string::npos);
  EXPECT_NE(refusal(a + "," + a).find("each name once"), std::string::npos);
  EXPECT_NE(refusal(rule("a", "environment", "A", R"("cost": "c")")).find("either expect or"),
            std::string::npos);
  EXPECT_NE(refusal(rule("a", "environment", "A", R"("expect": {"equal": "1"})")).find("equals?"),
            std::string::npos);
  EXPECT_NE(refusal(rule("a", "package", "A", R"("expect": {"range": "~1"})")).find("want >=A"),
            std::string::npos);
}

TEST(Policy, AVariableIsOkMissingDifferentOrUnknown) {
  const std::string one = rule("a", "environment", "A", R"("expect": {"equals": "1"})");
  EXPECT_EQ(state_of(one, {.environment = {{{"A", "1"}}}}), "ok");
  EXPECT_EQ(state_of(one, {.environment = {{{"A", "0"}}}}), "differs");
  EXPECT_EQ(state_of(one, {.environment = {{{"B", "1"}}}}), "missing");
  EXPECT_EQ(state_of(one, {}), "unknown here");
  const std::string older =
      rule("a", "environment", "A", R"("was": "B", "expect": {"contains": "x"})");
  EXPECT_EQ(state_of(older, {.environment = {{{"B", "y,x"}}}}), "ok");
  const std::string folder = rule("a", "environment", "A", R"("expect": {"folder": "f"})");
  EXPECT_EQ(state_of(folder, {.environment = {{{"A", "cache"}}}}), "differs");
  EXPECT_EQ(state_of(folder, {.environment = {{{"A", "/cache"}}}}), "ok");
  const std::string unset = rule("a", "environment", "A", R"("expect": {"unset": true})");
  EXPECT_EQ(state_of(unset, {.environment = {{{"A", "0"}}}}), "differs");
  const std::string dropped = rule("a", "environment", "A", R"("dropped": "d")");
  EXPECT_EQ(state_of(dropped, {.environment = {{{"A", "7200"}}}}), "differs");
  EXPECT_EQ(state_of(dropped, {.environment = {{{"B", ""}}}}), "ok");
}

TEST(Policy, ARuleWaitsForItsVariableOrItsChoice) {
  const std::string ranked =
      rule("a", "environment", "A", R"("when": {"variable": "R"}, "expect": {"equals": "1"})");
  EXPECT_EQ(state_of(ranked, {.environment = {{{"B", ""}}}}), "left out");
  EXPECT_EQ(state_of(ranked, {.environment = {{{"R", "0"}}}}), "missing");
  const std::string chosen =
      rule("a", "environment", "A", R"("when": {"choice": "c"}, "expect": {"equals": "1"})");
  EXPECT_EQ(state_of(chosen, {.environment = {{{"B", ""}}}}), "left out");
  EXPECT_EQ(state_of(chosen, {.environment = {{{"B", ""}}}}, {"c"}), "missing");
}

TEST(Policy, AConfigLineIsAskedOfATorchOrSeenInItsVariable) {
  const std::string line =
      rule("a", "torch_config", "m.x",
           R"("variable": {"name": "X", "value": "0"}, "expect": {"equals": false})");
  EXPECT_EQ(state_of(line, {.config = Json{{"m.x", false}}}), "ok");
  EXPECT_EQ(state_of(line, {.config = Json{{"m.x", true}}}), "differs");
  EXPECT_EQ(state_of(line, {.config = Json{{"m.x", "absent"}}}), "unknown here");
  EXPECT_EQ(state_of(line, {.environment = {{{"X", "0"}}}}), "ok");
  EXPECT_EQ(state_of(line, {.environment = {{{"X", "1"}}}}), "differs");
  EXPECT_EQ(state_of(line, {.environment = {{{"Y", "1"}}}}), "unknown here");
  EXPECT_EQ(state_of(line, {.config = Json{{"m.x", true}}, .packages = {{{"torch", "2.6.0"}}}}),
            "unknown here");
}

TEST(Policy, VersionsCompareByTheirNumbers) {
  EXPECT_EQ(compare_versions("2.11.0+cu130", "2.11"), 0);
  EXPECT_EQ(compare_versions("2.9", "2.11.0"), -1);
  EXPECT_EQ(compare_versions("580.95.05", "580.65.06"), 1);
  EXPECT_TRUE(in_range("3.6.0", ">=3.6.0,<3.7"));
  EXPECT_FALSE(in_range("3.7.0", ">=3.6.0,<3.7"));
  EXPECT_TRUE(in_range("2.11.0", "==2.11"));
  EXPECT_FALSE(in_range("2.11.0", ">2.11"));
  EXPECT_THROW(in_range("1", ""), Error);
  EXPECT_THROW(in_range("1", "=>1"), Error);
}

TEST(Policy, PrintRefusesAFolderThatIsNotAbsolute) {
  const Policy policy = parse(read("env/policy.json"));
  EXPECT_THROW(print(policy, Format::kSh, {}, "cache"), Error);
  EXPECT_NE(print(policy, Format::kSh, {}, "/it's").find("'/it'\\''s/inductor'"),
            std::string::npos);
}

}  // namespace
}  // namespace patchbench::job
