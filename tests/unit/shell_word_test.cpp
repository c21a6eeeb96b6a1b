#include "core/shell_word.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

TEST(ShellWord, IsQuotedOnlyWhereAShellWouldReadIt) {
  EXPECT_EQ(shell_word("path:/a/b-1.0,x=@y"), "path:/a/b-1.0,x=@y");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's $x"), R"('it'\''s $x')");
}

}  // namespace
}  // namespace patchbench
