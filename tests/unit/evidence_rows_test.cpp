#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "ledger/evidence.h"
#include "ledger/ledger.h"
#include "ledger/row_reader.h"
#include "ledger/row_writer.h"

namespace patchbench::ledger {
namespace {

using Rows = std::vector<std::string>;

Rows rows_of(const std::string& text) {
  Rows rows;
  each_row(text, "f",
           [&](std::string record, const std::string&) { rows.push_back(std::move(record)); });
  return rows;
}

std::string refusal(const std::string& text) {
  try {
    rows_of(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const std::string kHead = std::string(kSectionLine) + "\n";
const std::string kLong = "{\"cpu\":\"Intel(R) Xeon(R) Processor\",\"os\":\"Debian\"}";
const std::string kOtherLong = "{\"cpu\":\"AMD EPYC, four cores\",\"os\":\"Debian\"}";

/// A record of a case that a machine ran.
std::string row_of(const std::string& name, const std::string& machine) {
  return "{\"case\":\"" + name +
         "\",\"predicateType\":\"urn:observation\",\"run\":{\"machine\":" + machine + "}}";
}

TEST(EvidenceRows, WhatRowsShareIsDefinedOnceAndARowFillsTheHoles) {
  const Rows rows = {row_of("a", kLong), row_of("b", kLong), row_of("c", kLong)};
  EXPECT_EQ(pack_rows(rows), kHead + "{\"$\":1,\"value\":{\"machine\":" + kLong +
                                 "}}\n"
                                 "{\"$\":2,\"value\":{\"case\":[],\"predicateType\":"
                                 "\"urn:observation\",\"run\":[1]}}\n"
                                 "[2,\"a\"]\n[2,\"b\"]\n[2,\"c\"]\n");
  EXPECT_EQ(rows_of(pack_rows(rows)), rows);
}

TEST(EvidenceRows, ARunOfRowsWithMoreInCommonFillsThoseHolesOnce) {
  Rows rows;
  for (const std::string& machine : {kLong, kOtherLong})
    for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"})
      rows.push_back(row_of(name, machine));
  const std::string text = pack_rows(rows);
  EXPECT_EQ(rows_of(text), rows);
  EXPECT_EQ(text.find("EPYC"), text.rfind("EPYC")) << text;
  // The shape with a hole for the machine, and a definition for each that fills this hole.
  EXPECT_NE(text.find("\"run\":[]}}\n"), std::string::npos) << text;
  EXPECT_NE(text.find(",[],["), std::string::npos) << text;
  EXPECT_NE(text.find("\"l\"]\n"), std::string::npos) << text;
}

TEST(EvidenceRows, ADigestOfARowAboveIsWrittenAsItsDistance) {
  const Rows above = {row_of("a", kLong), row_of("b", kLong)};
  const std::string verdict = "{\"observations\":[\"" + sha256_hex(above[0]) + "\",\"" +
                              sha256_hex(above[1]) + "\",\"" + std::string(64, '0') + "\"]}";
  const Rows rows = {above[0], above[1], verdict};
  const std::string text = pack_rows(rows);
  EXPECT_TRUE(
      text.ends_with("\n{\"observations\":[0,[-2],[-1],\"" + std::string(64, '0') + "\"]}\n"))
      << text;
  EXPECT_EQ(rows_of(text), rows);
}

TEST(EvidenceRows, AnyShapeOfARecordComesBack) {
  const Rows rows = {
      R"({"a":[]})",
      R"({"a":{}})",
      R"({"a":[[],[[]],{}],"b":-0.5e-7,"c":null})",
      R"({"a":[[1,"x"],[2,"y"],[3,"z"]],"b":"[-1]"})",
      R"({"a":[[1,"x"],[2,"y"]],"b":"[0,[]]"})",
      R"({"why":"see {\"$\":1} and \\\"{\"$\":7}\" here, [], [1] \\"})",
  };
  // A hole's content has the shape of its container.
  Rows nested;
  for (int i = 0; i < 16; ++i)
    nested.push_back(fmt::format(
        R"({{"a":{{"some_long_key":{{"some_long_key":"some long text","z":1}},"z":{}}},"n":{}}})",
        i / 2, i));
  EXPECT_EQ(rows_of(pack_rows(nested)), nested);
  Rows many;
  for (int i = 0; i < 9; ++i) many.insert(many.end(), rows.begin(), rows.end());
  EXPECT_EQ(rows_of(pack_rows(rows)), rows);
  EXPECT_EQ(rows_of(pack_rows(many)), many);
}

TEST(EvidenceRows, AValueThatStoodAtAnotherPlaceComesBack) {
  const std::string question = "{\"classes\":{\"wrong\":1},\"red\":true}";
  const Rows rows = {"{\"plan\":{\"question\":" + question + "}}",
                     "{\"question\":" + question + "}"};
  EXPECT_EQ(rows_of(pack_rows(rows)), rows);
}

TEST(EvidenceRows, AnEnvelopeIsNeverChanged) {
  const std::string envelope = R"({"payload":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"})";
  EXPECT_EQ(pack_rows({envelope, envelope}), kHead + envelope + "\n" + envelope + "\n");
  EXPECT_EQ(rows_of(kHead + envelope + "\n"), Rows{envelope});
}

TEST(EvidenceRows, FormatTwoIsRead) {
  const std::string head = "{\"patchbench_evidence\":2}\n",
                    one = head + "{\"$\":1,\"value\":" + kLong + "}\n";
  EXPECT_EQ(
      rows_of(one + "{\"$\":2,\"value\":[1,{\"m\":{\"$\":1}}]}\n{\"a\":{\"$\":2},\"b\":[]}\n"),
      Rows{"{\"a\":[1,{\"m\":" + kLong + "}],\"b\":[]}"});
  EXPECT_EQ(refusal(head + "{\"a\":{\"$\":4}}\n"), "f:2: refers to 4, which nothing above defines");
  EXPECT_EQ(refusal(one + "{\"a\":{\"$\":1,\"b\":2}}\n"), "f:3: column 12: } is missing");
}

TEST(EvidenceRows, WholeRecordsAreReadAsTheyAre) {
  const std::string row = R"({"predicate":{"$":1}})";
  EXPECT_EQ(rows_of(row + "\n"), Rows{row});
}

TEST(EvidenceRows, FilesOneAfterTheOtherAreOneFile) {
  const Rows rows = {row_of("a", kLong), row_of("b", kLong), row_of("c", kLong)};
  const Rows others = {"{\"b\":1,\"m\":[" + kLong + "]}", "{\"b\":2,\"m\":[" + kLong + "]}"};
  Rows both = rows;
  both.insert(both.end(), others.begin(), others.end());
  EXPECT_EQ(rows_of(pack_rows(rows) + pack_rows(others)), both);
}

TEST(EvidenceRows, ADamagedLineIsRefusedWithItsPlace) {
  const std::string one = kHead + "{\"$\":1,\"value\":{\"a\":[],\"b\":[]}}\n";
  const std::map<std::string, std::string> reasons = {
      {"{\"patchbench_evidence\":4}",
       "evidence of another format than 1, 2 and 3; a later patchbench reads it"},
      {"[4,1]", "refers to 4, which nothing above defines"},
      {"[1,2]", "column 5: , is missing"},
      {"[1,2,3,4]", "column 7: ] is missing"},
      {"[1,2,[]]", "a row has a hole"},
      {"[1,2,[-1]]", "refers to the record 1 rows above, which is not there"},
      {"[1,2,[-9223372036854775808]]",
       "refers to the record -9223372036854775808 rows above, which is not there"},
      {"[1,2,[99999999999999999999]]", "column 7: a number is missing"},
      {"[1,2,\"x]", "column 6: a string is missing or has no end"},
      {"[1,2,]", "column 6: a value is missing"},
      {"[1,2,3]]", "text after the value"},
      {"[1,2,3", "column 7: ] is missing"},
      {"{\"a\":1", "column 7: , is missing"},
      {"{\"$\":1,\"value\":2}", "defines 1 twice"},
      {"{\"$\":2}", "a definition is {\"$\":N,\"value\":…} with N from 1 on"},
      {"{\"$\":0,\"value\":2}", "a definition is {\"$\":N,\"value\":…} with N from 1 on"},
      {"{\"$\":2,\"value\":[2]}", "refers to 2, which nothing above defines"},
      {std::string(100, '['), "column 2: a number is missing"},
  };
  for (const auto& [line, reason] : reasons)
    EXPECT_EQ(refusal(one + line + "\n"), "f:3: " + reason) << line;
  EXPECT_EQ(rows_of(one + "[1,2,[0,\"x\"]]\n"), Rows{R"({"a":2,"b":["x"]})"});
  // A section ends what was defined before it, and its rows.
  EXPECT_EQ(refusal(one + kHead + "[1,2,3]\n"), "f:4: refers to 1, which nothing above defines");
  EXPECT_EQ(refusal(one + "[1,2,3]\n" + kHead + "{\"a\":[-1]}\n"),
            "f:5: refers to the record 1 rows above, which is not there");
}

TEST(EvidenceRows, WhatGrowsOrNestsWithoutEndIsRefused) {
  std::string doubled = kHead + "{\"$\":1,\"value\":\"" + std::string(1000, 'x') + "\"}\n";
  for (int i = 2; i < 40; ++i) {
    const std::string before = "[" + std::to_string(i - 1) + "]";
    doubled += "{\"$\":" + std::to_string(i) + ",\"value\":[0," + before + "," + before + "]}\n";
  }
  EXPECT_EQ(refusal(doubled), "f:13: a record may have at most 1 MiB");
  std::string nested = kHead;
  for (int i = 0; i < 100; ++i) nested += "[0,";
  EXPECT_EQ(refusal(nested), "f:2: more than 64 levels");
}

TEST(EvidenceRows, CommittedEvidenceIsInThisFormAndAsSmallAsItGets) {
  int num_files = 0;
  for (const auto& folder :
       std::filesystem::directory_iterator(PATCHBENCH_ROOT "/reports/evidence")) {
    if (!folder.is_directory()) continue;
    each_evidence_file(PATCHBENCH_ROOT, {folder.path().filename().string()},
                       [&](const std::string& text, const std::string& file) {
                         ++num_files;
                         EXPECT_EQ(text, pack_rows(rows_of(text)))
                             << file << ": not in format 3; write it again by `ledger import` into "
                             << "a new ledger and `ledger export`";
                       });
  }
  EXPECT_GT(num_files, 0);
}

}  // namespace
}  // namespace patchbench::ledger
