#include "core/observation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "unit/sample_run.h"

namespace patchbench {
namespace {

Observation red() {
  return sample::observation("upstream", "masked_fp32", CaseRole::kTrigger, CaseStatus::kPresent);
}

/// The message with which `json` is refused; fails if it is taken.
std::string refusal(const Json& json) {
  try {
    Observation::from_json(json);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  ADD_FAILURE() << "taken: " << json.dump();
  return "";
}

TEST(Observation, JsonKeepsEveryMemberAndEveryDigit) {
  Observation o = red();
  o.repeat = 3;
  o.counts = false;
  o.seed = uint64_t{1} << 53;
  const Observation back = Observation::from_json(parse_json(canonical_json(o.to_json()), "test"));
  EXPECT_EQ(back.to_json(), o.to_json());
  EXPECT_EQ(back.case_name, "masked_fp32");
  EXPECT_EQ(back.role, CaseRole::kTrigger);
  EXPECT_EQ(back.seed, uint64_t{1} << 53);
  EXPECT_EQ(back.repeat, 3);
  EXPECT_FALSE(back.counts);
  ASSERT_EQ(back.measures.size(), 4u);
  EXPECT_EQ(back.measures[1].tensor, "grad_input");
  EXPECT_EQ(back.measures[1].got, o.measures[1].got);
  EXPECT_EQ(back.measures[1].plain, o.measures[1].plain);
  EXPECT_EQ(back.measures[1].where, "[17,3]");
  EXPECT_EQ(back.self_reported, o.self_reported);
  EXPECT_EQ(back.outside, o.outside);
}

TEST(Observation, NonFiniteMeasuresGoByName) {
  Observation o = red();
  o.measures[0].got = std::numeric_limits<double>::quiet_NaN();
  o.measures[1].got = std::numeric_limits<double>::infinity();
  const Json json = o.to_json();
  EXPECT_EQ(json["measures"][0][2], "nan");
  EXPECT_EQ(json["measures"][1][2], "inf");
  EXPECT_TRUE(std::isnan(Observation::from_json(json).measures[0].got));
}

TEST(Observation, AnUnknownOrMissingKeyIsRefusedByName) {
  Json json = red().to_json();
  json["sentinel"] = "FIX_VALIDATED";
  EXPECT_NE(refusal(json).find("unknown key \"sentinel\""), std::string::npos);
  for (const char* key :
       {"slug", "subject", "case", "role", "device", "seed", "seen", "measures"}) {
    Json without = red().to_json();
    without.erase(key);
    EXPECT_NE(refusal(without).find(std::string("\"") + key + "\" is missing"), std::string::npos)
        << key;
  }
}

TEST(Observation, AWrongTypeOrValueIsRefused) {
  const std::vector<std::pair<std::string, Json>> wrong = {
      {"slug", "Not A Slug"},
      {"subject", ""},
      {"role", "bystander"},
      {"device", "tpu:0"},
      {"device", "cuda:"},
      {"seed", -1},
      {"seed", 1.5},
      {"seen", "perhaps"},
      {"inputs_sha256", "abc"},
      {"outputs_sha256", std::string(64, 'G')},
      {"measures", Json::object()},
      {"measures", {{"loss", "row", 1, 2}}},
      {"measures", Json::array({Json::array({"loss", "Good vibes", 0, 0, 0, true, ""})})},
      {"measures", Json::array({Json::array({"loss", "row", "big", 0, 0, true, ""})})},
      {"self_reported", 5},
      {"outside", Json::object()},
      {"counts", true},
      {"repeat", 0},
      {"reason", "two\nlines"},
      {"reason", std::string(401, 'x')}};
  for (const auto& [key, value] : wrong) {
    Json json = red().to_json();
    json[key] = value;
    EXPECT_NE(refusal(json), "") << key << " " << value.dump();
  }
}

TEST(Observation, AClassStandsWithPresentAndOnlyThere) {
  Json without_class = red().to_json();
  without_class.erase("class");
  EXPECT_NE(refusal(without_class).find("\"class\""), std::string::npos);
  Json absent = red().to_json();
  absent["seen"] = "absent";
  EXPECT_NE(refusal(absent).find("\"class\""), std::string::npos);
}

TEST(Observation, WhatWasNotJudgedNeedsItsReason) {
  for (const char* status : {"unjudged", "unsupported", "unresolved"}) {
    Json json = red().to_json();
    json.erase("class");
    json["seen"] = status;
    EXPECT_NE(refusal(json).find("needs a \"reason\""), std::string::npos);
    json["reason"] = "killed";
    EXPECT_EQ(case_status_name(Observation::from_json(json).status), status);
  }
}

TEST(Observation, AReasonFromASubjectBecomesOneShortLine) {
  Observation o =
      sample::observation("upstream", "masked_fp32", CaseRole::kTrigger, CaseStatus::kUnresolved);
  o.reason =
      "\x1b[2Jfirst\nsecond \xc2\x9b"
      "1m" +
      std::string(1000, 'x');
  const Observation back = Observation::from_json(o.to_json());
  EXPECT_EQ(back.reason.substr(0, 21), " [2Jfirst second  1mx");
  EXPECT_LE(back.reason.size(), 400u);
  EXPECT_TRUE(back.reason.ends_with("…"));
}

TEST(OneLine, CutsBetweenCharactersNotInsideOne) {
  EXPECT_EQ(one_line("ääää", 8), "ääää");
  EXPECT_EQ(one_line("äääää", 8), "ää…");
  EXPECT_EQ(one_line("a\tb\x7f"
                     "c",
                     80),
            "a b c");
}

TEST(CaseStatus, NamesGoBothWays) {
  for (const CaseStatus status : {CaseStatus::kPresent, CaseStatus::kAbsent, CaseStatus::kUnjudged,
                                  CaseStatus::kUnsupported, CaseStatus::kUnresolved}) {
    EXPECT_EQ(case_status_from(case_status_name(status)), status);
  }
  EXPECT_THROW(case_status_from("abscent"), Error);
}

}  // namespace
}  // namespace patchbench
