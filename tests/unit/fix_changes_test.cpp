// Small changes of a fix's own statements.
#include "core/fix_changes.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

using Texts = std::vector<std::string>;

Texts changed(const std::string& source, const std::vector<std::size_t>& lines) {
  Texts texts;
  for (const FixChange& one : fix_changes(source, lines))
    texts.push_back(one.what + "|" + one.text);
  return texts;
}

TEST(FixChanges, AStatementIsLeftOut) {
  EXPECT_EQ(changed("a = b\nc = d\n", {2}), Texts{"left out|a = b\npass\n"});
  EXPECT_EQ(changed("a = (\n    b\n)\n", {2}), Texts{"left out|pass\n"});
}

TEST(FixChanges, AConditionIsTurned) {
  EXPECT_EQ(changed("if a and b:\n    c()\n", {1}), Texts{"turned|if not (a and b):\n    c()\n"});
  EXPECT_EQ(changed("while x[a:b]: y\n", {1}), Texts{"turned|while not (x[a:b]): y\n"});
}

TEST(FixChanges, AWholeNumberIsMovedByOne) {
  EXPECT_EQ(changed("for i in range(9):\n    pass\n", {1}),
            Texts{"moved by one|for i in range(10):\n    pass\n"});
  EXPECT_EQ(changed("a = 1.5\n", {1}), Texts{"left out|pass\n"});
}

TEST(FixChanges, NeighbouringArgumentsAreExchanged) {
  EXPECT_EQ(changed("f(a, b.c(d), e)\n", {1}),
            (Texts{"left out|pass\n", "exchanged|f(b.c(d), a, e)\n"}));
  EXPECT_EQ(changed("f(a, k=b)\n", {1}), Texts{"left out|pass\n"});
  EXPECT_EQ(changed("f(a, a)\n", {1}), Texts{"left out|pass\n"});
  EXPECT_EQ(changed("f(*a, b)\n", {1}), Texts{"left out|pass\n"});
}

TEST(FixChanges, DefinitionsImportsAndDocstringsHaveNone) {
  EXPECT_TRUE(
      changed("import a\ndef f(x=1):\n    \"\"\"Words.\"\"\"\n    pass\n", {1, 2, 3, 4}).empty());
  EXPECT_TRUE(changed("a = b\n", {2}).empty());
}

TEST(FixChanges, TheChosenOnesAreOfAllLinesFirst) {
  std::vector<FixChange> all;
  for (std::size_t line = 1; line <= 4; ++line)
    for (const char* what : {"left out", "exchanged"}) all.push_back({"a.py", line, what, ""});
  const auto chosen = [&](std::size_t most) {
    Texts texts;
    for (const FixChange& one : chosen_changes(all, most))
      texts.push_back(std::to_string(one.line) + one.what.substr(0, 1));
    return texts;
  };
  EXPECT_EQ(chosen(2), (Texts{"1l", "3l"}));
  EXPECT_EQ(chosen(4), (Texts{"1l", "2l", "3l", "4l"}));
  EXPECT_EQ(chosen(5), (Texts{"1l", "1e", "2l", "3l", "4l"}));
  EXPECT_EQ(chosen(20).size(), 8u);
}

}  // namespace
}  // namespace patchbench
