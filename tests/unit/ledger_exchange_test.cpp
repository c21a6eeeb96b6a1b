#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "core/error.h"
#include "ledger/jsonl.h"
#include "ledger/ledger.h"
#include "ledger/row_reader.h"
#include "unit/sample_run.h"

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;

template <typename Work>
std::pair<ErrorCode, std::string> error_of(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return {e.code(), e.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::kInternal, ""};
}

std::string text_of(const std::vector<Record>& records) {
  std::string text;
  for (const Record& record : records) text += canonical_json(record.statement) + "\n";
  return text;
}

class ExchangeTest : public ::testing::Test {
 protected:
  /// A file that trusts `keys`.
  fs::path trusting(const std::vector<const SigningKey*>& keys) {
    Json list = Json::array();
    for (const SigningKey* key : keys) list.push_back(trusted_key_entry(*key, "somebody"));
    const fs::path path = folder_ / ("trusted" + std::to_string(num_files_++) + ".json");
    std::ofstream(path) << Json{{"keys", list}}.dump();
    return path;
  }

  std::unique_ptr<Ledger> fresh() {
    return Ledger::open(folder_ / ("ledger" + std::to_string(num_files_++) + ".db"));
  }

  sample::TempFolder folder_;
  int num_files_ = 0;
  fs::path key_path_ = folder_ / "key.pem";
  SigningKey key_ = SigningKey::create(key_path_);
};

TEST_F(ExchangeTest, AWholeExportIsTheRecordsCanonicalTexts) {
  const auto ledger = fresh();
  ledger->append(sample::run());
  EXPECT_EQ(export_jsonl(ledger->all(), "", EvidenceFormat::kWhole), text_of(sample::run()));
}

TEST_F(ExchangeTest, AnExportSharesWhatItsRecordsHoldInCommon) {
  const auto ledger = fresh();
  ledger->append(sample::run());
  const std::string text = export_jsonl(ledger->all());
  EXPECT_TRUE(text.starts_with(kSectionLine));
  EXPECT_LT(text.size(), text_of(sample::run()).size());
  EXPECT_TRUE(verify_jsonl(text, "f").ok);
  EXPECT_EQ(verify_jsonl(text, "f").head, verify_jsonl(text_of(sample::run()), "f").head);
}

TEST_F(ExchangeTest, ImportKeepsDigestsAndMarksTheOrigin) {
  const auto from = fresh(), to = fresh();
  from->append(sample::run());
  to->append(sample::run(2));
  EXPECT_EQ(import_jsonl(*to, export_jsonl(from->all()), "records.jsonl"), 3);
  const auto entries = to->all();
  ASSERT_EQ(entries.size(), 6u);
  EXPECT_EQ(entries[5].digest, from->all()[2].digest);
  EXPECT_EQ(entries[5].origin, "import");
  EXPECT_EQ(entries[5].signer, "");
  EXPECT_TRUE(to->verify().ok);
}

TEST_F(ExchangeTest, ImportingTwiceOrOverlappingAddsOnlyWhatIsNew) {
  const auto ledger = fresh();
  EXPECT_EQ(import_jsonl(*ledger, text_of(sample::run(1)), "a"), 3);
  EXPECT_EQ(import_jsonl(*ledger, text_of(sample::run(1)), "a"), 0);
  std::vector<Record> both = sample::run(1);
  for (const Record& record : sample::run(2)) both.push_back(record);
  EXPECT_EQ(import_jsonl(*ledger, text_of(both) + text_of(both), "b"), 3);
  EXPECT_TRUE(ledger->verify().ok);
}

TEST_F(ExchangeTest, ObservationsWithoutAVerdictAreTaken) {
  const auto ledger = fresh();
  const std::vector<Record> run = sample::run();
  EXPECT_EQ(import_jsonl(*ledger, text_of({run[0], run[1]}), "records.jsonl"), 2);
  EXPECT_TRUE(ledger->verify().ok);
}

