#include <gtest/gtest.h>

#include "ledger/signing.h"
#include "report/advisory.h"
#include "report/openvex.h"
#include "report/osv.h"
#include "unit/export_rules.h"
#include "unit/pack_repository.h"

namespace patchbench::cli {
namespace {

using Problems = std::vector<std::string>;

/// A window on one device: a letter a release, b and c bad in two classes, a absent, ? unresolved,
/// - not measured.
report::Advisory advisory(const std::string& states, const std::string& other_device = "") {
  report::Advisory out{
      .slug = "some_pack",
      .title = "A defect",
      .upstream = "thing",
      .project = "thing",
      .number = 7,
      .classes = {{"bad", "it is bad"}, {"worse", "it is worse"}},
      .mitigation = {{"modes", {"exact"}}, {"needs", {"thing>=1"}}, {"exactness", "exact"}}};
  const auto add = [](report::AdvisoryRelease& release, const std::string& device, char c) {
    const std::string state = c == 'b'   ? "bad"
                              : c == 'c' ? "worse"
                              : c == 'a' ? "absent"
                                         : "unresolved";
    if (c != '-')
      release.states.push_back(
          {device, state, "2026-01-02T03:04:05Z", std::string(64, c == '?' ? '0' : c)});
  };
  for (std::size_t i = 0; i < states.size(); ++i) {
    report::AdvisoryRelease release{std::to_string(i + 1) + ".0", {}};
    add(release, "cpu", states[i]);
    if (i < other_device.size()) add(release, "gpu", other_device[i]);
    out.releases.push_back(std::move(release));
  }
  return out;
}

/// "1.0-fixed:3.0" for each range of the record's only entry.
std::string ranges(const std::string& states) {
  const Json record = report::osv_record(advisory(states));
  if (record.is_null()) return "none";
  EXPECT_EQ(rules::osv_problems(record), Problems{}) << states;
  std::string text;
  for (const Json& range : record.at("affected").at(0).at("ranges")) {
    const Json last = range.at("events").at(1);
    text += (text.empty() ? "" : " ") +
            range.at("events").at(0).at("introduced").get<std::string>() + "-" +
            last.begin().key() + ":" + last.begin().value().get<std::string>();
  }
  return text;
}

TEST(Osv, RangesEndWhereBothSidesWereMeasured) {
  EXPECT_EQ(ranges("abba"), "2.0-fixed:4.0");
  EXPECT_EQ(ranges("bbaa"), "1.0-fixed:3.0");
  EXPECT_EQ(ranges("abb"), "2.0-last_affected:3.0");
  EXPECT_EQ(ranges("abba"
                   "bb"
                   "a"),
            "2.0-fixed:4.0 5.0-fixed:7.0");
}

TEST(Osv, NothingIsSaidOfWhatWasNotMeasured) {
  EXPECT_EQ(ranges("bb-a"), "1.0-last_affected:2.0");
  EXPECT_EQ(ranges("bb?a"), "1.0-last_affected:2.0");
  EXPECT_EQ(ranges("b-ba"), "1.0-last_affected:1.0 3.0-fixed:4.0");
  EXPECT_EQ(ranges("aa--"), "none");
  const Json record = report::osv_record(advisory("b-?a"));
  EXPECT_EQ(record.at("affected").at(0).at("database_specific").at("not_judged"),
            Json({"2.0", "3.0"}));
}

TEST(Osv, AnotherClassIsAffectedToo) {
  EXPECT_EQ(ranges("bcca"), "1.0-fixed:4.0");
  const Json entry = report::osv_record(advisory("bcca")).at("affected").at(0);
  EXPECT_EQ(entry.at("versions"), Json({"1.0", "2.0", "3.0"}));
  EXPECT_EQ(entry.at("database_specific").at("classes").at("worse"), Json({"2.0", "3.0"}));
}

TEST(Osv, AFailureOnOneDeviceOutweighsTheOthers) {
  const Json record = report::osv_record(advisory("bbaa", "ab?a"));
  EXPECT_EQ(rules::osv_problems(record), Problems{});
  const Json& entry = record.at("affected").at(0);
  EXPECT_EQ(record.at("affected").size(), 1u);
  EXPECT_EQ(entry.at("versions"), Json({"1.0", "2.0"}));
  EXPECT_EQ(entry.at("ranges").at(0).at("events").at(1), Json({{"fixed", "3.0"}}));
  EXPECT_EQ(entry.at("ecosystem_specific").at("devices"), Json({"cpu", "gpu"}));
}

TEST(OsvRules, BrokenRecordsAreSeen) {
  const Json good = report::osv_record(advisory("abba"));
  const auto broken = [&](const std::string& pointer, const Json& value) {
    Json record = good;
    record[Json::json_pointer(pointer)] = value;
    return rules::osv_problems(record).size();
  };
  EXPECT_EQ(rules::osv_problems(good), Problems{});
  EXPECT_EQ(broken("/modified", "yesterday"), 1u);
  EXPECT_EQ(broken("/surplus", 1), 1u);
  EXPECT_EQ(broken("/affected/0/package/name", ""), 1u);
  EXPECT_EQ(broken("/affected/0/ranges/0/events/0", {{"fixed", "1.0"}}), 1u);
  EXPECT_EQ(broken("/affected/0/ranges/0/events/2", {{"last_affected", "3.0"}}), 1u);
  EXPECT_EQ(broken("/references", {{{"type", "LINK"}, {"url", "https://x.org"}}}), 1u);
}

/// The statuses of a window, a letter a release: A affected, F fixed, N not affected, U under
/// investigation.
std::string statuses(const std::string& states, const std::string& other = "") {
  const Json document = report::openvex_document({advisory(states, other)});
  EXPECT_EQ(rules::openvex_problems(document), Problems{}) << states;
  std::string text;
  for (const Json& s : document.at("statements"))
    text += static_cast<char>(std::toupper(s.at("status").get<std::string>()[0]));
  return text;
}

TEST(OpenVex, FixedIsSaidOfWhatWasMeasuredRightAlone) {
  EXPECT_EQ(statuses("abca-?a"), "NAAFUUF");
  EXPECT_EQ(statuses("--"), "UU");
  EXPECT_EQ(statuses("aba", "aaa"), "NAF");  // one device that sees it is enough
}

TEST(OpenVex, AffectedNamesTheActionAndTheRelease) {
  const Json s = report::openvex_document({advisory("b-a")}).at("statements").at(0);
  EXPECT_EQ(s.at("action_statement"),
            "Set PATCHBENCH_MITIGATE=some_pack (needs thing>=1; exact). Upgrade to thing 3.0.");
  EXPECT_EQ(s.at("products").at(0).at("@id"), "pkg:pypi/thing@1.0");
}

TEST(OpenVexRules, BrokenDocumentsAreSeen) {
  const Json good = report::openvex_document({advisory("aba-")});
  for (const auto& [at, key] : std::vector<std::pair<int, std::string>>{
           {1, "action_statement"}, {0, "impact_statement"}, {2, "status"}, {3, "products"}}) {
    Json document = good;
    document["statements"][at].erase(key);
    EXPECT_EQ(rules::openvex_problems(document).size(), 1u) << key;
  }
}

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    repository_.use_real_upstream();
    repository_.put_evidence("some_pack", sample::run_of("some_pack"));
  }
  sample::Ended exported(const std::string& format, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"export", "--format", format});
    return repository_.run(add_export_command, more);
  }
  sample::PackRepository repository_;
};

