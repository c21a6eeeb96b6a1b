// Which lines of an edited file are called changed.
#include "core/changed_lines.h"

#include <gtest/gtest.h>

#include "core/edit_make.h"
#include "core/error.h"

namespace patchbench {
namespace {

Edit edit_of(const std::string& path, const std::string& before, const std::string& after) {
  Edit edit;
  edit.name = "0001-a.edit";
  edit.files.push_back(make_file_edit(path, before, after));
  return edit;
}

Json lines(const Json& changed) { return changed.at("a.py").at("lines"); }
Json gaps(const Json& changed) { return changed.at("a.py").at("gaps"); }

TEST(ChangedLines, AreNumberedAsInTheEditedFile) {
  const Json changed =
      changed_lines({edit_of("a.py", "1\n2\n3\n4\n5\n", "1\nnew\n2\n3\nother\n5\nlast\n")});
  EXPECT_EQ(lines(changed), Json({2, 5, 7}));
  EXPECT_EQ(gaps(changed), Json::array());
}

TEST(ChangedLines, WhereLinesWereTakenAwayThereIsAGap) {
  const Json changed = changed_lines({edit_of("a.py", "1\n2\n3\n4\n5\n", "1\n4\n5\n")});
  EXPECT_EQ(lines(changed), Json::array());
  EXPECT_EQ(gaps(changed), Json({2}));
}

TEST(ChangedLines, AnIndentedLineIsInAnotherBranchAndCounts) {
  const Json changed =
      changed_lines({edit_of("a.py", "1\n2\n3\n4\n", "1\nif x:\n    2\n    3\n4\n")});
  EXPECT_EQ(lines(changed), Json({2, 3, 4}));
}

TEST(ChangedLines, ASeriesIsOneChange) {
  const std::string one = "1\n2\n3\n4\n", two = "0\n1\n2\n3\n4\n", three = "0\n1\n2\n4\n5\n";
  const Json changed = changed_lines({edit_of("a.py", one, two), edit_of("a.py", two, three)});
  EXPECT_EQ(lines(changed), Json({1, 5}));
  EXPECT_EQ(gaps(changed), Json({4}));
}

TEST(ChangedLines, ANewFileIsAllNewAndADeletedOneIsGone) {
  Edit made = edit_of("a.py", "", "1\n2\n");
  made.files.front().blob.clear();
  EXPECT_EQ(lines(changed_lines({made})), Json({1, 2}));
  Edit gone = edit_of("a.py", "1\n2\n", "");
  gone.files.front().result.clear();
  EXPECT_TRUE(changed_lines({gone}).empty());
}

TEST(ChangedLines, OtherLanguagesHaveNone) {
  EXPECT_TRUE(changed_lines({edit_of("a.cu", "1\n", "2\n")}).empty());
}

}  // namespace
}  // namespace patchbench