TEST_F(ExchangeTest, OneBadLineKeepsAllOut) {
  const std::string good = text_of(sample::run());
  const std::vector<std::pair<std::string, std::string>> bad = {
      {good + "{}\n", "records.jsonl:4: "},
      {good + "\n" + good, "records.jsonl:4: "},
      {good + "not json\n", "records.jsonl:4: "},
      {good.substr(0, good.size() - 20), "records.jsonl:3: "},
      {"{\"payload\":\"!\",\"payloadType\":\"application/"
       "vnd.in-toto+json\",\"signatures\":[{\"keyid\":\"a\",\"sig\":\"b\"}]}\n",
       "records.jsonl:1: "},
      {"{\"payload\":\"e30=\",\"payloadType\":\"application/"
       "vnd.in-toto+json\",\"signatures\":[]}\n",
       "records.jsonl:1: "},
      {text_of({sample::run()[2]}), "records.jsonl:1: "},
      {"", "records.jsonl: "}};
  for (const auto& [text, where] : bad) {
    const auto ledger = fresh();
    const auto [code, message] = error_of([&] { import_jsonl(*ledger, text, "records.jsonl"); });
    EXPECT_TRUE(message.starts_with(where)) << message;
    EXPECT_TRUE(ledger->all().empty()) << message;
  }
}

TEST_F(ExchangeTest, SeveralFilesAreTakenTogetherOrNotAtAll) {
  const auto ledger = fresh();
  EXPECT_EQ(error_of([&] {
              import_jsonl(*ledger, {{text_of(sample::run(1)), "a"}, {"{}\n", "b"}});
            }).first,
            ErrorCode::kUsage);
  EXPECT_TRUE(ledger->all().empty());
  const std::vector<Record> run = sample::run();
  // A verdict's observations may be in a file before it.
  EXPECT_EQ(import_jsonl(*ledger, {{text_of({run[0], run[1]}), "a"}, {text_of({run[2]}), "b"}}), 3);
}

TEST_F(ExchangeTest, ASignedExportCountsWhereItsKeyIsTrusted) {
  const auto from = fresh(), to = fresh();
  from->append(sample::run());
  const std::string text = export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole);
  const Json line = Json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(line.at("payloadType"), "application/vnd.in-toto+json");
  EXPECT_EQ(line.at("signatures")[0].at("keyid"), key_.key_id());
  EXPECT_EQ(import_jsonl(*to, text, "signed", trusting({&key_})), 3);
  for (const Entry& entry : to->all()) {
    EXPECT_EQ(entry.signer, key_.key_id());
    EXPECT_TRUE(counts_for_quorum(entry));
  }
  EXPECT_TRUE(to->verify().ok) << to->verify().where;
}

TEST_F(ExchangeTest, ASignatureByAnUntrustedKeyCountsAsNone) {
  const auto from = fresh(), to = fresh();
  from->append(sample::run());
  const SigningKey other = SigningKey::create(folder_ / "other.pem");
  EXPECT_EQ(import_jsonl(*to, export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole),
                         "signed", trusting({&other})),
            3);
  EXPECT_EQ(to->all()[0].signer, "");
  EXPECT_FALSE(counts_for_quorum(to->all()[0]));
}

TEST_F(ExchangeTest, ASignatureThatDoesNotHoldKeepsAllOut) {
  const auto from = fresh(), to = fresh();
  from->append(sample::run());
  std::string text = export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole);
  Json envelope = Json::parse(text.substr(0, text.find('\n')));
  envelope["payload"] = base64(canonical_json(sample::run(2)[0].statement));
  const auto [code, message] = error_of(
      [&] { import_jsonl(*to, canonical_json(envelope) + "\n", "signed", trusting({&key_})); });
  EXPECT_EQ(code, ErrorCode::kIntegrity);
  EXPECT_TRUE(message.starts_with("signed:1: ")) << message;
  EXPECT_TRUE(to->all().empty());
}

TEST_F(ExchangeTest, AChangedSignatureInTheLedgerIsFound) {
  const auto from = fresh();
  from->append(sample::run());
  const fs::path path = folder_ / "signed.db";
  import_jsonl(*Ledger::open(path), export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole),
               "signed", trusting({&key_}));
  {
    SQLite::Database database(path.string(), SQLite::OPEN_READWRITE);
    database.exec("DROP TRIGGER signatures_no_update");
    SQLite::Statement change(database, "UPDATE signatures SET signature = ? WHERE digest = ?");
    change.bind(1, key_.sign(canonical_json(sample::run()[0].statement)).signature);
    change.bind(2, sample::run()[1].digest());
    ASSERT_EQ(change.exec(), 1);
  }
  const VerifyReport report = Ledger::open(path)->verify();
  EXPECT_FALSE(report.ok);
  const std::string expected = "row 1 (digest " + sample::run()[1].digest() + "): its signature";
  EXPECT_NE(report.where.find(expected), std::string::npos) << report.where;
}

