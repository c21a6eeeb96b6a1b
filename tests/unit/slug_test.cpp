#include "core/slug.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"

namespace patchbench {
namespace {

TEST(Slug, TakesWordsJoinedByUnderscores) {
  for (const char* text : {"a", "liger_flce_none_bwd", "mamba3_mimo_smem_2d", "x9_9"}) {
    EXPECT_EQ(Slug(text).str(), text);
  }
  EXPECT_EQ(Slug(std::string(48, 'a')).str().size(), 48u);
}

TEST(Slug, RefusesWhatCouldLeaveItsFolderOrReadAmbiguously) {
  for (const std::string& text :
       {std::string(), std::string("../x"), std::string("A"), std::string("9a"),
        std::string("a__b"), std::string("_a"), std::string("a_"), std::string("a-b"),
        std::string("a b"), std::string("a\0b", 3), std::string(49, 'a')}) {
    EXPECT_THROW(Slug{text}, Error) << text;
  }
}

TEST(CellPath, IsTheRowNameInEveryColumn) {
  const Slug slug("some_pack");
  EXPECT_EQ(cell_path(slug, Column::kPack), "packs/some_pack");
  EXPECT_EQ(cell_path(slug, Column::kRepro), "repro/some_pack");
  EXPECT_EQ(cell_path(slug, Column::kPatches), "patches/some_pack");
  EXPECT_EQ(cell_path(slug, Column::kMitigation),
            "mitigations/patchbench_mitigations/some_pack.py");
  EXPECT_EQ(cell_path(slug, Column::kTest), "tests/packs/some_pack_test.cpp");
  EXPECT_EQ(cell_path(slug, Column::kEvidence), "reports/evidence/some_pack");
  std::set<std::string> names;
  for (const Column column : all_columns()) {
    names.insert(column_name(column));
    EXPECT_TRUE(cell_path(slug, column).starts_with(column_name(column) + "/"));
  }
  EXPECT_EQ(names.size(), 6u);
}

TEST(Nearest, TakesTheCloserOfTwoAndNothingFarAway) {
  EXPECT_EQ(nearest("podmn", {"docker", "podman", "bwrap"}), "podman");
  EXPECT_EQ(nearest("0.8.6", {"0.8.5", "0.7.0"}), "0.8.5");
  EXPECT_EQ(nearest("abc", {"xyz"}), "");
  EXPECT_EQ(nearest("ab", {"ac"}), "") << "a third of two letters is none";
  EXPECT_EQ(nearest("", {"a"}), "");
  EXPECT_EQ(nearest("reproduc", {"reproduce", "reproduces"}), "reproduce");
}

TEST(DidYouMean, ProposesOneOrListsAFew) {
  EXPECT_EQ(did_you_mean("podmn", {"docker", "podman"}), "; did you mean podman?");
  EXPECT_EQ(did_you_mean("zzz", {"docker", "podman"}), "; one of: docker, podman");
  EXPECT_EQ(did_you_mean("zzz", {}), "");
  const std::vector<std::string> many(20, "candidate");
  EXPECT_TRUE(did_you_mean("zzz", many).ends_with("candidate and 8 more"));
}

}  // namespace
}  // namespace patchbench
