// Longer than 400 lines: one refusal of the schema and of the manifest a row.
#include "core/manifest.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/scenario.h"

namespace patchbench {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::string(PATCHBENCH_ROOT) + "/" + path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::string& schema() {
  static const std::string text = read("packs/manifest.schema.json");
  return text;
}

const std::string& sample() {
  static const std::string text = read("tests/golden/manifest_complete.json");
  return text;
}

Manifest parse(const std::string& text) { return parse_manifest(text, "m.json", schema()); }

/// The sample with the first `from` replaced; fails the test if it does not hold `from`.
std::string with(const std::string& from, const std::string& to) {
  std::string text = sample();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

TEST(Manifest, ARegionIsWaivedForSomeSubjectsAndDevicesOrForAll) {
  const Manifest manifest = parse(sample());
  ASSERT_EQ(manifest.waived_regions.size(), 2u);
  const RegionWaiver &counts = manifest.waived_regions[0], &ties = manifest.waived_regions[1];
  EXPECT_EQ(counts.region, "beyond_*");
  EXPECT_TRUE(counts.is_for("op", "cpu"));
  EXPECT_FALSE(counts.is_for("op", "cuda"));
  EXPECT_FALSE(counts.is_for("patched", "cpu"));
  EXPECT_TRUE(ties.is_for("mitigated", "cuda"));
  const RegionWaiver mitigated{"ties", {"mitigated"}, {}, "for the mitigation in any mode"};
  EXPECT_TRUE(mitigated.is_for("mitigated:exact", "cpu"));
  EXPECT_FALSE(mitigated.is_for("patched", "cpu"));
  const std::string reason = "\"reason\": \"no value is compared with another\"";
  EXPECT_NE(error_of(with(reason, "\"reason\": \"no\"")).find("/waived_regions/1/reason"),
            std::string::npos);
  EXPECT_NE(error_of(with("\"subjects\": [\"op\"], \"devices\"",
                          "\"subjects\": [\"upstream\"], \"devices\""))
                .find("/waived_regions/0/subjects/0"),
            std::string::npos);
}

TEST(Manifest, ReadsEveryPart) {
  const Manifest manifest = parse(sample());
  EXPECT_EQ(manifest.slug.str(), "some_pack");
  EXPECT_EQ(manifest.number, 42);
  EXPECT_EQ(manifest.kind, "bug");
  ASSERT_EQ(manifest.upstreams.size(), 1u);
  EXPECT_EQ(manifest.upstreams[0].red_pin, "1.0");
  EXPECT_EQ(manifest.upstreams[0].files, std::vector<std::string>{"thing/ops.py"});
  EXPECT_EQ(manifest.classes_order, (std::vector<std::string>{"wrong_result", "another_class"}));
  EXPECT_EQ(manifest.classes.at("another_class"), "a second way to fail");
  ASSERT_EQ(manifest.cases.size(), 3u);
  EXPECT_EQ(manifest.cases[0].axes.at("vocab"), 200);
  EXPECT_EQ(manifest.find_case("sum")->role, CaseRole::kSilent);
  EXPECT_TRUE(manifest.find_case("sum")->counts_on("cpu"));
  EXPECT_FALSE(manifest.find_case("bf16")->counts_on("cpu"));
  EXPECT_TRUE(manifest.find_case("bf16")->is_isolated);
  EXPECT_FALSE(manifest.find_case("fp32")->is_isolated);
  EXPECT_EQ(manifest.find_case("absent"), nullptr);
  EXPECT_EQ(manifest.bounds.at("fp32").at("peak_bytes_max"), 1000);
  EXPECT_EQ(manifest.environments, Json::array({"torch"}));
  EXPECT_EQ(manifest.scope[1].verdict, "confirmed");
  EXPECT_EQ(manifest.scope[1].records.size(), 1u);
  EXPECT_EQ(manifest.waived(Column::kTest), "the op has no test of its own yet");
  EXPECT_EQ(manifest.waived(Column::kRepro), std::nullopt);
  EXPECT_EQ(manifest.lifecycle.at("keep"), "conditional");
  EXPECT_EQ(manifest.sha256, sha256_hex(sample()));
}

TEST(Manifest, GivesEachCaseTheUsualAxesThatItDoesNotName) {
  std::string text =
      with("\"cases\": [", R"("usual": {"dtype": "float16", "rows": 2}, "cases": [)");
  text.replace(text.find("\"axes\": {}"), 10, R"("axes": {"dtype": null, "answer": null})");
  const Manifest manifest = parse(text);
  EXPECT_EQ(manifest.cases[0].axes,
            Json::parse(R"({"dtype": "float32", "rows": 2, "vocab": 200})"));
  EXPECT_EQ(manifest.cases[1].axes, Json::parse(R"({"answer": null, "rows": 2})"));
}

TEST(Manifest, DrawnCasesAreInTheScenariosThatItDoesNotWaive) {
  const auto drawn = [](const std::string& rules) {
    return parse(with("\"mitigation\": {", "\"scenarios\": " + rules + ", \"mitigation\": {"))
        .scenarios;
  };
  EXPECT_TRUE(parse(with("", "")).scenarios.drawn("cuda").empty());
  EXPECT_EQ(drawn("{}").drawn("cuda").size(), scenarios().size() - 1);  // all but forked
  const ScenarioRules rules =
      drawn(R"({"waived": {"compiled": "it is no Python", "threads": {"cpu": "one thread"}},
                "overwritten": ["rows"]})");
  EXPECT_EQ(rules.drawn("cuda").size(), scenarios().size() - 2);
  EXPECT_EQ(rules.drawn("cpu").size(), scenarios().size() - 4);  // streams and captured, too
  EXPECT_EQ(rules.overwritten, std::set<std::string>{"rows"});
  EXPECT_NE(error_of(with("\"mitigation\": {",
                          R"("scenarios": {"waived": {"forkd": "it needs a GPU"}},
                             "mitigation": {)"))
                .find("did you mean forked"),
            std::string::npos);
}

TEST(Manifest, ReadsSpacesAndTriggers) {
  const std::string explore =
      R"("explore": {"seconds": 5, "fixed": {"thing": "1.2"}, "spaces": [
           {"name": "rows", "count": 40, "judged_on": ["cpu"], "subjects": ["upstream"],
            "axes": {"rows": [1, 2], "dtype": "float32"}, "most": {"rows": 2}},
           {"name": "rows_op", "like": "rows", "count": 9, "judged_on": ["cpu", "cuda"],
            "subjects": ["op"], "axes": {"rows": 3}}]},
         "trigger": [{"class": "wrong_result", "words": "more than one row",
            "rules": ["red where rows > 1", "green"], "records": [")" +
      std::string(64, 'a') + R"("]}], "mitigation": {)";
  const Manifest manifest = parse(with("\"mitigation\": {", explore));
  EXPECT_EQ(manifest.explore.fixed.at("thing"), "1.2");
  const UpstreamUse& use = manifest.upstreams.front();
  const auto spaces = manifest.explore.of("patched", use, "cpu");
  ASSERT_EQ(spaces.size(), 1U);
  EXPECT_EQ(spaces[0]->count, 40);
  EXPECT_TRUE(manifest.explore.of("patched", use, "cuda").empty());
  const auto of_op = manifest.explore.of("op", use, "cuda");
  ASSERT_EQ(of_op.size(), 1U);
  EXPECT_EQ(of_op[0]->body,
            Json::parse(R"({"name": "rows_op", "axes": {"rows": 3, "dtype": "float32"},
                            "most": {"rows": 2}})"));
  ASSERT_EQ(manifest.triggers.size(), 1U);
  EXPECT_EQ(manifest.triggers[0].rules.front(), "red where rows > 1");
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = explore;
    text.replace(text.find(from), from.size(), to);
    return error_of(with("\"mitigation\": {", text));
  };
  EXPECT_NE(refused("\"thing\": \"1.2\"", "\"other\": \"1.2\"").find("no upstream \"other\""),
            std::string::npos);
  EXPECT_NE(refused("\"like\": \"rows\"", "\"like\": \"row\"").find("no space \"row\" before"),
            std::string::npos);
  EXPECT_NE(refused("\"rows_op\"", "\"rows\"").find("this space stands twice"), std::string::npos);
  EXPECT_NE(
      refused("\"class\": \"wrong_result\"", "\"class\": \"wrong\"").find("no class \"wrong\""),
      std::string::npos);
}

