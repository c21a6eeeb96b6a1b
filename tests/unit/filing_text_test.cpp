#include "status/filing_text.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

constexpr const char* kDiff =
    "diff --git a/toy/a.py b/toy/a.py\n"
    "index 1..2 100644\n"
    "--- a/toy/a.py\n"
    "+++ b/toy/a.py\n"
    "@@ -1,4 +1,5 @@\n"
    "-import old\n"
    "+import new\n"
    " \n"
    "+# a comment of ours\n"
    "     first()\n"
    "@@ -20,3 +21,3 @@ def f():\n"
    " \tkept()\n"
    "-    # a comment of theirs\n"
    "-    wrong()\n"
    "+    right()\n"
    "--- x\n"
    "diff --git a/toy/b.py b/toy/b.py\n"
    "--- a/toy/b.py\n"
    "+++ b/toy/b.py\n"
    "@@ -7,2 +7,3 @@\n"
    " context()\n"
    "+added()\n"
    " context()\n"
    "diff --git a/toy/new.py b/toy/new.py\n"
    "--- /dev/null\n"
    "+++ b/toy/new.py\n"
    "@@ -0,0 +1 @@\n"
    "+new()\n";

TEST(ChangedPlaces, AreTheFirstLineOfEachReleasedFileThatCountsAndIsTakenOut) {
  const std::vector<ChangedPlace> wanted = {{"toy/a.py", "wrong()", 22}, {"toy/b.py", "", 8}};
  EXPECT_EQ(changed_places(kDiff), wanted);
  EXPECT_TRUE(changed_places("").empty());
  EXPECT_TRUE(changed_places("no diff\n@@ -\n-x\n").empty());
}

TEST(ChangedText, IsShownWhereItIsShort) {
  EXPECT_EQ(changed_text(kDiff, 9),
            "-import old\n+import new\n+# a comment of ours\n-    # a comment of theirs\n"
            "-    wrong()\n+    right()\n--- x\n+added()\n+new()\n");
  EXPECT_EQ(changed_text(kDiff, 8), "");
}

}  // namespace
}  // namespace patchbench
