// The fuzz lane over the parsers of what others hand in; under the `asan` preset any invalid access
// fails it too.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/edit.h"
#include "core/manifest.h"
#include "core/record.h"
#include "core/safetensors.h"
#include "unit/mutation.h"
#include "unit/sample_run.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using mutation::change_json;
using mutation::Random;
using mutation::Target;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Fuzz, Manifest) {
  const fs::path root = PATCHBENCH_ROOT;
  const std::string schema = read(root / "packs/manifest.schema.json");
  Target target;
  target.corpus = {read(root / "tests/golden/manifest_complete.json")};
  for (const char* slug : {"mamba3_siso_bwd_cse", "fp8_storage_dispatch"}) {
    target.corpus.push_back(read(root / "packs" / slug / "manifest.json"));
  }
  target.restructure = [](const std::string& text, Random& random) {
    return change_json(text, random, false);
  };
  target.parse_and_round_trip = [&](const std::string& input) {
    const Manifest manifest = parse_manifest(input, "manifest.json", schema);
    const Json document = parse_json(input, "manifest.json");
    const Manifest again = parse_manifest(canonical_json(document), "manifest.json", schema);
    EXPECT_EQ(again.slug, manifest.slug);
    EXPECT_EQ(again.number, manifest.number);
    EXPECT_EQ(again.classes_order, manifest.classes_order);
    ASSERT_EQ(again.cases.size(), manifest.cases.size());
    for (size_t i = 0; i < again.cases.size(); ++i)
      EXPECT_EQ(again.cases[i].axes, manifest.cases[i].axes);
    EXPECT_EQ(again.scope.size(), document.at("scope").size());
    EXPECT_EQ(again.waivers.size(), document.at("waivers").size());
    EXPECT_EQ(again.lifecycle, document.at("lifecycle"));
  };
  mutation::fuzz(target);
}

TEST(Fuzz, Edit) {
  const std::string a(40, 'a'), b(40, 'b'),
      header = "Subject: a short line\nDescription: first\n second\n .\n third\nUpstream: toy\n";
  const auto section = [&](const std::string& head, const std::string& script) {
    return "\nFile: toy/a.py\n" + head + "\n" + script;
  };
  Target target;
  target.corpus = {
      header + section("Blob: " + a + "\nResult: " + b + "\n",
                       "9m2\n7,8s/^/    /\n5s/^  //\n4d\n2,3c\nnew\n.\n0a\ntop\n.\nw\n"),
      header + section("Blob: " + a + "\nResult: " + b + "\n",
                       "2,3c\n..\n.\ns/.//\n1a\n..\n.\ns/.//\na\nx\n.\nw\n"),
      header + section("Blob: " + a + "\nResult: deleted\n", "w\n")};
  target.restructure = [&](const std::string& text, Random& random) {
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      lines.push_back(text.substr(at, end - at + 1));
      at = end + 1;
    }
    const size_t from = random.below(lines.size());
    const std::string line = lines[from];
    if (random.below(2) == 0) lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(from));
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(random.below(lines.size() + 1)), line);
    std::string out;
    for (const std::string& one : lines) out += one;
    return out;
  };
  target.parse_and_round_trip = [](const std::string& input) {
    const Edit edit = parse_edit(input, "0001-a.edit");
    const std::string text = format_edit(edit);
    EXPECT_EQ(format_edit(parse_edit(text, "0001-a.edit")), text);
  };
  mutation::fuzz(target);
}

TEST(Fuzz, Record) {
  Target target;
  for (const Record& record : sample::run())
    target.corpus.push_back(canonical_json(record.statement));
  for (const char* type : {"window", "measurement"}) {
    const Record record = make_record(type, sample::context(), {{"a", 1}, {"b", {1.5, "nan"}}});
    target.corpus.push_back(canonical_json(record.statement));
  }
  target.restructure = [](const std::string& text, Random& random) {
    return change_json(text, random, random.below(8) != 0);
  };
  target.parse_and_round_trip = [](const std::string& input) {
    const Record record = parse_record(input, "records.jsonl:1");
    EXPECT_EQ(canonical_json(record.statement), input);
    EXPECT_EQ(parse_record(canonical_json(record.statement), "again").digest(), record.digest());
    if (record.type() == "observation") {
      EXPECT_EQ(observation_of(record).to_json(), record.predicate().at("observation"));
    } else if (record.type() == "verdict") {
      EXPECT_EQ(outcome_of(record).text(), record.predicate().at("sentinel"));
    }
  };
  mutation::fuzz(target);
}

/// A file from a header and data, whatever they are.
std::string safetensors_of(const std::string& header, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i)
    out += static_cast<char>((static_cast<uint64_t>(header.size()) >> (8 * i)) & 0xff);
  return out + header + data;
}

TEST(Fuzz, Safetensors) {
  const std::string bytes(48, '\x3c');
  const std::string_view all = bytes;
  Target target;
  target.corpus = {
      write_safetensors(
          {{"a", "F32", {2, 3}, all.substr(0, 24)}, {"b/c", "BF16", {4}, all.substr(0, 8)}}),
      write_safetensors({{"loss", "F64", {}, all.substr(0, 8)}, {"empty", "I64", {0, 7}, {}}}),
      write_safetensors({})};
  target.restructure = [](const std::string& text, Random& random) {
    const size_t length =
        static_cast<unsigned char>(text[0]) + 256 * static_cast<unsigned char>(text[1]);
    return safetensors_of(change_json(text.substr(8, length), random, true),
                          text.substr(8 + length));
  };
  target.parse_and_round_trip = [](const std::string& input) {
    const std::map<std::string, TensorSpan> spans = parse_safetensors(input, "outputs.safetensors");
    std::vector<TensorBytes> tensors;
    for (const auto& [name, span] : spans) {
      ASSERT_TRUE(span.begin <= span.end && span.end <= input.size());
      tensors.push_back({name, span.dtype, span.shape,
                         std::string_view(input).substr(span.begin, span.end - span.begin)});
    }
    const std::string text = write_safetensors(tensors);
    const std::map<std::string, TensorSpan> again = parse_safetensors(text, "again");
    ASSERT_EQ(again.size(), spans.size());
    for (const TensorBytes& tensor : tensors) {
      const TensorSpan& span = again.at(tensor.name);
      EXPECT_EQ(span.dtype, tensor.dtype);
      EXPECT_EQ(span.shape, tensor.shape);
      EXPECT_EQ(std::string_view(text).substr(span.begin, span.end - span.begin), tensor.bytes);
    }
  };
  mutation::fuzz(target);
}

}  // namespace
}  // namespace patchbench