TEST_F(ExchangeTest, ASignedFileIsVerifiedAgainstTrustedKeys) {
  const auto from = fresh();
  from->append(sample::run());
  const std::string text = export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole);
  EXPECT_TRUE(verify_jsonl(text, "f", trusting({&key_})).ok);
  Json envelope = Json::parse(text.substr(0, text.find('\n')));
  envelope["signatures"][0]["sig"] = key_.sign("something else").signature;
  const VerifyReport report = verify_jsonl(canonical_json(envelope) + "\n", "f", trusting({&key_}));
  EXPECT_FALSE(report.ok);
  EXPECT_TRUE(report.where.starts_with("f:1: ")) << report.where;
  EXPECT_NE(report.where.find("does not hold"), std::string::npos) << report.where;
}

TEST_F(ExchangeTest, AnEnvelopeOfAnotherPayloadTypeIsRefused) {
  const auto from = fresh(), to = fresh();
  from->append(sample::run());
  const std::string text = export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole);
  Json envelope = Json::parse(text.substr(0, text.find('\n')));
  envelope["payloadType"] = "text/plain";
  const auto [code, message] =
      error_of([&] { import_jsonl(*to, canonical_json(envelope) + "\n", "f"); });
  EXPECT_EQ(code, ErrorCode::kUsage);
  EXPECT_NE(message.find("payloadType"), std::string::npos) << message;
  EXPECT_TRUE(to->all().empty());
}

TEST_F(ExchangeTest, ALaterSignedImportSignsWhatIsThere) {
  const auto from = fresh(), to = fresh();
  from->append(sample::run());
  import_jsonl(*to, export_jsonl(from->all()), "plain");
  EXPECT_FALSE(counts_for_quorum(to->all()[0]));
  EXPECT_EQ(import_jsonl(*to, export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole),
                         "signed", trusting({&key_})),
            0);
  EXPECT_TRUE(counts_for_quorum(to->all()[0]));
}

TEST_F(ExchangeTest, ASignedExportDoesNotVouchForImports) {
  const auto from = fresh(), middle = fresh();
  from->append(sample::run(1));
  middle->append(sample::run(2));
  import_jsonl(*middle, export_jsonl(from->all()), "unsigned");
  const std::string text = export_jsonl(middle->all(), key_path_, EvidenceFormat::kWhole);
  EXPECT_NE(text.find(text_of(sample::run(1))), std::string::npos)
      << "an unsigned import was signed";
  const auto to = fresh();
  EXPECT_EQ(import_jsonl(*to, text, "records.jsonl", trusting({&key_})), 6);
  EXPECT_TRUE(counts_for_quorum(to->all()[0]));
  EXPECT_FALSE(counts_for_quorum(to->all()[5]));
}

TEST_F(ExchangeTest, AnImportedSignatureIsHandedOn) {
  const auto from = fresh(), middle = fresh();
  from->append(sample::run());
  const std::string text = export_jsonl(from->all(), key_path_, EvidenceFormat::kWhole);
  import_jsonl(*middle, text, "signed", trusting({&key_}));
  EXPECT_EQ(export_jsonl(middle->all(), "", EvidenceFormat::kWhole), text);
}

