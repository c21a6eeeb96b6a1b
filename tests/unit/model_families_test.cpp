#include "status/model_families.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/scan_conditions.h"
#include "core/scan_report.h"
#include "unit/sample_run.h"

namespace patchbench {
namespace {

constexpr const char* kTable = R"({"upstream": "u", "rows": [
  {"release": "1", "family": "Right", "classes": [], "off": 1e-7},
  {"release": "1", "family": "AlsoRight", "classes": [], "off": 1e-7},
  {"release": "1", "family": "Wrong", "classes": ["c"], "off": 0.082},
  {"release": "1", "family": "Odd", "classes": ["unexplained"], "off": 0.5},
  {"release": "2", "family": "Right", "classes": ["d"], "off": 3.0}]})";

/// A hit by the classes c and d, whose condition code meets.
class ModelFamilies : public ::testing::Test {
 protected:
  ModelFamilies() {
    std::filesystem::create_directories(folder_ / "a");
    std::ofstream(folder_ / "a/families.json") << kTable;
    ScanAnswer one{.slug = "a", .upstream = "u", .package = "p", .version = "1"};
    one.state = ScanState::kHit;
    one.classes = {{.name = "c", .impact = "crash", .condition = "when"},
                   {.name = "d", .impact = "crash", .condition = "when"}};
    report_.answers = {one};
    report_.code = {{.slug = "a", .file = "train.py", .line = 3}};
    for (const char* name : {"c", "d"})
      report_.code[0].classes.push_back(
          {.name = name, .impact = "crash", .state = SiteState::kMeets});
  }

  /// The state of the answer, and of its classes.
  std::string said(const std::vector<ModelConfig>& models) {
    report_.models = models;
    report_.ruled_out.clear();
    report_.notes.clear();
    ScanReport report = report_;
    apply_model_families(report, folder_ / "");
    apply_conditions(report);
    notes_ = report.notes;
    exit_ = scan_exit(report, {.fail_on = {"crash"}});
    std::string text = scan_state_name(report.answers[0].state);
    for (const ScanClass& row : report.answers[0].classes) {
      text += " " + row.name + ":" + condition_state_name(row.state);
      if (!row.size_record.empty()) text += "(" + row.size + ")";
    }
    why_ = report.answers[0].why;
    return text;
  }

  sample::TempFolder folder_;
  ScanReport report_;
  std::vector<std::string> notes_;
  std::string why_;
  int exit_ = -1;
};

ModelConfig named(std::vector<std::string> classes) {
  return {.classes = std::move(classes), .place = "config.json:2", .is_named = true};
}

constexpr const char* kOpen = "hit c:met d:met";

TEST_F(ModelFamilies, AClassThatIsRightIsNotMetWhateverCodeMeets) {
  EXPECT_EQ(said({named({"Right"})}), "present c:not met d:not met");
  EXPECT_EQ(why_, "condition not met (config.json:2: Right)");
  EXPECT_EQ(exit_, 0);
  EXPECT_TRUE(notes_.empty());
  EXPECT_EQ(said({named({"Right", "AlsoRight"})}), "present c:not met d:not met");
}

TEST_F(ModelFamilies, AClassThatIsWrongHasItsSize) {
  const std::string text = said({named({"Wrong"})});
  EXPECT_TRUE(text.starts_with("hit c:met(Wrong (config.json:2): the gradient")) << text;
  EXPECT_NE(text.find("is off by 0.082 of its length in 1) d:not met"), std::string::npos) << text;
  EXPECT_EQ(exit_, 1);
  report_.code.clear();
  EXPECT_TRUE(said({named({"Wrong"})}).starts_with("hit c:open(Wrong")) << "no code was read";
}

TEST_F(ModelFamilies, WhatWasNotMeasuredLeavesAllOpen) {
  EXPECT_EQ(said({}), kOpen);
  EXPECT_EQ(said({named({"Right", "Other"})}), kOpen);
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_NE(notes_[0].find("was not measured with p 1"), std::string::npos) << notes_[0];
  EXPECT_EQ(said({named({"Right"}), named({})}), kOpen) << "custom code";
  EXPECT_NE(notes_[0].find("not known"), std::string::npos) << notes_[0];
  EXPECT_EQ(said({named({"Odd"})}), kOpen) << "wrong in a way that no class explains";
  EXPECT_TRUE(said({named({"Right", "Wrong"})}).starts_with("hit c:met(Wrong")) << "they differ";
  ModelConfig found = named({"Right"});
  found.is_named = false;
  EXPECT_EQ(said({found}), kOpen) << "another model may be trained";
  EXPECT_EQ(said({named({"Right"}), {.place = "b/config.json:1"}}), kOpen);
  report_.other_losses = {"train.py:2: peft"};
  EXPECT_EQ(said({named({"Right"})}), kOpen);
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_TRUE(notes_[0].starts_with("train.py:2: peft: ")) << notes_[0];
}

TEST_F(ModelFamilies, ARowIsOfOneReleaseAsTheIndexHasIt) {
  ScanAnswer& one = report_.answers[0];
  const ScanAnswer release = one;
  one.version = "1.0";
  EXPECT_EQ(said({named({"Right"})}), kOpen);
  one.version = "2";
  EXPECT_TRUE(said({named({"Right"})}).starts_with("hit d:met(Right"));
  one = release;
  one.files_digest = "f";
  EXPECT_EQ(said({named({"Right"})}), kOpen) << "changed files";
  one = release;
  one.source = "git";
  EXPECT_EQ(said({named({"Right"})}), kOpen);
  one = release;
  one.range = ">=1";
  EXPECT_EQ(said({named({"Right"})}), kOpen);
  one = release;
  one.upstream = "v";
  EXPECT_EQ(said({named({"Right"})}), kOpen);
  one = release;
  one.slug = "b";
  report_.code[0].slug = "b";
  EXPECT_EQ(said({named({"Right"})}), kOpen) << "a pack without a table";
}

}  // namespace
}  // namespace patchbench
