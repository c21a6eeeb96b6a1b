// The fuzz lane over the readers of `scan`: a known hit that is in the input in any spelling that
// pip, uv or conda take is never answered 0.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/manifest.h"
#include "core/scan_report.h"
#include "core/scan_rules.h"
#include "report/scan_text.h"
#include "status/inventory.h"
#include "status/listing.h"
#include "status/osv_feed.h"
#include "status/run_answers.h"
#include "status/scan.h"
#include "status/verdict_table.h"
#include "unit/mutation.h"
#include "unit/spelled_inputs.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using mutation::Random;
using spellings::Input;
using spellings::Planted;

constexpr uint64_t kNumInputs = 20000, kNumFolders = 1000;

const std::vector<Planted>& planted() {
  static const std::vector<Planted> all = {{"liger-kernel", "0.6.2", "0.8.5"},
                                           {"deepspeed", "0.18.1", "0.18.9"},
                                           {"transformers", "4.57.1", "4.48.3"},
                                           {"mamba-ssm", "2.3.2.post1", "2.3.1"}};
  return all;
}

/// A hit of this pack needs another package, too.
constexpr const char* kConditional = "sparse_mla_dims";

const Planted& conditional() {
  static const Planted one{"megatron-core", "0.19.2", "0.15.0"};
  return one;
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Packs of this repository over a table of two releases each.
struct Known {
  std::vector<Manifest> packs;
  VerdictTable table{.date = "2026-01-31", .packs = {}};
  Known() {
    const fs::path root = PATCHBENCH_ROOT;
    const std::string schema = read(root / "packs/manifest.schema.json");
    for (const char* slug : {"liger_flce_none_bwd", "zero2_grad_accumulation",
                             "trainer_grad_accumulation", "mamba3_mimo_gqa_bwd", kConditional}) {
      packs.push_back(parse_manifest(read(root / "packs" / slug / "manifest.json"), slug, schema));
      const size_t at = packs.size() - 1;
      const Planted& one = at < planted().size() ? planted()[at] : conditional();
      const std::string present = packs.back().classes_order.front();
      table.packs[slug].upstreams = {
          {.name = one.name,
           .package = one.name,
           .releases = {{.version = one.right, .state = BugStatus::kAbsent, .record = "r"},
                        {.version = one.bad,
                         .state = present,
                         .classes = {{present, "cpu", "r"}},
                         .record = "r"}}}};
    }
  }
};

const Known& known() {
  static const Known all;
  return all;
}

/// What `scan` exits with, and its report; of a text that is refused the message.
struct Answer {
  int status = 0;
  ScanReport report;
  std::string refusal;
  std::string text() const {
    return refusal.empty() ? report::scan_text(report, status, {}) : refusal;
  }
};

Answer answer_of(Inventory inventory) {
  static const ScanLimits limits{.fail_on = {failing_impacts().begin(), failing_impacts().end()}};
  Answer answer;
  answer.report.answers = answers_of(known().packs, known().table, inventory);
  answer.report.unread = inventory.list.unread;
  if (inventory.list.num_unpinned > 0)
    answer.report.unread.push_back(unpinned_text(inventory.list.num_unpinned));
  answer.status = scan_exit(answer.report, limits);
  return answer;
}

Answer answer_of(const Input& input) {
  Inventory inventory{.name = "input"};
  try {
    inventory.list = packages_in(input.text, "input", [&](const std::string& path) {
      const auto at = input.included.find(path);
      if (at == input.included.end()) throw Error(ErrorCode::kUsage, "included: is not there");
      return at->second;
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return {.status = 2, .refusal = error.what()};
  }
  return answer_of(std::move(inventory));
}

/// Whether a terminal shows each line as it is.
bool is_plain(const std::string& text) {
  return is_utf8(text) && printable(text).size() == text.size() &&
         std::none_of(text.begin(), text.end(), [](char c) {
           return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f;
         });
}

TEST(ScanFuzz, AKnownHitIsNeverAnAllClear) {
  const uint64_t num_inputs = mutation::env_number("PATCHBENCH_SCAN_FUZZ", kNumInputs),
                 first = mutation::env_number("PATCHBENCH_SCAN_FUZZ_FIRST", 0),
                 seed = mutation::env_number("PATCHBENCH_FUZZ_SEED", 1);
  std::map<std::string, std::map<int, uint64_t>> counts_of;
  for (uint64_t i = first; i < first + num_inputs; ++i) {
    Random random(seed, i);
    const Input input = spellings::input_of(random.pick(planted()), random);
    const Answer answer = answer_of(input);
    ++counts_of[input.kind][answer.status];
    ASSERT_NE(answer.status, 0)
        << "input " << i << " of seed " << seed << ", " << input.kind << ":\n"
        << Json(input.text).dump(-1, ' ', true, Json::error_handler_t::replace) << "\n"
        << answer.text();
    // The text costs more than the answer.
    if (i % 16 == 0) {
      ASSERT_TRUE(is_plain(answer.text())) << "input " << i << ": " << Json(answer.text());
    }
  }
  std::ostringstream counts;
  for (const auto& [kind, statuses] : counts_of) {
    for (const auto& [status, count] : statuses)
      counts << kind << ":" << status << "=" << count << " ";
    // A lane in which hardly any hit is found tests the refusals alone.
    EXPECT_GT(statuses.contains(1) ? statuses.at(1) : 0, num_inputs / 400) << kind;
  }
  RecordProperty("inputs", std::to_string(num_inputs));
  RecordProperty("answers", counts.str());
}

TEST(ScanFuzz, WhatAListDoesNotNameMayBeInstalled) {
  constexpr uint64_t kNumLists = 4000;
  uint64_t num_told = 0;
  for (uint64_t i = 0; i < kNumLists; ++i) {
    Random random(3, i);
    const Input input = spellings::requirements_of(conditional(), random);
    const Answer answer = answer_of(input);
    num_told += answer.status == 3;
    ASSERT_NE(answer.status, 0) << "input " << i << ":\n" << input.text << "\n" << answer.text();
  }
  EXPECT_GT(num_told, kNumLists / 4);
}

/// The metadata of a package in a folder of packages, with what contradicts it.
void install(const fs::path& site, const Planted& one, Random& random) {
  const auto put = [](const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  };
  const std::string end = spellings::one_of(random, {"\n", "\n", "\r\n", "\r"}),
                    folder = spellings::one_of(
                        random, {".dist-info", ".dist-info", ".DIST-INFO", ".egg-info", ".egg"}),
                    file = folder == ".egg"        ? "EGG-INFO/PKG-INFO"
                           : folder == ".egg-info" ? "PKG-INFO"
                                                   : "METADATA",
                    python = folder.starts_with(".egg") ? "-py3.12" : "";
  const std::string name = spellings::name_of(one.name, random),
                    version = spellings::version_of(one.bad, random);
  std::string stem = one.name;
  std::replace(stem.begin(), stem.end(), '-', '_');
  const auto text = [&](const std::string& names, const std::string& versions) {
    return spellings::with_case("metadata-version: 2.1", random) + end + names + versions + end +
           "Name: body" + end;
  };
  const std::string name_line = spellings::with_case("name", random) + ": " + name + end,
                    version_line = spellings::with_case("version", random) + ":" + version + end,
                    right_line = "Version: " + one.right + end, other_line = "Name: x" + end;
  switch (random.below(6)) {
    case 0:  // two versions
      return put(site / (stem + "-" + one.right + python + folder) / file,
                 text(name_line, right_line + version_line));
    case 1:  // two names
      return put(site / ("x-1" + python + folder) / file,
                 text(other_line + name_line, version_line));
    case 2:  // the folder alone
      return put(site / (stem + "-" + one.bad + python + folder) / file,
                 text(other_line, right_line));
    case 3:  // no header that can be read
      return put(site / (stem + "-" + one.bad + python + folder) / file, "\xff\n\n" + name_line);
    case 4:
      return put(site / ("other" + folder) / file, text(name_line, version_line));
    default:
      return put(site / (stem + "-" + one.bad + python + folder) / file,
                 text(name_line, version_line));
  }
}

TEST(ScanFuzz, AKnownHitInAnEnvironmentIsNeverAnAllClear) {
  const uint64_t num_inputs = mutation::env_number("PATCHBENCH_SCAN_FUZZ", kNumInputs) *
                              kNumFolders / kNumInputs,
                 seed = mutation::env_number("PATCHBENCH_FUZZ_SEED", 1);
  const fs::path venv = fs::temp_directory_path() / ("scan_fuzz_" + std::to_string(::getpid()));
  std::map<int, uint64_t> counts_of;
  for (uint64_t i = 0; i < num_inputs; ++i) {
    Random random(seed, i);
    fs::remove_all(venv);
    const fs::path site = venv / "lib/python3.12/site-packages";
    fs::create_directories(site / "numpy-1.0.dist-info");
    install(site, random.pick(planted()), random);
    const Answer answer = answer_of(inventory_of(venv.string(), ""));
    ++counts_of[answer.status];
    EXPECT_NE(answer.status, 0) << "input " << i << " of seed " << seed << ":\n" << answer.text();
    if (HasFailure()) break;
  }
  fs::remove_all(venv);
  EXPECT_GT(counts_of[1], num_inputs / 2);
}

TEST(ScanFuzz, ARunWithAHitIsNeverAnAllClear) {
  const fs::path root = fs::path(testing::TempDir()) / fmt::format("scan_fuzz_runs.{}", getpid()),
                 files = root / "run-20260131_120000-a/files";
  const ScanLimits limits{.fail_on = {failing_impacts().begin(), failing_impacts().end()}};
  std::map<int, uint64_t> counts_of;
  for (uint64_t i = 0; i < kNumFolders / 4; ++i) {
    Random random(5, i);
    fs::remove_all(root);
    fs::create_directories(files);
    const Input input = spellings::requirements_of(random.pick(planted()), random);
    std::ofstream(files / "requirements.txt", std::ios::binary) << input.text;
    std::ofstream(files / "config.yaml", std::ios::binary) << spellings::one_of(
        random, {"", "a: [1", "lr:\n  value: 0.1\n", "gradient_accumulation_steps:\n  value: 8\n",
                 "gradient_accumulation_steps: auto\nstage: [2, {stage: 3}]\n", "- &a [*a]\n"});
    RunsReport runs = runs_report(known().packs, known().table, past_runs_below(root.string()));
    const int status = scan_exit(runs.report, limits);
    ++counts_of[status];
    ASSERT_NE(status, 0) << "input " << i << ":\n" << input.text << runs_json(runs, status);
    ASSERT_TRUE(is_plain(runs_text(runs, status, {}))) << input.text;
  }
  fs::remove_all(root);
  EXPECT_GT(counts_of[1], kNumFolders / 16);
}

TEST(ScanFuzz, TheFeedKeepsSilentAboutNoHitAndNeverFails) {
  const OsvFeed feed(known().packs, known().table, {});
  uint64_t num_hits = 0;
  std::map<int, uint64_t> counts_of;
  for (uint64_t i = 0; i < kNumFolders; ++i) {
    Random random(4, i);
    const Planted& one = random.pick(planted());
    const std::string body =
        Json{{"package", {{"name", spellings::name_of(one.name, random)}, {"ecosystem", "PyPI"}}},
             {"version", spellings::version_of(one.bad, random)}}
            .dump();
    const OsvAnswer whole = feed.answer("POST", "/v1/query", body);
    num_hits += whole.body.contains("vulns");
    ASSERT_TRUE(whole.body.contains("vulns") || !whole.unknown.empty()) << i << ": " << body;
    const std::string changed = mutation::change_json(body, random, false);
    for (const char* path : {"/v1/query", "/v1/querybatch"}) {
      const OsvAnswer answer = feed.answer("POST", path, changed);
      ++counts_of[answer.status];
      ASSERT_TRUE(answer.status == 200 || is_plain(answer.body.at("message"))) << changed;
    }
  }
  EXPECT_GT(num_hits, kNumFolders / 2);
  EXPECT_GT(counts_of[200], 0u);
  EXPECT_GT(counts_of[400], kNumFolders);
  EXPECT_EQ(counts_of[200] + counts_of[400], 2 * kNumFolders);
}

/// For the check by pip's own parser: PATCHBENCH_SPELLINGS names the file that takes lines of the
/// generator, each with the name and the version that it must mean.
TEST(ScanFuzz, LinesForPip) {
  const char* file = std::getenv("PATCHBENCH_SPELLINGS");
  if (file == nullptr) GTEST_SKIP() << "PATCHBENCH_SPELLINGS names no file";
  Json lines = Json::array();
  for (uint64_t i = 0; i < 2000; ++i) {
    Random random(2, i);
    const Planted& one = random.pick(planted());
    lines.push_back(
        {{"line", spellings::line_of(one, random)}, {"name", one.name}, {"version", one.bad}});
  }
  std::ofstream(file) << lines.dump();
}

}  // namespace
}  // namespace patchbench
