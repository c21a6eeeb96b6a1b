#include "report/table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <sstream>

#include "core/error.h"

namespace patchbench::report {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("äöü"), 3);
  EXPECT_EQ(display_width("日本"), 4);
  EXPECT_EQ(display_width("e\xcc\x81"), 1);
  EXPECT_EQ(display_width("…·×"), 3);
  EXPECT_EQ(display_width("\xff\xfe"), 2);
  EXPECT_EQ(display_width(""), 0);
}

TEST(Table, AlignsByDisplayWidth) {
  Table table({"pack", "state"});
  table.add({"ä日本", "red"});
  table.add({"plain", "green"});
  EXPECT_EQ(table.render(), "pack   state\nä日本  red\nplain  green\n");
}

TEST(Table, AlignsNumbersRight) {
  Table table({"case", "error"});
  table.add({"a", "1.5e-7"});
  table.add({"b", "3"});
  table.add({"c", "-"});
  EXPECT_EQ(table.render(), "case   error\na     1.5e-7\nb          3\nc          -\n");
}

TEST(Table, AColumnWithOneWordIsText) {
  Table table({"error"});
  table.add({"1234567"});
  table.add({"none"});
  EXPECT_EQ(table.render(), "error\n1234567\nnone\n");
}

TEST(Table, WrapsTheWidestColumnToEightyColumns) {
  Table table({"case", "why", "error"});
  std::string why;
  for (int i = 0; i < 30; ++i) why += "word" + std::to_string(i) + " ";
  table.add({"masked_fp32", why, "1.0"});
  std::string joined;
  for (const std::string& line : lines_of(table.render())) {
    EXPECT_LE(display_width(line), 80) << line;
    joined += line + " ";
  }
  for (int i = 0; i < 30; ++i)
    EXPECT_NE(joined.find("word" + std::to_string(i)), std::string::npos);
  EXPECT_NE(joined.find("masked_fp32"), std::string::npos) << "a narrow column was broken";
}

TEST(Table, NoWidthBreaksASlug) {
  Table table({"pack", "what", "line"});
  table.add({"sparse_mla_pdp_precision", "fp8_storage_dispatch in mitigated:named_cases",
             "PATCHBENCH_MITIGATE=liger_flce_none_bwd,mamba3_siso_bwd_cse"});
  for (const int width : {20, 40, 60, 80, 120}) {
    const std::string text = table.render({.width = width});
    for (const char* slug : {"sparse_mla_pdp_precision", "fp8_storage_dispatch", "named_cases",
                             "liger_flce_none_bwd", "mamba3_siso_bwd_cse"})
      EXPECT_NE(text.find(slug), std::string::npos) << slug << " at " << width << ":\n" << text;
  }
}

TEST(Table, ARowThatSlugsMakeTooWideBecomesABlock) {
  Table table({"pack", "claim", "note", "now"});
  table.add({"sparse_mla_pdp_precision", "claim third_branch_rounds_biases", "", "red"});
  table.add({"te_fused_ce", "reproduce", "a b c d", "green"});
  EXPECT_EQ(table.render({.width = 40}),
            "pack   sparse_mla_pdp_precision\n"
            "claim  claim third_branch_rounds_biases\n"
            "now    red\n"
            "\n"
            "pack   te_fused_ce\n"
            "claim  reproduce\n"
            "note   a b c d\n"
            "now    green\n");
  EXPECT_NE(table.render().find("pack                      claim"), std::string::npos)
      << "80 columns hold the table";
}

TEST(Table, AWordThatIsNoSlugGivesItsRowTheWidth) {
  Table table({"pack", "digest"});
  table.add({"sparse_mla_dims", std::string(64, 'a') + "_" + std::string(64, 'b')});
  for (const std::string& line : lines_of(table.render({.width = 40})))
    EXPECT_LE(display_width(line), 40) << line;
}

TEST(Table, PlainIsOneRowALineWithTabsWhateverTheWidth) {
  Table table({"pack", "why"});
  table.add({"sparse_mla_dims", "a\ttab and a\nline " + std::string(200, 'x')});
  EXPECT_EQ(table.render({.width = 20, .is_plain = true}),
            "pack\twhy\nsparse_mla_dims\ta tab and a line " + std::string(200, 'x') + "\n");
}