TEST_F(ExportTest, RealReleasesComeOutByTheRules) {
  const Json records = exported("osv").json();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(rules::osv_problems(records[0]), Problems{});
  EXPECT_EQ(records[0].at("affected").at(0).at("ranges").at(0).at("events"),
            Json({{{"introduced", "0.8.0"}}, {{"last_affected", "0.8.0"}}}));
  EXPECT_EQ(rules::openvex_problems(exported("openvex").json()), Problems{});
}

TEST_F(ExportTest, TablesHaveARowAVerdict) {
  EXPECT_EQ(exported("json").json().at(0).at("sentinel"), "BUG_REPRODUCED(wrong_gradients)");
  const std::string csv = exported("csv").out;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
  EXPECT_NE(csv.find("\"1 of 1 triggers present\""), std::string::npos);
  EXPECT_NE(exported("junit").out.find("name=\"reproduce liger-kernel 0.8.0 on cpu\""),
            std::string::npos);
}

TEST_F(ExportTest, BadWordsAreRefused) {
  EXPECT_NE(exported("sarif").error.find("usage: "), std::string::npos);
  EXPECT_NE(exported("intoto").error.find("wants --key"), std::string::npos);
}

TEST_F(ExportTest, StatementsAreSignedByDsse) {
  const std::string key = repository_.path("key.pem"), out = repository_.path("out.jsonl");
  const ledger::SigningKey made = ledger::SigningKey::create(key);
  ASSERT_EQ(exported("intoto", {"--key", key, "-o", out}).error, "");
  const Json envelope = parse_json(sample::PackRepository::read(out), "out");
  const std::string payload = *ledger::unbase64(envelope.at("payload").get<std::string>());
  EXPECT_EQ(ledger::signed_bytes(payload),
            rules::dsse_pae("application/vnd.in-toto+json", payload));
  const std::string signature = envelope.at("signatures").at(0).at("sig");
  EXPECT_TRUE(ledger::holds({made.key_id(), made.public_key(), signature}, payload));
  const Json statement = parse_json(payload, "payload");
  EXPECT_EQ(statement.at("predicate").at("result"), "PASSED");  // red on the red pin
  EXPECT_EQ(statement.at("predicate").at("passedTests"),
            Json({"upstream/masked_fp32", "upstream/sum_fp32"}));
  const std::string trusted = repository_.path("trusted.json");
  repository_.put("trusted.json", Json{{"keys", {ledger::trusted_key_entry(made, "me")}}}.dump());
  const auto verify = [&] {
    return repository_.run(add_ledger_command,
                           {"ledger", "verify-signature", out, "--trusted", trusted});
  };
  EXPECT_EQ(verify().exit_code, 0);
  Json forged = envelope;
  forged["payload"] = ledger::base64(canonical_json([&] {
    Json s = statement;
    s["predicate"]["result"] = "FAILED";
    return s;
  }()));
  repository_.put("out.jsonl", forged.dump() + "\n");
  EXPECT_EQ(verify().exit_code, 1);
  repository_.put("trusted.json", R"({"keys": []})");
  EXPECT_NE(verify().out.find("signed by no trusted key"), std::string::npos);
}

TEST_F(ExportTest, SignTakesStatementsAlone) {
  const std::string key = repository_.path("key.pem");
  ledger::SigningKey::create(key);
  repository_.put(
      "s.json",
      R"({"_type": "https://in-toto.io/Statement/v1", "subject": [{"digest": {"sha256": "00"}}], "predicateType": "x", "predicate": {"a": 1}})");
  const auto sign = [&](const std::string& file) {
    return repository_.run(add_ledger_command,
                           {"ledger", "sign", repository_.path(file), "--key", key});
  };
  EXPECT_TRUE(sign("s.json").out.starts_with("{\"payload\":"));
  repository_.put("e.json", sign("s.json").out);
  EXPECT_NE(sign("e.json").error.find("is signed already"), std::string::npos);
  repository_.put("s.json", R"({"_type": "x"})");
  EXPECT_NE(sign("s.json").error.find("is not https://in-toto.io/Statement/v1"), std::string::npos);
}

}  // namespace
}  // namespace patchbench::cli
