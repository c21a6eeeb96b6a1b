#include "core/record.h"

#include <gtest/gtest.h>

#include "core/digest.h"
#include "core/error.h"
#include "unit/sample_run.h"

namespace patchbench {
namespace {

std::string refusal(const Json& statement) {
  try {
    parse_record(canonical_json(statement), "here");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage) << e.what();
    EXPECT_TRUE(std::string(e.what()).starts_with("here: ")) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "taken: " << statement.dump();
  return "";
}

RunWitnesses by_digest(const std::vector<Record>& records) {
  RunWitnesses out;
  for (const Record& record : records) out.add(record, record.digest());
  return out;
}

std::string broken(const Record& verdict, const std::vector<Record>& observations) {
  try {
    check_verdict(verdict, by_digest(observations));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIntegrity) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "the verdict holds";
  return "";
}

struct Sample {
  std::vector<Record> observations = {sample::run()[0], sample::run()[1]};
  Record verdict = sample::run()[2];
};

TEST(Record, HasTheInTotoShape) {
  const Json s = Sample().observations[0].statement;
  EXPECT_EQ(s.at("_type"), "https://in-toto.io/Statement/v1");
  EXPECT_EQ(s.at("predicateType"), "urn:patchbench:observation:v1");
  ASSERT_EQ(s.at("subject").size(), 1u);
  EXPECT_EQ(s.at("subject")[0].at("name"), "liger-kernel@0.8.0");
  EXPECT_EQ(s.at("subject")[0].at("digest").at("gitTree"), std::string(40, 'a'));
}

TEST(Record, IsAboutTheManifestWhereNoCheckoutWasUsed) {
  RunContext in_process = sample::context();
  in_process.tree.clear();
  const Json subjects =
      make_observation_record(in_process, sample::red_observations()[0]).statement.at("subject");
  ASSERT_EQ(subjects.size(), 1u);
  EXPECT_EQ(subjects[0].at("name"), "packs/liger_flce_none_bwd/manifest.json");
  EXPECT_EQ(subjects[0].at("digest").at("sha256"), sha256_hex("manifest"));
}

TEST(Record, AnObservationOfFourTensorsTakesAtMostTwoKibibytes) {
  EXPECT_LE(canonical_json(Sample().observations[0].statement).size(), 2048u);
}

TEST(Record, KeepsWhatAVerdictRestsOnHoweverMuchASubjectSays) {
  Observation o = sample::red_observations()[0];
  o.status = CaseStatus::kUnresolved;
  o.reason = "raised ValueError";
  o.failure_class.clear();
  const Json kept = {{"exception", {{"type", "ValueError"}}},
                     {"lines", {{"num", 9}, {"text", 0}, {"missed", {"a.py:3"}}}}};
  for (const std::size_t num_letters : {10u, 100'000u}) {
    o.self_reported = kept;
    o.self_reported["notes"] = std::string(num_letters, 'a');
    const Record record = make_observation_record(sample::context(), o);
    EXPECT_LE(canonical_json(record.statement).size(), 8192u);
    EXPECT_EQ(witness_of(record).observation.self_reported, kept);
    EXPECT_TRUE(witness_of(record).observation.is_wrong());
  }
}

TEST(Record, DigestIsThatOfTheCanonicalTextWhateverTheKeyOrder) {
  const Record record = Sample().verdict;
  const std::string text = canonical_json(record.statement);
  EXPECT_EQ(record.digest(), sha256_hex(text));
  EXPECT_EQ(parse_record(text, "here").digest(), record.digest());
}

TEST(Record, EveryTypeSurvivesItsText) {
  std::vector<Record> records = sample::run();
  records.push_back(make_record("window", sample::context(), {{"states", {{"0.8.0", "absent"}}}}));
  records.push_back(make_record("measurement", sample::context(), {{"peak_bytes", 5}}));
  records.push_back(make_record("evict", sample::context(),
                                {{"digest", sha256_hex("x")}, {"why", "wrong machine"}}));
  for (const Record& record : records) {
    const Record back = parse_record(canonical_json(record.statement), "here");
    EXPECT_EQ(back.statement, record.statement);
    EXPECT_EQ(back.run_id(), sample::context().run_id);
  }
  EXPECT_EQ(records[0].type(), "observation");
  EXPECT_EQ(records[2].type(), "verdict");
  EXPECT_EQ(records[5].type(), "evict");
}

TEST(Record, OnlyTheThreeFreeTypesAreMadeFreely) {
  EXPECT_THROW(make_record("verdict", sample::context(), {{"sentinel", "FIX_VALIDATED"}}), Error);
  EXPECT_THROW(make_record("opinion", sample::context(), Json::object()), Error);
  EXPECT_THROW(make_record("window", sample::context(), {{"context", 1}}), Error);
  EXPECT_THROW(make_record("window", sample::context(), Json::array()), Error);
}

TEST(Record, ObservationAndOutcomeComeBackAsTheyWere) {
  const Sample run;
  EXPECT_EQ(observation_of(run.observations[0]).to_json(), sample::red_observations()[0].to_json());
  const Outcome outcome = outcome_of(run.verdict);
  EXPECT_EQ(outcome.text(), "BUG_REPRODUCED(wrong_gradients)");
  EXPECT_EQ(cited_by(run.verdict),
            (std::vector<std::string>{run.observations[0].digest(), run.observations[1].digest()}));
  EXPECT_THROW(observation_of(run.verdict), Error);
  EXPECT_THROW(outcome_of(run.observations[0]), Error);
}

TEST(Record, ContextWithoutTheOptionalPartsIsShort) {
  RunContext c = sample::context();
  c.pin = {};
  c.sandbox = {};
  c.files = c.machine = Json::object();
  c.tree.clear();
  c.environment.clear();
  EXPECT_EQ(c.to_json().size(), 5u);
  EXPECT_EQ(RunContext::from_json(c.to_json()).to_json(), c.to_json());
  EXPECT_FALSE(c.is_isolated());
  EXPECT_TRUE(sample::context().is_isolated());
}

TEST(ParseRecord, RefusesEachMalformedPart) {
  const Json good = Sample().observations[0].statement, verdict = Sample().verdict.statement;
  const std::vector<std::pair<Json, Json>> cases = {
      {good, {{"_type", "https://in-toto.io/Statement/v0.1"}}},
      {good, {{"predicateType", "urn:patchbench:observation:v2"}}},
      {good, {{"predicateType", "urn:patchbench:rumour:v1"}}},
      {good, {{"extra", 1}}},
      {good, {{"subject", Json::array()}}},
      {good, {{"predicate", {{"extra", 1}}}}},
      {good, {{"predicate", {{"context", {{"run_id", "short"}}}}}}},
      {good, {{"predicate", {{"context", {{"started", "yesterday"}}}}}}},
      {good, {{"predicate", {{"context", {{"tree", "zz"}}}}}}},
      {good, {{"predicate", {{"context", {{"files", {{"a.py", "zz"}}}}}}}}},
      {good, {{"predicate", {{"context", {{"edits", Json::array()}}}}}}},
      {good, {{"predicate", {{"context", {{"pin", {{"version", 8}}}}}}}}},
      {good, {{"predicate", {{"context", {{"sandbox", {{"isolated", "yes"}}}}}}}}},
      {good, {{"predicate", {{"context", {{"extra", 1}}}}}}},
      {good, {{"predicate", {{"observation", {{"slug", "another_pack"}}}}}}},
      {good,
       {{"predicate", {{"observation", {{"self_reported", {{"log", std::string(8200, 'x')}}}}}}}}},
      {verdict, {{"predicate", {{"sentinel", "FIX_VALIDATED"}}}}},
      {verdict, {{"predicate", {{"sentinel", "VERY_GOOD(wrong_gradients)"}}}}},
      {verdict, {{"predicate", {{"observations", {"abc"}}}}}},
      {verdict, {{"predicate", {{"question", {{"extra", 1}}}}}}}};
  for (const auto& [base, patch] : cases) {
    Json changed = base;
    changed.merge_patch(patch);
    EXPECT_NE(refusal(changed), "") << patch.dump().substr(0, 200);
  }
}

TEST(ParseRecord, TakesOnlyCanonicalBytes) {
  const std::string text = canonical_json(Sample().verdict.statement);
  EXPECT_THROW(parse_record(" " + text, "here"), Error);
  EXPECT_THROW(parse_record(text + "\n", "here"), Error);
  EXPECT_THROW(parse_record(text.substr(0, text.size() - 1), "here"), Error);
  EXPECT_THROW(parse_record("[]", "here"), Error);
  EXPECT_THROW(parse_record(std::string(2 << 20, ' '), "here"), Error);
}

TEST(MakeObservationRecord, TooMuchSelfReportIsKeptByDigest) {
  Observation o = sample::red_observations()[0];
  o.self_reported = {{"log", std::string(20'000, 'x')}};
  const Record record = make_observation_record(sample::context(), o);
  const std::string text = canonical_json(record.statement);
  EXPECT_LE(text.size(), 8192u);
  const Json said = observation_of(parse_record(text, "here")).self_reported;
  EXPECT_EQ(said.at("sha256"), sha256_hex(canonical_json(o.self_reported)));
}

TEST(CheckVerdict, HoldsForWhatTheObservationsGive) {
  const Sample run;
  EXPECT_NO_THROW(check_verdict(run.verdict, by_digest(run.observations)));
}

TEST(CheckVerdict, FindsASentinelThatWasNotEarned) {
  const Sample run;
  Outcome lie = outcome_of(run.verdict);
  lie.sentinel = Sentinel::kBugAbsent;
  lie.argument.clear();
  const Record verdict =
      make_verdict_record(sample::context(), sample::question(), lie, cited_by(run.verdict));
  EXPECT_NE(broken(verdict, run.observations)
                .find("states BUG_ABSENT but its observations give BUG_REPRODUCED"),
            std::string::npos);
}

TEST(CheckVerdict, FindsAnotherClassOrAlias) {
  const Sample run;
  Outcome other = outcome_of(run.verdict);
  other.argument = "reduction_ignored";
  EXPECT_NE(broken(make_verdict_record(sample::context(), sample::question(), other,
                                       cited_by(run.verdict)),
                   run.observations),
            "");
  other = outcome_of(run.verdict);
  other.alias = "FINE";
  EXPECT_NE(broken(make_verdict_record(sample::context(), sample::question(), other,
                                       cited_by(run.verdict)),
                   run.observations),
            "");
}

TEST(CheckVerdict, TheProseOfTheReasonMayDiffer) {
  const Sample run;
  Outcome outcome = outcome_of(run.verdict);
  outcome.why = "said otherwise";
  EXPECT_NO_THROW(check_verdict(
      make_verdict_record(sample::context(), sample::question(), outcome, cited_by(run.verdict)),
      by_digest(run.observations)));
}

TEST(CheckVerdict, FindsMissingDoubledAndForeignCitations) {
  const Sample run;
  EXPECT_NE(broken(run.verdict, {run.observations[0]}).find("which is not there"),
            std::string::npos);
  std::vector<std::string> cited = cited_by(run.verdict);
  cited.push_back(cited.front());
  const Outcome outcome = outcome_of(run.verdict);
  EXPECT_NE(broken(make_verdict_record(sample::context(), sample::question(), outcome, cited),
                   run.observations)
                .find("twice"),
            std::string::npos);
  EXPECT_NE(broken(make_verdict_record(sample::context(2), sample::question(), outcome,
                                       cited_by(run.verdict)),
                   run.observations)
                .find("of another run"),
            std::string::npos);
}

TEST(CheckVerdict, FindsAnObservationThatWasLeftOut) {
  Sample run;
  const Record red_control = make_observation_record(
      sample::context(),
      sample::observation("upstream", "mean_fp32", CaseRole::kControl, CaseStatus::kPresent));
  run.observations.push_back(red_control);
  EXPECT_NE(
      broken(run.verdict, run.observations).find("leaves out observation " + red_control.digest()),
      std::string::npos);
}

/// The plan of the sample's run, with further cases; its verdict cites it.
Sample planned(const std::vector<std::string>& further, const Json& step = Json::object()) {
  Sample run;
  Json cases = Json::array();
  for (const Record& one : run.observations) cases.push_back(observation_of(one).case_name);
  for (const std::string& name : further) cases.push_back(name);
  Json asked = {{"subject", "upstream"}, {"cases", cases}};
  asked.update(step);
  run.observations.push_back(
      make_record("plan", sample::context(), {{"plan", {{"steps", {asked}}}}}));
  run.verdict = make_verdict_record(sample::context(), sample::question(), outcome_of(run.verdict),
                                    cited_by(run.verdict), run.observations.back().digest());
  return run;
}

TEST(CheckVerdict, RestsOnEveryCaseThatItsPlanAsksFor) {
  const Sample run = planned({});
  EXPECT_NO_THROW(check_verdict(run.verdict, by_digest(run.observations)));
  EXPECT_NO_THROW(parse_record(canonical_json(run.verdict.statement), "here"));
  EXPECT_NO_THROW(parse_record(canonical_json(run.observations.back().statement), "here"));
  const Sample more = planned({"mean_fp32"});
  EXPECT_NE(broken(more.verdict, more.observations)
                .find("its plan asks for case mean_fp32 of upstream, which no observation is of"),
            std::string::npos);
  // The rules of a validation say how far a mutant has to run.
  const Sample mutant = planned({"mean_fp32"}, {{"stops_at_red", true}});
  EXPECT_NO_THROW(check_verdict(mutant.verdict, by_digest(mutant.observations)));
}

TEST(CheckVerdict, FindsAPlanThatIsNotThere) {
  Sample run = planned({});
  run.observations.pop_back();
  EXPECT_NE(broken(run.verdict, run.observations).find("cites plan "), std::string::npos);
  Json digits = run.verdict.statement;
  digits["predicate"]["plan"] = "abc";
  EXPECT_NE(refusal(digits).find("\"plan\" must be a digest"), std::string::npos);
  for (const Json& plan : {Json::object(), Json{{"steps", 1}}, Json{{"steps", {1}}},
                           Json{{"steps", {{{"subject", "op"}}}}}})
    refusal(make_record("plan", sample::context(), {{"plan", plan}}).statement);
}

TEST(CheckVerdict, OtherSubjectsOfTheRunNeedNotBeCited) {
  Sample run;
  run.observations.push_back(make_observation_record(
      sample::context(),
      sample::observation("op", "mean_fp32", CaseRole::kControl, CaseStatus::kPresent)));
  EXPECT_NO_THROW(check_verdict(run.verdict, by_digest(run.observations)));
}

TEST(Chain, EachLinkDependsOnAllBefore) {
  const std::string a = sha256_hex("a"), b = sha256_hex("b");
  EXPECT_EQ(chain_next("", a), sha256_hex(std::string(64, '0') + a));
  EXPECT_EQ(chain_next(chain_next("", a), b), sha256_hex(sha256_hex(std::string(64, '0') + a) + b));
  EXPECT_NE(chain_next(chain_next("", a), b), chain_next(chain_next("", b), a));
}

}  // namespace
}  // namespace patchbench