TEST(Manifest, RoleNamesRoundTrip) {
  for (const CaseRole role : {CaseRole::kTrigger, CaseRole::kSilent, CaseRole::kControl}) {
    EXPECT_EQ(role_from(role_name(role)), role);
  }
  EXPECT_THROW(role_from("triger"), Error);
}

struct Bad {
  const char* name;
  const char* from;
  const char* to;
  const char* message;
};

class ManifestRefuses : public testing::TestWithParam<Bad> {};
TEST_P(ManifestRefuses, WithLineAndPointer) {
  EXPECT_EQ(error_of(with(GetParam().from, GetParam().to)), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Texts, ManifestRefuses,
    testing::Values(
        Bad{"unknown_key", "\"red_pin\"", "\"red_pn\"",
            "m.json:7: /upstreams/0/red_pn: unknown key; did you mean red_pin?"},
        Bad{"unknown_top_key", "\"number\": 42", "\"number\": 42, \"colour\": 1",
            "m.json:3: /colour: unknown key; one of: bounds, cases, classes, environments, "
            "explore, "
            "filing, impact, kind, lifecycle, mitigation, number, requires and 12 more"},
        Bad{"usual_value_repeated", "\"cases\": [", "\"usual\": {\"vocab\": 200}, \"cases\": [",
            "m.json:14: /cases/0/axes/vocab: is the usual value: leave it out"},
        Bad{"unknown_enum", "\"kind\": \"bug\"", "\"kind\": \"bgu\"",
            "m.json:5: /kind: \"bgu\" is not allowed here; one of: bug, refactor, memory, claim"},
        Bad{"missing_key", "\"number\": 42,", "",
            "m.json:1: /: Missing required property 'number'"},
        Bad{"wrong_type", "\"number\": 42", "\"number\": \"42\"",
            "m.json:3: /number: Value type not permitted by 'type' constraint"},
        Bad{"number_out_of_range", "\"number\": 42", "\"number\": 1e300",
            "m.json:3: /number: Expected number less than or equal to 99.000000"},
        Bad{"number_with_a_fraction", "\"number\": 42", "\"number\": 42.5",
            "m.json:3: /number: Value type not permitted by 'type' constraint"},
        Bad{"no_slug", "\"some_pack\"", "\"Some Pack\"",
            "m.json:2: /slug: must be lower-case words of letters and digits joined by \"_\""},
        Bad{"case_twice", "\"name\": \"sum\"", "\"name\": \"fp32\"",
            "m.json:15: /cases/1/name: this case stands twice"},
        Bad{"class_twice", "\"another_class\"", "\"wrong_result\"",
            "m.json:11: /classes/1/name: this class stands twice"},
        Bad{"class_in_capitals", "\"another_class\"", "\"ANOTHER\"",
            "m.json:11: /classes/1/name: must be lower-case words of letters and digits joined by "
            "\"_\""},
        Bad{"role", "\"silent\"", "\"silnt\"",
            "m.json:15: /cases/1/role: \"silnt\" is not allowed here; did you mean silent?"},
        Bad{"device_kind", "[\"cuda\"]", "[\"cuda:0\"]",
            "m.json:16: /cases/2/judged_on/0: \"cuda:0\" is not allowed here; did you mean cuda?"},
        Bad{"no_trigger", "\"role\": \"trigger\"", "\"role\": \"control\"",
            "m.json:13: /cases: no case has the role \"trigger\""},
        Bad{"scope_of_no_case", "[\"fp32\"]", "[\"fp33\"]",
            "m.json:24: /scope/0/cases/0: no case \"fp33\" in this manifest; did you mean fp32?"},
        Bad{"confirmed_without_record", ", \"records\": [\"", ", \"cases\": [\"",
            "m.json:26: /scope/1/cases/0: String should be no more than 48 characters in length"},
        Bad{"bound_of_no_case", "\"fp32\": {\"peak", "\"fp31\": {\"peak",
            "m.json:19: /bounds/fp31: no case \"fp31\" in this manifest; did you mean fp32?"},
        Bad{"file_above_the_package", "thing/ops.py", "thing/../../ops.py",
            "m.json:7: /upstreams/0/files/0: must be a path below the package root"},
        Bad{"pack_cell_waived", "\"cell\": \"tests\"", "\"cell\": \"packs\"",
            "m.json:30: /waivers/0/cell: \"packs\" is not allowed here; one of: op, repro, "
            "patches, mitigations, tests, reports"},
        Bad{"mitigation_in_halves", "\"needs\": [\"thing>=1.0\"],", "",
            "m.json:36: /mitigation: needs either \"modes\", \"needs\" and \"exactness\", or "
            "\"not_needed\" alone"},
        Bad{"depends_on_itself", "\"depends_on\": []", "\"depends_on\": [\"some_pack\"]",
            "m.json:41: /filing/depends_on/0: a pack cannot depend on itself"},
        Bad{"main_of_no_commit", "\"commit\": \"bb", "\"commit\": \"xb",
            "m.json:41: /filing/main/commit: not the 40 hexadecimal digits of a commit"},
        Bad{"main_of_no_day", "2026-03-01", "1 March",
            "m.json:41: /filing/main/date: not a day, YYYY-MM-DD"},
        Bad{"no_day", "2026-12-01", "2026/12/01",
            "m.json:47: /lifecycle/review_on: must be a day, YYYY-MM-DD"}),
    [](const testing::TestParamInfo<Bad>& i) { return i.param.name; });

TEST(Manifest, ConfirmedClaimNamesItsRecords) {
  const std::string records = ", \"records\": [\"" + std::string(64, 'a') + "\"]";
  EXPECT_EQ(
      error_of(with(records, "")),
      "m.json:25: /scope/1/verdict: a claim that is confirmed names the records that show it");
  EXPECT_EQ(error_of(with(std::string(64, 'a'), std::string(64, 'g'))),
            "m.json:26: /scope/1/records/0: must be 64 lower-case hex digits");
}

TEST(Manifest, AMitigationLeavesCasesForAReason) {
  const std::string leaves = "\"leaves\": [{\"cases\": [\"sum\"], \"why\": \"another path\"}], ";
  const std::string from = "\"needs\": [\"thing>=1.0\"],";
  const Manifest manifest = parse(with(from, from + leaves));
  EXPECT_EQ(manifest.mitigated(), "thing");
  EXPECT_EQ(manifest.find_case("sum")->left, "another path");
  EXPECT_FALSE(manifest.find_case("sum")->is_for("mitigated"));
  EXPECT_TRUE(manifest.find_case("sum")->is_for("upstream"));
  EXPECT_TRUE(manifest.find_case("fp32")->is_for("mitigated"));
  const auto error_with = [&](std::string text, const std::string& a, const std::string& b) {
    text.replace(text.find(a), a.size(), b);
    const std::string error = error_of(with(from, from + text));
    return error.substr(error.find("/mitigation"));
  };
  EXPECT_EQ(
      error_with(leaves, "\"sum\"", "\"smu\""),
      "/mitigation/leaves/0/cases/0: no case \"smu\" in this manifest; one of: fp32, sum, bf16");
  EXPECT_EQ(error_with(leaves, "}]", "}, {\"cases\": [\"sum\"], \"why\": \"again\"}]"),
            "/mitigation/leaves/1/cases/0: this case is left twice");
}

TEST(Manifest, CellIsWaivedOnce) {
  EXPECT_EQ(error_of(with("\"waivers\": [",
                          "\"waivers\": [{\"cell\": \"tests\", \"reason\": \"some reason\"},")),
            "m.json:30: /waivers/1/cell: this cell is waived twice");
}

TEST(Manifest, CasesMayBeMissingOnlyWithoutAReproducer) {
  const std::string from = sample();
  Json document = parse_json(from, "m.json");
  document["cases"] = Json::array();
  document["scope"][0].erase("cases");
  document["scope"][0].erase("test");
  document.erase("bounds");
  EXPECT_EQ(error_of(document.dump()),
            "m.json:1: /cases: no case, and the cell \"repro\" is not waived");
  document["waivers"].push_back({{"cell", "repro"}, {"reason", "not yet built"}});
  EXPECT_EQ(error_of(document.dump()), "no error");
}

TEST(Manifest, FirstViolationOfTheTextIsTheOneThatIsNamed) {
  std::string text = with("\"silent\"", "\"loud\"");
  text.replace(text.find("2026-12-01"), 10, "tomorrow!!");
  EXPECT_EQ(error_of(text),
            "m.json:15: /cases/1/role: \"loud\" is not allowed here; one of: trigger, silent, "
            "control, survey, code");
}

TEST(Manifest, EveryObjectIsClosedButTheAxes) {
  const Json document = parse_json(sample(), "m.json");
  int num_objects = 0;
  const std::function<void(const std::string&)> visit = [&](const std::string& pointer) {
    const Json& value = document.at(Json::json_pointer(pointer));
    if (value.is_object()) {
      ++num_objects;
      Json spoilt = document;
      spoilt[Json::json_pointer(pointer)]["zzz"] = "zzz";
      const bool is_open = pointer.ends_with("/axes");
      const bool is_keyed_by_case = pointer == "/bounds" || pointer.ends_with("/functions");
      EXPECT_EQ(error_of(spoilt.dump()) == "no error", is_open) << pointer;
      if (!is_open && !is_keyed_by_case) {
        EXPECT_NE(error_of(spoilt.dump()).find("zzz: unknown key"), std::string::npos) << pointer;
      }
    }
    if (value.is_structured()) {
      for (const auto& [key, member] : value.items()) visit(pointer + "/" + pointer_segment(key));
    }
  };
  visit("");
  EXPECT_GT(num_objects, 15);
}

TEST(CheckSchema, BadSchemaIsOurOwnFault) {
  try {
    check_schema("{}", "x.json", "{\"type\": 7}");
    FAIL() << "a schema that is none was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInternal);
  }
}

TEST(CheckSchema, ManifestSchemaHoldsNoPattern) {
  EXPECT_EQ(schema().find("\"pattern"), std::string::npos)
      << "std::regex recurses once per character of input";
}

TEST(LineOfPointer, IsZeroForWhatIsNotThere) {
  EXPECT_EQ(line_of_pointer("{\n\"a\": [1,\n2]}", "/a/1"), 3);
  EXPECT_EQ(line_of_pointer("{\n\"a\": [1,\n2]}", "/a/2"), 0);
  EXPECT_EQ(line_of_pointer("{", ""), 0);
}

TEST(Manifest, ACaseMayBelongToOneOfTheUpstreams) {
  const auto of = [](const std::string& name) {
    return with("\"role\": \"trigger\"", "\"role\": \"trigger\", \"upstream\": \"" + name + "\"");
  };
  const Manifest manifest = parse(of(parse(sample()).upstreams[0].name));
  EXPECT_EQ(manifest.cases[0].upstream, manifest.upstreams[0].name);
  EXPECT_NE(error_of(of("elsewhere")).find("/cases/0/upstream: no upstream \"elsewhere\""),
            std::string::npos);
}

TEST(Manifest, AnUpstreamMayComeWithTheEnvironment) {
  EXPECT_FALSE(parse(sample()).upstreams[0].from_environment);
  EXPECT_TRUE(parse(with("\"red_pin\"", "\"from_environment\": true, \"red_pin\""))
                  .upstreams[0]
                  .from_environment);
}

TEST(Manifest, AnUpstreamThatStandsAloneRunsOnlyWhatNamesIt) {
  const Manifest manifest = parse(with("\"red_pin\"", "\"stands_alone\": true, \"red_pin\""));
  const UpstreamUse alone = manifest.upstreams[0], usual = parse(sample()).upstreams[0];
  EXPECT_TRUE(alone.stands_alone);
  EXPECT_FALSE(usual.stands_alone);
  Case item = manifest.cases[0];
  item.upstream.clear();
  EXPECT_FALSE(item.runs_on(alone));
  EXPECT_TRUE(item.runs_on(usual));
  item.upstream = alone.name;
  EXPECT_TRUE(item.runs_on(alone));
  item.upstream = "another";
  EXPECT_FALSE(item.runs_on(alone) || item.runs_on(usual));
}

TEST(Manifest, AGrowthIsBoundedOverACaseThatThereIs) {
  const auto bounded = [](const std::string& over) {
    const std::string name = parse(sample()).cases[0].name;
    Json document = parse_json(sample(), "sample");
    document["bounds"][name] = {
        {"growth_max", {{"over", over.empty() ? name : over}, {"times", 2.2}}}, {"why", "linear"}};
    return document.dump();
  };
  EXPECT_NO_THROW(parse(bounded("")));
  EXPECT_NE(error_of(bounded("elsewhere")).find("/growth_max/over"), std::string::npos);
}

TEST(Manifest, AClaimMayBeTested) {
  const auto tested = [](const std::string& failure_class, const std::string& cases) {
    return with("\"scope\": [",
                "\"scope\": [{\"claim\": \"c\", \"of\": \"ours\", \"architecture\": \"any\", "
                "\"verdict\": \"held\"" +
                    cases +
                    ", \"test\": {\"name\": \"it\", "
                    "\"version\": \"1.0\", \"subject\": \"upstream\", \"contrast\": "
                    "\"patched\", \"expects\": \"present\", \"class\": \"" +
                    failure_class + "\"}},");
  };
  const std::string cases = ", \"cases\": [\"" + parse(sample()).cases[0].name + "\"]";
  const Manifest manifest = parse(tested("wrong_result", cases));
  ASSERT_TRUE(manifest.scope[0].test.has_value());
  EXPECT_EQ(manifest.scope[0].test->upstream, manifest.upstreams[0].name);
  EXPECT_EQ(manifest.scope[0].test->contrast, "patched");
  EXPECT_NE(error_of(tested("unheard_of", cases)).find("/scope/0/test/class: no class"),
            std::string::npos);
  EXPECT_NE(error_of(tested("wrong_result", "")).find("a claim that is tested names its cases"),
            std::string::npos);
}

TEST(Manifest, AModeIsDeclaredOnceAndHasAName) {
  EXPECT_EQ(parse(sample()).modes(), std::vector<std::string>{"exact"});
  EXPECT_NE(error_of(with("[\"exact\"]", "[\"auto\"]"))
                .find("/mitigation/modes/0: is the mode without a name"),
            std::string::npos);
  const std::string subject = "\"subject\": \"upstream\"";
  const auto claim_of = [&](const std::string& mode) {
    return with(subject, "\"subject\": \"mitigated:" + mode + "\"");
  };
  EXPECT_EQ(parse(claim_of("exact")).scope[0].test->subject, "mitigated:exact");
  EXPECT_NE(error_of(claim_of("fast")).find("/scope/0/test: no mode \"fast\""), std::string::npos);
}

TEST(Subjects, AMutantOfARegionKeepsTheMode) {
  for (const Subject subject : {"mitigated:exact", "mitigated", "patched", "op"}) {
    const Subject mutant = subject.region_mutant("ties");
    EXPECT_TRUE(mutant.is_region_mutant()) << mutant.text();
    EXPECT_EQ(mutant.mode(), subject.mode()) << mutant.text();
    EXPECT_EQ(mutant.unspoiled(), subject) << mutant.text();
    EXPECT_EQ(mutant.mutant_name(), "ties");
  }
  EXPECT_EQ(Subject("mitigated:exact").region_mutant("ties"), "mitigated_mutant:exact:region:ties");
  EXPECT_EQ(Subject("mitigated:exact"), SubjectKind::kMitigated);
}

TEST(CaseSubjects, NameTheKindsThatACaseIsFor) {
  Case item{};
  for (const char* subject : {"upstream", "op", "model", "mutant:half"})
    EXPECT_TRUE(item.is_for(subject)) << subject;
  item.subjects = {"upstream"};
  for (const char* subject :
       {"upstream", "patched", "mitigated", "mutant:half", "claimed:once", "liar"})
    EXPECT_TRUE(item.is_for(subject)) << subject;
  for (const char* subject : {"op", "op_mutant:zeros", "model", "model_fixed"})
    EXPECT_FALSE(item.is_for(subject)) << subject;
}

}  // namespace
}  // namespace patchbench
