// The fuzz lane over the parsers of foreign input; under the `asan` preset any invalid access
// fails it too.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/edit.h"
#include "core/error.h"
#include "core/manifest.h"
#include "core/python_code.h"
#include "core/python_tokens.h"
#include "core/record.h"
#include "core/safetensors.h"
#include "core/scan_baseline.h"
#include "core/scan_policy.h"
#include "ledger/row_reader.h"
#include "ledger/row_writer.h"
#include "status/filing_text.h"
#include "status/listing.h"
#include "unit/mutation.h"
#include "unit/python_layout.h"
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

/// One line deleted or written twice, somewhere else.
std::string move_lines(const std::string& text, Random& random) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1);
    lines.push_back(text.substr(at, end - at + 1));
    at = end + 1;
  }
  if (lines.empty()) return text;
  const size_t from = random.below(lines.size());
  const std::string line = lines[from];
  if (random.below(2) == 0) lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(from));
  lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(random.below(lines.size() + 1)), line);
  std::string out;
  for (const std::string& one : lines) out += one;
  return out;
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
  target.restructure = move_lines;
  target.parse_and_round_trip = [](const std::string& input) {
    const Edit edit = parse_edit(input, "0001-a.edit");
    const std::string text = format_edit(edit);
    EXPECT_EQ(format_edit(parse_edit(text, "0001-a.edit")), text);
  };
  mutation::fuzz(target);
}

