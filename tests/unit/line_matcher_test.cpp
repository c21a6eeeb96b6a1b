#include "job/line_matcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <random>
#include <regex>
#include <sstream>

#include "core/error.h"
#include "job/line_blocks.h"

namespace patchbench::job {
namespace {

using Lines = std::map<std::string, std::vector<unsigned>>;

/// Line -> the patterns that match on it.
Lines scan(LineMatcher& matcher, const std::string& block) {
  Lines out;
  matcher.scan(block, [&](const LineMatcher::Hit& hit) {
    out[block.substr(hit.begin, hit.end - hit.begin)].assign(hit.ids.begin(), hit.ids.end());
  });
  return out;
}

Lines scan(const std::vector<LinePattern>& patterns, const std::string& block) {
  LineMatcher matcher(patterns);
  return scan(matcher, block);
}

std::string refusal(const LinePattern& pattern) {
  try {
    LineMatcher matcher({pattern});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

TEST(LineMatcher, FindsTextAsItIsWrittenAndExpressions) {
  const std::string block = "a.b (c)\naxb (c)\n\nlast one";
  EXPECT_EQ(scan({{"a.b (c)", false, "t"}, {"^a.b", true, "r"}, {"one$", true, "e"}}, block),
            (Lines{{"a.b (c)", {0, 1}}, {"axb (c)", {1}}, {"last one", {2}}}));
  EXPECT_EQ(scan({{"[^a]*last", true, "r"}}, block), (Lines{{"last one", {0}}}));
}

TEST(LineMatcher, AMatchNeverSpansLines) {
  const std::string block = "begin\nend\nbegin end\n";
  EXPECT_EQ(scan({{"begin[^x]*end", true, "r"}}, block), (Lines{{"begin end", {0}}}));
  EXPECT_EQ(scan({{"begin\\send", true, "r"}}, block), (Lines{{"begin end", {0}}}));
  EXPECT_EQ(scan({{"(?s)begin.*end", true, "r"}}, block), (Lines{{"begin end", {0}}}));
}

TEST(LineMatcher, OfLookAlikesOnlyWhatIsMeantCounts) {
  const LinePattern record = {"\\.py:\\d", true, "record", [](std::string_view before, auto after) {
                                return before.starts_with("W") && after.starts_with("] ");
                              }};
  const std::string block = "W a.py:1 b.py:2] x\nI a.py:2] x\nW a.py:3 x\nW a.py:4] y";
  const Lines wanted = {{"W a.py:1 b.py:2] x", {0}}, {"W a.py:4] y", {0}}};
  EXPECT_EQ(scan({record}, block), wanted);
  // Where another pattern may cross lines, the line is looked at alone.
  const Lines both = {{"W a.py:1 b.py:2] x", {0, 1}},
                      {"I a.py:2] x", {1}},
                      {"W a.py:3 x", {1}},
                      {"W a.py:4] y", {0}}};
  EXPECT_EQ(scan({record, {"[^q]x$", true, "crossing"}}, block), both);
}

TEST(LineMatcher, RefusesByNameWhatCannotBeLookedFor) {
  EXPECT_NE(refusal({"a(", true, "open"}).find("rule open: a(: "), std::string::npos);
  EXPECT_NE(refusal({"(?=a)b", true, "ahead"}).find("rule ahead"), std::string::npos);
  EXPECT_NE(refusal({"a*", true, "empty"}).find("rule empty"), std::string::npos);
  EXPECT_NE(refusal({"a\nb", false, "two"}).find("of one line"), std::string::npos);
}

TEST(LineMatcher, AgreesWithLineByLineMatching) {
  const std::vector<LinePattern> patterns = {{"ab", false, "0"},     {"a+c", true, "1"},
                                             {"^b", true, "2"},      {"[^a]c$", true, "3"},
                                             {"c(a|b)c", true, "4"}, {".b.", true, "5"}};
  LineMatcher matcher(patterns);
  std::vector<std::regex> references;
  for (const LinePattern& pattern : patterns) references.emplace_back(pattern.text);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string block;
    for (int i = 0; i < 400; ++i) block += "abcabcx\n"[random() % 8];
    Lines want;
    std::istringstream lines(block);
    for (std::string line; std::getline(lines, line);) {
      std::vector<unsigned> ids;
      for (unsigned id = 0; id < patterns.size(); ++id) {
        if (std::regex_search(line, references[id])) ids.push_back(id);
      }
      if (!ids.empty()) want[line] = ids;
    }
    ASSERT_EQ(scan(matcher, block), want) << block;
  }
}

TEST(CountLines, CountsOverTheRunsItAddsIn) {
  for (const std::size_t length : {0u, 1u, 254u, 255u, 256u, 1000u, 70000u})
    EXPECT_EQ(count_lines(std::string(length, '\n')), static_cast<int64_t>(length));
  EXPECT_EQ(count_lines("a\nb"), 1);
}

/// What LineBlocks makes of a text that comes in pieces.
std::vector<std::string> blocks_of(const std::vector<std::string>& pieces, int64_t* num_cut) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  LineBlocks blocks;
  std::vector<std::string> out;
  for (const std::string& piece : pieces) {
    EXPECT_EQ(::write(ends[1], piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
    EXPECT_EQ(blocks.next(ends[0]), LineBlocks::Read::kSome);
    out.emplace_back(blocks.block());
  }
  ::close(ends[1]);
  EXPECT_EQ(blocks.next(ends[0]), LineBlocks::Read::kEnd);
  ::close(ends[0]);
  out.emplace_back(blocks.flush());
  if (num_cut != nullptr) *num_cut = blocks.num_cut_lines();
  return out;
}

TEST(LineBlocks, HandsOutWholeLines) {
  EXPECT_EQ(blocks_of({"a\nb", "c\n\nd"}, nullptr),
            (std::vector<std::string>{"a\n", "bc\n\n", "d"}));
}

TEST(LineBlocks, DropsACarriageReturnOnlyBeforeALineFeed) {
  EXPECT_EQ(blocks_of({"a\r\nb\r", "\nc\rd\r\r\n"}, nullptr),
            (std::vector<std::string>{"a\n", "b\nc\rd\r\n", ""}));
  std::vector<std::string> bytes;
  std::string joined;
  for (const char c : std::string("x\r\n\r\ny\rz\r\n")) bytes.emplace_back(1, c);
  for (const std::string& block : blocks_of(bytes, nullptr)) joined += block;
  EXPECT_EQ(joined, "x\n\ny\rz\n");
}

TEST(LineBlocks, CutsALineThatIsLongerThanItsBound) {
  const std::string piece(1 << 16, 'x');
  const std::vector<std::string> pieces((LineBlocks::kLongestLine >> 16) + 3, piece);
  int64_t num_cut = 0;
  std::size_t total = 0;
  for (const std::string& block : blocks_of(pieces, &num_cut)) {
    EXPECT_LE(block.size(), LineBlocks::kLongestLine + LineBlocks::kBlock);
    total += block.size();
  }
  EXPECT_EQ(total, pieces.size() << 16);
  EXPECT_EQ(num_cut, 1);
}

}  // namespace
}  // namespace patchbench::job
