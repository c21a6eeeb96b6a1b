#include "core/scan_rules.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/error.h"
#include "core/manifest.h"
#include "core/version_range.h"

namespace patchbench {
namespace {

std::string file_of(const std::string& path) {
  std::ifstream file(std::string(PATCHBENCH_ROOT) + "/" + path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The sample manifest with more keys.
Manifest manifest_with(const std::string& keys) {
  std::string text = file_of("tests/golden/manifest_complete.json");
  const std::string before = "\"mitigation\": {";
  text.insert(text.find(before), keys + ", ");
  return parse_manifest(text, "m.json", file_of("packs/manifest.schema.json"));
}

std::string refusal_of(const std::string& keys) {
  try {
    manifest_with(keys);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kRequires =
    R"("requires": [{"upstream": "thing", "classes": ["wrong_result"], "why": "w",
        "any_of": [{"package": "other", "versions": ">=1.0,<2"}, {"package": "third"}]}])";
constexpr const char* kTrigger =
    R"("trigger": [{"class": "wrong_result", "words": "when it rains", "code": [
        {"calls": ["a.b"], "arguments": [{"name": "x", "position": 1, "values": ["none", null, 1]}]},
        {"keys": [{"name": "k", "unless": [false]}]}]}])";

TEST(ScanRules, AreReadFromAManifest) {
  const Manifest manifest = manifest_with(std::string(kRequires) + ", " + kTrigger +
                                          R"(, "impact": {"wrong_result": "memory"})");
  ASSERT_EQ(manifest.requirements.size(), 1U);
  const Requirement& row = manifest.requirements[0];
  EXPECT_TRUE(row.is_for("thing", "wrong_result"));
  EXPECT_FALSE(row.is_for("thing", "another_class"));
  EXPECT_FALSE(row.is_for("other", "wrong_result"));
  EXPECT_EQ(row.any_of.at(0).versions + row.any_of.at(1).versions, ">=1.0,<2");
  EXPECT_EQ(manifest.impact_of("wrong_result"), "memory");
  EXPECT_EQ(manifest.impact_of("another_class"), "silent_wrong") << "what is not said is the worst";
  EXPECT_EQ(manifest.condition_of("wrong_result"), "when it rains");
  EXPECT_EQ(manifest.condition_of("another_class"), "");
  ASSERT_EQ(manifest.triggers.at(0).code.size(), 2U);
  EXPECT_EQ(manifest.triggers[0].code[0].calls.at(0), "a.b");
  EXPECT_EQ(manifest.triggers[0].code[1].keys.at(0).at("name"), "k");
}

TEST(ScanRules, ARefusalNamesTheKey) {
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  for (const auto& [keys, said] : std::vector<std::pair<std::string, std::string>>{
           {changed(kRequires, "\"thing\"", "\"thin\""),
            "/requires/0/upstream: no upstream \"thin\""},
           {changed(kRequires, "wrong_result", "wrong"),
            "/requires/0/classes/0: no class \"wrong\""},
           {changed(kRequires, ">=1.0,<2", "1.0"),
            "/requires/0/any_of/0/versions: must be comparisons"},
           {changed(kRequires, "\"why\": \"w\",", "\"y\": \"w\","), "/requires/0/y: unknown key"},
           {R"("impact": {"wrong": "memory"})", "no class \"wrong\""},
           {R"("impact": {"wrong_result": "bad"})", "is not allowed here"},
           {changed(kTrigger, "\"calls\": [\"a.b\"], ", ""), "has calls or keys, one of the two"},
           {changed(kTrigger, "\"keys\": [", "\"calls\": [\"c\"], \"keys\": ["),
            "has calls or keys"},
           {changed(kTrigger, "\"unless\": [false]", "\"unless\": [false], \"values\": [1]"),
            "values or unless"},
           {changed(kTrigger, "\"keys\": [", "\"rules_out\": [\"thin\"], \"keys\": ["),
            "/trigger/0/code/1/rules_out/0: no upstream \"thin\""},
           {changed(kTrigger, "\"keys\": [", "\"needs_gradient\": true, \"keys\": ["),
            "/trigger/0/code/1: needs_gradient: only of calls"},
           {changed(kTrigger, "\"words\"", "\"size\": {\"wrong\": 1}, \"words\""),
            "/trigger/0/size"},
           {changed(kTrigger, "\"words\"", "\"rules\": [\"red\"], \"words\""),
            "rules need the records"}}) {
    EXPECT_NE(refusal_of(keys).find(said), std::string::npos)
        << refusal_of(keys) << " for " << keys;
  }
}

TEST(ScanRules, EachPackSaysWhatEachClassDoes) {
  for (const char* slug : {"dsa_graph_capture", "sparse_mla_dims", "fp8_storage_dispatch",
                           "mamba3_siso_bwd_cse", "mamba3_mimo_gqa_bwd", "mamba3_mimo_smem_2d",
                           "liger_flce_none_bwd", "sparse_mla_pdp_precision"}) {
    const std::string path = std::string("packs/") + slug + "/manifest.json";
    const Manifest pack =
        parse_manifest(file_of(path), path, file_of("packs/manifest.schema.json"));
    EXPECT_EQ(pack.impacts.size(), pack.classes.size()) << path;
    EXPECT_NE(pack.condition_of(pack.classes_order.front()), "") << path;
  }
}

TEST(VersionRange, ComparesAsTheIndexDoes) {
  EXPECT_EQ(in_version_range("0.19.2", ">=0.19.0,<0.20"), true);
  EXPECT_EQ(in_version_range("0.9", ">=0.19.0"), false);
  EXPECT_EQ(in_version_range("2.3.2.post1", "==2.3.2"), false);
  EXPECT_EQ(in_version_range("1.0", "==1.0.0"), true);
  EXPECT_EQ(in_version_range("1.0", "!=1"), false);
  EXPECT_EQ(in_version_range("0.8.5", "==0.8.*"), true);
  EXPECT_EQ(in_version_range("0.9", "==0.8.*"), false);
  EXPECT_EQ(in_version_range("0.8.5", "!=0.8.*"), false);
  EXPECT_EQ(in_version_range("0.9", "!=0.8.*"), true);
  EXPECT_EQ(in_version_range("0.8.5", "~=0.8.1"), true);
  EXPECT_EQ(in_version_range("0.8.0", "~=0.8.1"), false);
  EXPECT_EQ(in_version_range("0.9", "~=0.8.1"), false);
  EXPECT_EQ(in_version_range("0.9", "~=0.8"), true);
  EXPECT_EQ(in_version_range("1.0", "~=0.8"), false);
  for (const char* open : {"1.0rc1", "", "1.0+x", "abc"})
    EXPECT_EQ(in_version_range(open, ">=0.1"), std::nullopt) << open;
  for (const char* none : {"", "1.0", ">=", ">=a", ">=1,", "~=1", "==1.a.*", ">=1.*"})
    EXPECT_FALSE(is_version_range(none)) << none;
  EXPECT_EQ(compare_versions("0.5.10", "0.5.9"), 1);
}

}  // namespace
}  // namespace patchbench