TEST(Table, WideCharactersAreNotSplitAtTheEdge) {
  Table table({"t"});
  std::string text;
  for (int i = 0; i < 40; ++i) text += "日";
  table.add({text});
  std::string joined;
  for (const std::string& line : lines_of(table.render({.width = 21}))) {
    EXPECT_LE(display_width(line), 21);
    if (line != "t") joined += line;
  }
  EXPECT_EQ(joined, text);
}

TEST(Table, NoTrailingSpacesAndMissingCellsAreEmpty) {
  Table table({"a", "b", "c"});
  table.add({"x"});
  EXPECT_EQ(table.render(), "a  b  c\nx\n");
  EXPECT_THROW(table.add({"1", "2", "3", "4"}), Error);
}

TEST(Table, ControlCharactersOfASubjectNeverReachTheTerminal) {
  Table table({"reason"});
  table.add({"\x1b[31mred\nnew line\x07\x7f"});
  const std::string text = table.render();
  EXPECT_EQ(text, "reason\n [31mred new line\n");
}

TEST(Table, ColoursOnlyWhereTheStyleSays) {
  Table table({"state", "n"});
  table.add({"red", "1"});
  table.color(0, Color::kRed);
  EXPECT_EQ(table.render().find('\x1b'), std::string::npos);
  const std::string colored = table.render({.is_colored = true});
  EXPECT_NE(colored.find("\x1b[31mred\x1b[0m"), std::string::npos);
  EXPECT_EQ(table.to_json()[0]["state"], "red");
}

TEST(Table, TheLastTwoLinesAreASentenceAndACommand) {
  EXPECT_EQ(closing("The fix holds.", "patchbench bundle toy"),
            "The fix holds.\nnext: patchbench bundle toy\n");
}

TEST(Style, IntoAPipeARowIsOneLine) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Table table({"why", "line"});
  table.add({std::string(500, 'x'), std::string(500, 'y')});
  EXPECT_EQ(lines_of(table.render(style_of(ends[1]))).size(), 2u);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Style, ColoursNeedATerminalAndNoColorUnset) {
  ::unsetenv("NO_COLOR");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(style_of(ends[1]).is_colored);
  ::close(ends[0]);
  ::close(ends[1]);
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "this machine has no pseudo-terminals";
  EXPECT_TRUE(style_of(terminal).is_colored);
  EXPECT_EQ(style_of(terminal).width, 80);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(style_of(terminal).is_colored);
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(style_of(terminal).is_colored);
  ::unsetenv("NO_COLOR");
  ::close(terminal);
}

TEST(Table, JsonHasOneObjectPerRowWithNumbersWhereTheyAreWanted) {
  Table table({"Red pin", "error", "digest", "version"});
  table.add({"yes", "1.5", "2701140727", "0.8"});
  table.add({"no", "-", "007", "0.8.0"});
  EXPECT_EQ(table.to_json({"error"}),
            (Json::array(
                {{{"red_pin", "yes"}, {"error", 1.5}, {"digest", "2701140727"}, {"version", "0.8"}},
                 {{"red_pin", "no"}, {"error", "-"}, {"digest", "007"}, {"version", "0.8.0"}}})));
  EXPECT_EQ(Table({"a"}).to_json(), Json::array());
}

TEST(Table, JsonHasATextWhereANumberIsWantedAndCannotBeWritten) {
  for (const std::string cell : {"1234567890123456789012", "nan", "007"}) {
    Table table({"count"});
    table.add({cell});
    EXPECT_EQ(table.to_json({"count"})[0], (Json{{"count", cell}}));
  }
}

TEST(Wrap, BreaksAtSpacesElseWithinAWord) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrap("one two three", 7), (Lines{"one two", "three"}));
  EXPECT_EQ(wrap("abcdefghij", 4), (Lines{"abcd", "efgh", "ij"}));
  EXPECT_EQ(wrap("ab cdefgh", 4), (Lines{"ab", "cdef", "gh"}));
  EXPECT_EQ(wrap("", 4), Lines{""});
}

TEST(Wrap, BreaksInFrontOfANameThatFits) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrap("pack=a_slug,b_slug", 11), (Lines{"pack=a_slug", ",b_slug"}));
  EXPECT_EQ(wrap("pack=a_slug,b_slug", 9), (Lines{"pack=", "a_slug,", "b_slug"}));
  EXPECT_EQ(wrap("pack=a_slug", 4), (Lines{"pack", "=a_s", "lug"}));
}

}  // namespace
}  // namespace patchbench::report
