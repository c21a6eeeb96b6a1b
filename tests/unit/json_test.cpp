#include "core/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"

namespace patchbench {
namespace {

std::string error_of(const std::string& text) {
  try {
    parse_json(text, "f.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

struct Refusal {
  const char* name;
  std::string text;
  const char* message;
};

class JsonRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(JsonRefuses, WithFileLineAndReason) {
  const std::string got = error_of(GetParam().text);
  EXPECT_EQ(got.substr(0, std::string(GetParam().message).size()), GetParam().message);
  EXPECT_EQ(got.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, JsonRefuses,
    testing::Values(
        Refusal{"nothing", "", "f.json:1: the text ends where a value"},
        Refusal{"trailing_text", "{}\n\n{}", "f.json:3: text after the end"},
        Refusal{"duplicate_key", "{\"a\": 1,\n \"b\": 2,\n \"a\": 3}",
                "f.json:3: key \"a\" stands twice"},
        Refusal{"escaped_duplicate_key", "{\"a\": 1, \"\\u0061\": 2}",
                "f.json:1: key \"a\" stands"},
        Refusal{"comment", "{\n// no\n}", "f.json:2: a key in double quotes"},
        Refusal{"trailing_comma", "[1,]", "f.json:1: neither a value nor"},
        Refusal{"unclosed_array", "[1\n", "f.json:2: \",\" or \"]\""},
        Refusal{"unclosed_string", "\"abc", "f.json:1: a string has no closing quote"},
        Refusal{"single_quotes", "{'a': 1}", "f.json:1: a key in double quotes"},
        Refusal{"control_character", "\"a\tb\"", "f.json:1: a control character"},
        Refusal{"unknown_escape", "\"\\x41\"", "f.json:1: an unknown escape"},
        Refusal{"escape_at_the_end", "\"\\", "f.json:1: an unknown escape"},
        Refusal{"short_unicode_escape", "\"\\u12\"", "f.json:1: \\u needs four hex digits"},
        Refusal{"signed_unicode_escape", "\"\\u-123\"", "f.json:1: \\u needs four hex digits"},
        Refusal{"lone_high_surrogate", "\"\\ud83d\"", "f.json:1: a high surrogate"},
        Refusal{"lone_low_surrogate", "\"\\ude00\"", "f.json:1: a low surrogate"},
        Refusal{"overlong_utf8", "\"\xc0\xaf\"", "f.json:1: a byte sequence that is not UTF-8"},
        Refusal{"cut_utf8", "\"\xe2\x82\"", "f.json:1: a byte sequence that is not UTF-8"},
        Refusal{"utf8_surrogate", "\"\xed\xa0\x80\"", "f.json:1: a byte sequence that is not"},
        Refusal{"leading_zero", "01", "f.json:1: a number with a leading zero"},
        Refusal{"bare_point", "1.", "f.json:1: a number needs digits after its point"},
        Refusal{"empty_exponent", "1e+", "f.json:1: a number needs digits in its exponent"},
        Refusal{"plus_sign", "+1", "f.json:1: neither a value nor"},
        Refusal{"not_a_number", "NaN", "f.json:1: neither a value nor"},
        Refusal{"misspelt_literal", "nul", "f.json:1: neither a value nor"},
        Refusal{"overflow", "-1e999", "f.json:1: the number -1e999 is out of range"},
        Refusal{"inexact_integer", "9007199254740993",
                "f.json:1: the integer 9007199254740993 lies beyond 2^53"},
        Refusal{"uint64_max", "18446744073709551615", "f.json:1: the integer 18446744073709551615"},
        Refusal{"depth_65", std::string(65, '[') + std::string(65, ']'),
                "f.json:1: nested deeper than 64 levels"},
        Refusal{"endless_depth", std::string(100000, '['), "f.json:1: nested deeper than 64"}),
    [](const testing::TestParamInfo<Refusal>& i) { return i.param.name; });

TEST(Json, TakesSixtyFourLevels) {
  const std::string text = std::string(64, '[') + std::string(64, ']');
  EXPECT_EQ(canonical_json(parse_json(text, "f")), text);
}

TEST(Json, RefusalShowsWordsOfOthersOnOneShortLine) {
  const std::string key = "a\\nb" + std::string(500, 'x');
  const std::string got = error_of("{\"" + key + "\": 1, \"" + key + "\": 2}");
  EXPECT_EQ(got.find('\n'), std::string::npos);
  EXPECT_LT(got.size(), 160u);
}

TEST(Json, LinesNameEveryValueByItsPointer) {
  JsonLines lines;
  parse_json("{\n \"a\": [\n  1,\n  {\"b/c~d\":\n   true}]}", "f", &lines);
  EXPECT_EQ(lines.at(""), 1);
  EXPECT_EQ(lines.at("/a"), 2);
  EXPECT_EQ(lines.at("/a/0"), 3);
  EXPECT_EQ(lines.at("/a/1"), 4);
  EXPECT_EQ(lines.at("/a/1/b~1c~0d"), 5);
  EXPECT_EQ(lines.size(), 5u);
}

struct NumberForm {
  uint64_t bits;
  const char* text;
};

// The doubles on both sides of each switch of form in RFC 8785 (ECMAScript's Number::toString).
TEST(CanonicalJson, WritesNumbersInTheShortestForm) {
  constexpr NumberForm kForms[] = {
      {0x0000000000000000, "0"},
      {0x8000000000000000, "0"},
      {0x0000000000000001, "5e-324"},
      {0x8000000000000001, "-5e-324"},
      {0x7fefffffffffffff, "1.7976931348623157e+308"},
      {0x4340000000000000, "9007199254740992"},
      {0xc340000000000000, "-9007199254740992"},
      {0x4430000000000000, "295147905179352830000"},
      {0x44b52d02c7e14af5, "9.999999999999997e+22"},
      {0x44b52d02c7e14af6, "1e+23"},
      {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
      {0x444b1ae4d6e2ef4e, "999999999999999700000"},
      {0x444b1ae4d6e2ef4f, "999999999999999900000"},
      {0x444b1ae4d6e2ef50, "1e+21"},
      {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
      {0x3eb0c6f7a0b5ed8d, "0.000001"},
      {0x41b3de4355555555, "333333333.3333333"},
      {0xbecbf647612f3696, "-0.0000033333333333333333"},
      {0x43143ff3c1cb0959, "1424953923781206.2"},
  };
  for (const NumberForm& form : kForms) {
    const double value = std::bit_cast<double>(form.bits);
    EXPECT_EQ(canonical_json(value), form.text);
    const Json again = parse_json(form.text, "f");
    EXPECT_EQ(again.get<double>(), value) << form.text;
    EXPECT_EQ(canonical_json(again), form.text);
  }
}

TEST(CanonicalJson, ReadsTheSameNumberFromEverySpelling) {
  EXPECT_EQ(
      canonical_json(parse_json("[333333333.33333329,1E30,4.50,2e-3,1e-27,-0,-0.0,1e-400]", "f")),
      "[333333333.3333333,1e+30,4.5,0.002,1e-27,0,0,0]");
}

// U+1F600 sorts in front of U+FB33 by UTF-16 code units, behind it by code points and by UTF-8
// bytes.
TEST(CanonicalJson, SortsKeysByUtf16CodeUnits) {
  const Json value = parse_json(
      "{\"\\u20ac\":1,\"\\r\":2,\"\\ufb33\":3,\"1\":4,\"\\ud83d\\ude00\":5,\"\\u0080\":6}", "f");
  EXPECT_EQ(canonical_json(value),
            "{\"\\r\":2,\"1\":4,\"\u0080\":6,\"\u20ac\":1,\"\U0001F600\":5,\"\uFB33\":3}");
}

TEST(CanonicalJson, EscapesOnlyWhatMustBe) {
  EXPECT_EQ(canonical_json(Json("\b\t\n\f\r\"\\/\x01\x1f\x7f\u20ac")),
            "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u0001\\u001f\x7f\u20ac\"");
}

TEST(CanonicalJson, RefusesWhatJsonCannotHold) {
  EXPECT_THROW(canonical_json(std::numeric_limits<double>::quiet_NaN()), Error);
  EXPECT_THROW(canonical_json(Json::array({std::numeric_limits<double>::infinity()})), Error);
  EXPECT_THROW(canonical_json(Json((int64_t{1} << 53) + 1)), Error);
  EXPECT_THROW(canonical_json(Json(-(int64_t{1} << 53) - 1)), Error);
  EXPECT_THROW(canonical_json(Json(uint64_t{1} << 63)), Error);
  EXPECT_THROW(canonical_json(Json("\xff")), Error);
  EXPECT_THROW(canonical_json(Json{{"\xff", 1}}), Error);
  EXPECT_THROW(canonical_json(Json::binary({1, 2})), Error);
  EXPECT_EQ(canonical_json(Json(int64_t{1} << 53)), "9007199254740992");
}

TEST(CanonicalJson, IsReadWhereWritingTheValueGivesTheSameText) {
  const std::vector<std::string> texts = {
      R"({"a":1,"b":[1,-2,0.5,1e+21,1e-7],"c":{}})", R"({"b":1,"a":2})", R"({"a": 1})", "[1 ]",
      " []", "[]\n", "-0", "0", "-0.0", "5.0", "1e2", "100", "1E21", "1e21", "1e+21", "1e-400",
      "0.1", "0.10", "9007199254740992", "333333333.33333329", R"("\"\\\b\f\n\r\t")", R"("\/")",
      R"("/")", R"("\u0008")", R"("\u000b")", R"("\u000B")", R"("\u0061")", R"("\u20ac")",
      "\"\u20ac\"", R"("\ud83d\ude00")", "\"\U0001f600\"", "\"\x7f\"", R"("\u007f")",
      // U+E000 follows U+1F600 by code units and precedes it by bytes.
      "{\"\U0001f600\":1,\"\ue000\":2}", "{\"\ue000\":2,\"\U0001f600\":1}",
      "{\"a\":1,\"\u00e9\":2}", R"({"a\"":1,"a#":2})", R"({"a":1,"a\"":2})"};
  int num_canonical = 0;
  for (const std::string& text : texts) {
    const bool is_canonical = canonical_json(parse_json(text, "f")) == text;
    num_canonical += is_canonical;
    try {
      EXPECT_EQ(parse_canonical_json(text, "f"), parse_json(text, "f"));
      EXPECT_TRUE(is_canonical) << text;
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "f: not in RFC 8785 form");
      EXPECT_FALSE(is_canonical) << text;
    }
  }
  EXPECT_EQ(num_canonical, 16);
}

TEST(NumberOrName, NamesWhatIsNotFiniteAndBack) {
  EXPECT_EQ(number_or_name(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(number_or_name(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(number_or_name(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(number_or_name(0.5), 0.5);
  EXPECT_TRUE(std::isnan(number_from("nan")));
  EXPECT_EQ(number_from("-inf"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(number_from("inf"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(number_from(3), 3.0);
  EXPECT_THROW(number_from("NaN"), Error);
  EXPECT_THROW(number_from(Json()), Error);
}

TEST(Shown, CutsLongTextAtACharacterAndHidesControlBytes) {
  EXPECT_EQ(shown("a\nb\x7f\xff"), "a?b??");
  const std::string euros = shown(std::string(79, 'x') + "\u20ac");
  EXPECT_EQ(euros, std::string(79, 'x') + "\u2026");
}

}  // namespace
}  // namespace patchbench