TEST(Fuzz, Diffs) {
  Target target;
  target.corpus = {"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -86,2 +86,3 @@ def f():\n a\n-b\n+c\n",
                   "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n\\ No newline at end of file\n"};
  target.restructure = move_lines;
  target.parse_and_round_trip = [](const std::string& input) {
    const std::vector<ChangedPlace> places = changed_places(input);
    for (const ChangedPlace& place : places) EXPECT_FALSE(place.file.empty());
    EXPECT_TRUE(places.empty() || !changed_text(input, input.size()).empty());
    if (places.empty()) throw Error(ErrorCode::kUsage, "changes nothing that is there");
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

TEST(Fuzz, EvidenceRows) {
  const auto rows_of = [](const std::string& text) {
    std::vector<std::string> rows;
    ledger::each_row(text, "records.jsonl", [&](std::string record, const std::string& where) {
      parse_record(record, where);
      rows.push_back(std::move(record));
    });
    return rows;
  };
  std::vector<std::string> rows;
  for (const int run : {1, 2, 3})
    for (const Record& record : sample::run(run)) rows.push_back(canonical_json(record.statement));
  const std::string shared = ledger::pack_rows(rows), second = "{\"patchbench_evidence\":2}\n";
  Target target;
  target.corpus = {shared, shared + shared,
                   second + "{\"$\":1,\"value\":[1,2]}\n" + rows[0] + "\n" + rows[1] + "\n"};
  target.restructure = move_lines;
  target.parse_and_round_trip = [&](const std::string& input) {
    const std::vector<std::string> read = rows_of(input);
    EXPECT_EQ(rows_of(ledger::pack_rows(read)), read);
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

/// What a list of packages holds, whatever the text was.
void check_list(const PackageList& list, const std::string& input) {
  const auto num_lines = std::count(input.begin(), input.end(), '\n') + 1;
  for (const auto& [name, versions] : list.packages) {
    EXPECT_EQ(normalised(name), name);
    EXPECT_FALSE(versions.empty());
    for (const Listed& one : versions) {
      const auto last = one.file == "more.txt" ? 2 : num_lines;
      EXPECT_TRUE(one.line >= 0 && one.line <= last);
      EXPECT_TRUE(one.commit.empty() || one.commit.size() == 40);
    }
  }
}

PackageList list_of(const std::string& input) {
  return packages_in(input, "input", [](const std::string& path) -> std::string {
    if (path != "more.txt") throw Error(ErrorCode::kUsage, "included: is not there");
    return "-r more.txt\nincluded==1.0\n";
  });
}

TEST(Fuzz, LocksAndRequirements) {
  const std::string commit(40, 'c');
  Target target;
  target.corpus = {
      "version = 1\n\n[[package]]\nname = \"a_b\"\nversion = \"1.0\"\nsource = { git = "
      "\"https://x/y?rev=z#" +
          commit + "\" }\nwheels = [\n  { url = \"u\", hash = \"h\" },\n]\n",
      "[[package]]\nname = \"a\"\nversion = \"2\"\n\n[package.source]\ntype = \"git\"\n"
      "resolved_reference = \"" +
          commit + "\"\n",
      "lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nupload-time = 2026-01-31T12:00:00Z\n"
      "vcs = { type = \"git\", commit-id = \"" +
          commit + "\" }\n",
      "a.b[c]==1.0 ; python_version < '3' --hash=sha256:00\nb @ git+https://x/y@" + commit +
          "\n-e ./z#egg=q\n-r more.txt\nlong==1 \\\n  --hash=1\nc>=1\n"};
  target.restructure = move_lines;
  target.parse_and_round_trip = [](const std::string& input) { check_list(list_of(input), input); };
  mutation::fuzz(target);
}

TEST(Fuzz, SoftwareBills) {
  Target target;
  target.corpus = {
      R"({"bomFormat":"CycloneDX","components":[{"type":"library","name":"a","version":"1",)"
      R"("purl":"pkg:pypi/a@1?vcs_url=git%2Bhttps://x","components":[{"type":"library","name":"b"}]}]})",
      R"({"spdxVersion":"SPDX-2.3","packages":[{"name":"a","versionInfo":"1","externalRefs":)"
      R"([{"referenceType":"purl","referenceLocator":"pkg:pypi/a@1"}]}]})",
      R"({"@graph":[{"type":"software_Package","name":"a","software_packageUrl":"pkg:pypi/a@1"}]})",
      R"({"_meta":{},"default":{"a":{"version":"==1"},"b":{"git":"x","ref":"y"}}})"};
  target.restructure = [](const std::string& text, Random& random) {
    return change_json(text, random, true);
  };
  target.parse_and_round_trip = [](const std::string& input) { check_list(list_of(input), input); };
  mutation::fuzz(target);
}

TEST(Fuzz, RecipesAndReports) {
  Target target;
  target.corpus = {
      "Package Version Editable project location\n------- ------- ---\na 1.0 /x\nb 2.0\n",
      "# packages in environment at /x:\na 1.0 py_0 "
      "pypi\nb=1=2\n@EXPLICIT\nhttps://x/y-1-0.conda#a\n",
      "- `a` version: 1.0\n- B (GPU?) version: 2 (True)\nc info .... 1, unknown, x\n[pip3] d==1\n",
      "name: x\ndependencies:\n  - a=1=2\n  - &b c::d>=1\n  - *b\n  - pip:\n    - e==1\n    - -r "
      "more.txt\n",
      "package:\n- {name: a, version: 1, manager: pip, url: x}\n- name: b\n  version: '2'\n",
      "[project]\ndependencies = [\"a>=1\"]\n[tool.poetry.dependencies]\nb = \"^0.1\"\nc = {git = "
      "\"x\"}\n",
      "[options]\ninstall_requires =\n  a==1\n  b\n[options.extras_require]\nc = d==1\n",
      "ARG V=1\nFROM x AS y\nRUN pip install \\\n  # c\n  \"a==${V}\" -r more.txt && conda install "
      "b=1\n",
      R"([{"name":"a","version":"1"},{"name":"b","version":"2","channel":"pypi"}])",
      "#!/bin/sh\nP=\"a\nP+=' b'\nfor Q in `c`; do if d; then V=1; fi; pip install x==$(e ${V:-1} "
      "{f}) ${P[@]} 2>&1 $V\n",
      "> Package Version\n> --- ---\n> a 1\n\nb 2\n  Name Version Build\n\xe2\x94\x80\n  c 1 py_0\n"
      "# $ conda create --name x\n_d=1=2\ne=1\n",
      "[project]\ndynamic = [\"dependencies\"]\n[tool.setuptools.dynamic]\ndependencies = {file = "
      "[\"more.txt\"]}\n[tool.hatch.envs.x.overrides]\nm.dependencies = [\"a\"]\n",
      "import setuptools\nA = ['a==1']\nsetup(install_requires=[\"b\", *A], extras_require={'c': "
      "A})\n"};
  target.restructure = move_lines;
  target.parse_and_round_trip = [](const std::string& input) { check_list(list_of(input), input); };
  mutation::fuzz(target);
}

TEST(Fuzz, ScanPolicies) {
  Target target;
  target.corpus = {
      "[[ignore]]\npack = \"a\"\nreason = \"r\"\nuntil = 2026-12-31\n",
      R"({"@context":"https://openvex.dev/ns/v0.2.0","statements":[{"vulnerability":{"name":)"
      R"("PATCHBENCH-09-a"},"products":[{"@id":"pkg:pypi/a@1"}],"status":"fixed"}]})"};
  target.restructure = move_lines;
  target.parse_and_round_trip = [](const std::string& input) {
    ScanReport report;
    report.answers = {{.slug = "a",
                       .number = 9,
                       .upstream = "a",
                       .package = "a",
                       .version = "1",
                       .state = ScanState::kHit}};
    if (input.starts_with("{")) return apply_vex(report, input, "vex.json");
    apply_ignored(report, ignored_packs(input, "x.toml", {"a"}), "x.toml", "2026-01-01");
    EXPECT_TRUE(report.answers[0].ignored.empty() || input.find("reason") != std::string::npos);
  };
  mutation::fuzz(target);
}

/// A baseline and a comment in code mark what they name, and nothing else.
TEST(Fuzz, WhatScanIsToldToPass) {
  const auto report_of = [](const std::string& version) {
    return ScanReport{
        .answers = {{.slug = "a",
                     .upstream = "a",
                     .package = "a",
                     .version = version,
                     .state = ScanState::kHit,
                     .classes = {{.name = "c", .condition = "w"}}}},
        .unread = {"u"},
        .code = {{.slug = "a", .file = "x.py", .line = 1, .classes = {{.name = "c"}}}}};
  };
  Target target;
  target.corpus = {scan_json(report_of("1"), 1).dump(), "a why", "a", " b c"};
  target.restructure = move_lines;
  target.parse_and_round_trip = [&](const std::string& input) {
    ScanReport report = report_of("2");
    report.comments = {{"x.py:1", input}};
    apply_comments(report, {"a"});
    EXPECT_TRUE(report.code[0].ignored.empty() || input.starts_with("a ")) << input;
    EXPECT_EQ(report.code[0].ignored.empty(), report.notes.size() == 1) << input;
    if (!input.starts_with("{")) return;
    apply_baseline(report, input, "b.json");
    EXPECT_TRUE(!report.answers[0].in_baseline || input.find("@2") != std::string::npos) << input;
  };
  mutation::fuzz(target);
}

/// What is read as Python has the same digests in another layout.
TEST(Fuzz, PythonSources) {
  Target target;
  target.corpus = {
      "import a\n\n@b\nclass C(d):\n  \"doc\"\n  def e(self, *f, g=lambda h: 1): return [f, g]\n",
      "async def a():\n\tif b:\n\t\treturn f'{c!r:>{d}} {e = } {{}}' + rb'\\x' \\\n  + 0x1F\n",
      "x = '''a\n''' # c\ndef f(\n  a, b): 'd'; return (a @ b,\n  .5e3j)\nfor y in x: ...\n"};
  target.restructure = move_lines;
  target.parse_and_round_trip = [](const std::string& input) {
    const PythonCode code = python_code(input, "a.py");
    const std::string other = sample::laid_out(python_tokens(input, "a.py"), "\t", "  # c\r\n\n");
    const PythonCode again = python_code(other, "again.py");
    EXPECT_EQ(again.whole, code.whole);
    EXPECT_EQ(again.module_level, code.module_level);
    EXPECT_EQ(again.functions, code.functions);
  };
  mutation::fuzz(target);
}

}  // namespace
}  // namespace patchbench
