#include "core/safetensors.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench {
namespace {

/// A file of a given header text and data, its length field right.
std::string file_of(const std::string& header, const std::string& data) {
  std::string file;
  for (std::size_t i = 0; i < 8; ++i)
    file.push_back(static_cast<char>(header.size() >> (8 * i) & 0xff));
  return file + header + data;
}

/// The message with which a file is refused, "" if it is taken.
std::string refusal(const std::string& file) {
  try {
    parse_safetensors(file, "out");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "";
}

std::string two_tensors() {
  const std::string eight(8, '\1'), six(6, '\2');
  return write_safetensors(
      {{"b", "F32", {2}, eight}, {"a", "BF16", {3, 1}, six}, {"none", "F32", {0, 4}, ""}});
}

TEST(Safetensors, WrittenFileReadsBack) {
  const std::string file = two_tensors();
  const auto tensors = parse_safetensors(file, "out");
  ASSERT_EQ(tensors.size(), 3U);
  const TensorSpan& a = tensors.at("a");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(file.substr(a.begin, a.end - a.begin), std::string(6, '\2'));
  EXPECT_EQ(tensors.at("none").begin, tensors.at("none").end);
}

TEST(Safetensors, ScalarTakesOneElement) {
  const std::string file = write_safetensors({{"loss", "F64", {}, std::string_view("12345678")}});
  EXPECT_TRUE(parse_safetensors(file, "out").at("loss").shape.empty());
}

TEST(Safetensors, MetadataOfStringsIsAllowed) {
  EXPECT_EQ(refusal(file_of(R"({"__metadata__":{"format":"pt"}})", "")), "");
  EXPECT_NE(refusal(file_of(R"({"__metadata__":{"format":1}})", "")), "");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string file = two_tensors();
  for (std::size_t length = 0; length < file.size(); ++length)
    EXPECT_NE(refusal(file.substr(0, length)), "") << length;
  EXPECT_NE(refusal(file + "x"), "");
}

struct Malformed {
  const char* name;
  const char* header;
  const char* reason;
};

class SafetensorsHeader : public testing::TestWithParam<Malformed> {};

TEST_P(SafetensorsHeader, IsRefusedByItsReason) {
  const std::string why = refusal(file_of(GetParam().header, "12345678"));
  EXPECT_NE(why.find(GetParam().reason), std::string::npos) << "got: " << why;
}

INSTANTIATE_TEST_SUITE_P(
    Malformed, SafetensorsHeader,
    testing::Values(
        Malformed{"array", R"([])", "does not start"}, Malformed{"no_json", R"({"a":)", "out"},
        Malformed{
            "duplicate",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            "a"},
        Malformed{"entry_no_object", R"({"a":3})", "exactly"},
        Malformed{"unknown_key", R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8],"x":1}})",
                  "exactly"},
        Malformed{"unknown_dtype", R"({"a":{"dtype":"Q8","shape":[1],"data_offsets":[0,8]}})",
                  "unknown dtype"},
        Malformed{"dtype_no_string", R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,8]}})",
                  "unknown dtype"},
        Malformed{"negative_extent", R"({"a":{"dtype":"F64","shape":[-1],"data_offsets":[0,8]}})",
                  "natural"},
        Malformed{"fractional_extent",
                  R"({"a":{"dtype":"F64","shape":[1.5],"data_offsets":[0,8]}})", "natural"},
        Malformed{"size_mismatch", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
                  "do not hold"},
        Malformed{
            "overflow",
            R"({"a":{"dtype":"F64","shape":[4503599627370496,4503599627370496],"data_offsets":[0,8]}})",
            "overflows"},
        Malformed{
            "overflow_hidden_by_zero",
            R"({"a":{"dtype":"F64","shape":[4503599627370496,4503599627370496,0],"data_offsets":[0,0]}})",
            "overflows"},
        Malformed{"backwards", R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[8,0]}})",
                  "do not hold"},
        Malformed{"beyond_end", R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})",
                  "cover"},
        Malformed{"gap", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "gap"},
        Malformed{
            "overlap",
            R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            "overlap"},
        Malformed{
            "same_range_twice",
            R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
            "overlap"},
        Malformed{"left_over", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  "cover"},
        Malformed{"three_offsets", R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,4,8]}})",
                  "begin, end"},
        Malformed{"empty_name", R"({"":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", "name"},
        Malformed{"trailing_text", R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}} x)",
                  "out"}),
    [](const auto& malformed) { return std::string(malformed.param.name); });

TEST(Safetensors, HeaderOverTheLimitIsRefusedBeforeItIsRead) {
  std::string file(8, '\xff');
  EXPECT_NE(refusal(file).find("over the limit"), std::string::npos);
}

TEST(Safetensors, EveryFlippedBitIsTakenWholeOrRefused) {
  const std::string good = two_tensors();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string file = good;
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
    try {
      for (const auto& [name, span] : parse_safetensors(file, "out"))
        EXPECT_LE(span.end, file.size()) << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
    }
  }
}

TEST(SafetensorsWriter, RefusesWhatItCouldNotReadBack) {
  const std::string four(4, '\0');
  EXPECT_THROW(write_safetensors({{"a", "F32", {2}, four}}), Error);
  EXPECT_THROW(write_safetensors({{"a", "Q4", {1}, four}}), Error);
  EXPECT_THROW(write_safetensors({{"a", "F32", {1}, four}, {"a", "F32", {1}, four}}), Error);
  EXPECT_THROW(write_safetensors({{"__metadata__", "F32", {1}, four}}), Error);
}

}  // namespace
}  // namespace patchbench
