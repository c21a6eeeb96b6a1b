#include "ledger/shared_values.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file_text.h"
#include "ledger/evidence.h"
#include "ledger/ledger.h"

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

const std::string kHead = "{\"patchbench_evidence\":2}\n";
const std::string kLong = "{\"cpu\":\"Intel(R) Xeon(R) Processor\",\"os\":\"Debian\"}";

TEST(SharedValues, AValueOfSeveralRowsIsWrittenOnce) {
  const Rows rows = {"{\"a\":1,\"machine\":" + kLong + "}", "{\"a\":2,\"machine\":" + kLong + "}"};
  EXPECT_EQ(pack_rows(rows), kHead + "{\"$\":1,\"value\":" + kLong +
                                 "}\n{\"a\":1,\"machine\":{\"$\":1}}\n"
                                 "{\"a\":2,\"machine\":{\"$\":1}}\n");
  EXPECT_EQ(rows_of(pack_rows(rows)), rows);
}

TEST(SharedValues, ADefinitionRefersToWhatSeveralDefinitionsShare) {
  Rows rows;
  for (const char* version : {"0.8.0", "0.8.1"})
    for (const char* name : {"a", "b"})
      rows.push_back(std::string("{\"context\":{\"machine\":") + kLong + ",\"version\":\"" +
                     version + "\"},\"name\":\"" + name + "\"}");
  const std::string text = pack_rows(rows);
  EXPECT_EQ(rows_of(text), rows);
  EXPECT_EQ(text.find(kLong), text.rfind(kLong));
  EXPECT_NE(text.find("\"value\":{\"machine\":{\"$\":1},"), std::string::npos) << text;
}

TEST(SharedValues, WhatLooksLikeAReferenceInsideAStringStaysText) {
  const std::string text = R"({"why":"see {\"$\":1} and \\\"{\"$\":7}\" here"})";
  EXPECT_EQ(rows_of(pack_rows({text, text})), (Rows{text, text}));
}

TEST(SharedValues, AnEnvelopeIsNeverChanged) {
  const std::string envelope = R"({"payload":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"})";
  EXPECT_EQ(pack_rows({envelope, envelope}), kHead + envelope + "\n" + envelope + "\n");
}

TEST(SharedValues, WholeRecordsAreReadAsTheyAre) {
  const std::string row = R"({"predicate":{"$":1}})";
  EXPECT_EQ(rows_of(row + "\n"), Rows{row});
}

TEST(SharedValues, FilesOneAfterTheOtherAreOneFile) {
  const Rows rows = {"{\"a\":1,\"m\":" + kLong + "}", "{\"a\":2,\"m\":" + kLong + "}"};
  const Rows others = {"{\"b\":1,\"m\":[" + kLong + "]}", "{\"b\":2,\"m\":[" + kLong + "]}"};
  Rows both = rows;
  both.insert(both.end(), others.begin(), others.end());
  EXPECT_EQ(rows_of(pack_rows(rows) + pack_rows(others)), both);
}

TEST(SharedValues, AMalformedLineIsRefusedWithItsPlace) {
  const std::string one = kHead + "{\"$\":1,\"value\":" + kLong + "}\n";
  EXPECT_EQ(refusal("{\"patchbench_evidence\":3}\n"),
            "f:1: evidence of another format than 2; a later patchbench reads it");
  EXPECT_EQ(refusal(kHead + "{\"a\":{\"$\":4}}\n"),
            "f:2: refers to 4, which nothing above defines");
  EXPECT_EQ(refusal(one + "{\"$\":1,\"value\":2}\n"), "f:3: defines 1 twice");
  EXPECT_EQ(refusal(one + "{\"$\":2}\n"), "f:3: a definition is {\"$\":N,\"value\":…}");
  EXPECT_EQ(refusal(kHead + "{\"$\":-2,\"value\":1}\n"),
            "f:2: a reference is {\"$\":N} with N from 1 on");
  EXPECT_EQ(refusal(one + "{\"a\":{\"$\":1,\"b\":2}}\n"),
            "f:3: a reference is {\"$\":N} with N from 1 on");
  // A section ends what was defined before it.
  EXPECT_EQ(refusal(one + kHead + "{\"a\":{\"$\":1}}\n"),
            "f:4: refers to 1, which nothing above defines");
}

TEST(SharedValues, DefinitionsThatGrowWithoutEndAreRefused) {
  std::string text = kHead + "{\"$\":1,\"value\":\"" + std::string(1000, 'x') + "\"}\n";
  for (int i = 2; i < 40; ++i) {
    const std::string before = "{\"$\":" + std::to_string(i - 1) + "}";
    text += "{\"$\":" + std::to_string(i) + ",\"value\":[" + before + "," + before + "]}\n";
  }
  EXPECT_EQ(refusal(text), "f:13: a record may have at most 1 MiB");
}

TEST(SharedValues, CommittedEvidenceIsInThisFormAndAsSmallAsItGets) {
  int num_files = 0;
  for (const auto& folder :
       std::filesystem::directory_iterator(PATCHBENCH_ROOT "/reports/evidence")) {
    if (!folder.is_directory()) continue;
    each_evidence_file(PATCHBENCH_ROOT, {folder.path().filename().string()},
                       [&](const std::string& text, const std::string& file) {
                         ++num_files;
                         EXPECT_EQ(text, pack_rows(rows_of(text)))
                             << file << ": not in format 2; write it again by `ledger import` into "
                             << "a new ledger and `ledger export`";
                       });
  }
  EXPECT_GT(num_files, 0);
}

}  // namespace
}  // namespace patchbench::ledger