TEST_F(ExchangeTest, AKeyIsItsOwnersAloneAndNeverOverwritten) {
  struct stat status {};
  ASSERT_EQ(::stat(key_path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(error_of([&] { SigningKey::create(key_path_); }).first, ErrorCode::kUsage);
  EXPECT_EQ(SigningKey::load(key_path_).key_id(), key_.key_id());
}

TEST_F(ExchangeTest, WhatIsNoKeyIsRefused) {
  const fs::path path = folder_ / "no.pem";
  EXPECT_EQ(error_of([&] { SigningKey::load(path); }).first, ErrorCode::kUsage);
  std::ofstream(path) << "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
  EXPECT_NE(error_of([&] { SigningKey::load(path); }).second.find("ledger keygen"),
            std::string::npos);
}

TEST_F(ExchangeTest, ATrustFileIsReadStrictly) {
  const Json entry = trusted_key_entry(key_, "me");
  Json other_id = entry, extra = entry, short_key = entry;
  other_id["key_id"] = std::string(64, '0');
  extra["comment"] = "hi";
  short_key["public_key"] = "AAAA";
  const std::vector<Json> bad = {
      Json::array(),          {{"keys", 5}},       {{"keys", Json::array()}, {"more", 1}},
      {{"keys", {other_id}}}, {{"keys", {extra}}}, {{"keys", {short_key}}}};
  for (const Json& json : bad) {
    const fs::path path = folder_ / "bad.json";
    std::ofstream(path) << json.dump();
    const auto [code, message] = error_of([&] { load_trusted_keys(path); });
    EXPECT_TRUE(message.starts_with(path.string())) << message;
  }
  EXPECT_TRUE(load_trusted_keys("").empty());
  EXPECT_EQ(load_trusted_keys(trusting({&key_})).size(), 1u);
}

TEST(Base64, GoesBothWaysAndTakesOneFormOnly) {
  for (const std::string& bytes : {std::string(), std::string("a"), std::string("ab"),
                                   std::string("abc"), std::string("\0\xff\n", 3)}) {
    EXPECT_EQ(unbase64(base64(bytes)), bytes);
  }
  EXPECT_EQ(base64("ab"), "YWI=");
  for (const char* text : {"YWI", "YW I", "YWJ=", "YWI=\n", "====", "Y===", "YWI=YWI="})
    EXPECT_FALSE(unbase64(text)) << text;
}

TEST(VerifyFile, HoldsAndKnowsItsHead) {
  const std::string text = text_of(sample::run());
  const VerifyReport report = verify_jsonl(text, "f");
  EXPECT_TRUE(report.ok) << report.where;
  EXPECT_EQ(report.count, 3);
  EXPECT_NE(report.note.find("holds no chain"), std::string::npos);
  EXPECT_TRUE(verify_jsonl(text, "f", {}, 3, report.head).ok);
}

TEST(VerifyFile, FindsAChangedObservationThroughTheVerdictThatCitesIt) {
  std::string text = text_of(sample::run());
  text.replace(text.find("[17,3]"), 6, "[16,3]");
  const VerifyReport report = verify_jsonl(text, "f");
  EXPECT_FALSE(report.ok);
  EXPECT_NE(report.where.find("which is not there"), std::string::npos) << report.where;
}

TEST(VerifyFile, AVerdictThatDoesNotFollowIsAFailureUntilItIsEvicted) {
  std::vector<Record> records = sample::run();
  records.pop_back();
  const std::vector<std::string> cited = {records[0].digest(), records[1].digest()};
  records.push_back(make_verdict_record(sample::context(), sample::question(),
                                        {Sentinel::kBugAbsent, "", "", ""}, cited));
  records.push_back(make_record("measurement", sample::context(), {{"peak_bytes", 5}}));
  const VerifyReport doubtful = verify_jsonl(text_of(records), "f");
  EXPECT_FALSE(doubtful.ok);
  EXPECT_EQ(doubtful.bad_index, 2);
  EXPECT_TRUE(doubtful.where.starts_with("f:3: ")) << doubtful.where;
  Entry entry;
  entry.record = records[2];
  entry.digest = records[2].digest();
  records.push_back(make_evict_record(entry, "the predicate was corrected", "patchbench 0.1.0",
                                      "2026-03-01T00:00:00Z"));
  const VerifyReport evicted = verify_jsonl(text_of(records), "f");
  EXPECT_TRUE(evicted.ok) << evicted.where;
  EXPECT_EQ(evicted.count, 5);
}

TEST(VerifyFile, FindsEveryChangeAgainstAnExpectedHead) {
  const std::string text =
      text_of({make_record("measurement", sample::context(), {{"peak_bytes", 5}})});
  const VerifyReport clean = verify_jsonl(text, "f");
  std::string changed = text;
  changed.replace(changed.find("\"peak_bytes\":5"), 14, "\"peak_bytes\":4");
  EXPECT_TRUE(verify_jsonl(changed, "f").ok);
  EXPECT_FALSE(verify_jsonl(changed, "f", {}, 1, clean.head).ok);
  EXPECT_FALSE(verify_jsonl("", "f", {}, 1, clean.head).ok);
}

TEST(VerifyFile, NamesTheLineThatIsMalformedOrTwice) {
  const std::string text = text_of(sample::run());
  EXPECT_TRUE(verify_jsonl(text + "{}\n", "f").where.starts_with("f:4: "));
  EXPECT_TRUE(verify_jsonl(text + "\n", "f").where.starts_with("f:4: "));
  const VerifyReport twice = verify_jsonl(text + text, "f");
  EXPECT_TRUE(twice.where.starts_with("f:4: ")) << twice.where;
  EXPECT_NE(twice.where.find("twice"), std::string::npos);
}

}  // namespace
}  // namespace patchbench::ledger
