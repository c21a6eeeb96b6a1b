// Longer than 400 lines: every rule of the layout, and what breaks it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/manifest.h"
#include "core/pin.h"
#include "core/slug.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLines = 600, kMaxTestLines = 400, kMaxRootCmakeLines = 80;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool is_filled(const fs::path& root, const Slug& slug, Column column) {
  const fs::path cell = root / cell_path(slug, column);
  if (column == Column::kPack) return fs::exists(cell / "manifest.json");
  return fs::is_regular_file(cell) || (fs::is_directory(cell) && !fs::is_empty(cell));
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && name != "__pycache__") out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Cases are in the scenarios of modules where the subject passes a module to `case.module`, and
/// there alone; any other pack waives all of them with a reason.
void check_scenarios(const fs::path& root, const Manifest& manifest,
                     std::vector<std::string>& out) {
  const std::string subject = "repro/" + manifest.slug.str() + "/subject.py";
  const bool has_module =
      fs::exists(root / subject) && read(root / subject).find("case.module(") != std::string::npos;
  const std::vector<std::string> drawn = manifest.scenarios.drawn("cpu");
  int num_drawn = 0;
  for (const std::string name : {"copied", "tied", "evaluated"}) {
    if (std::find(drawn.begin(), drawn.end(), name) == drawn.end()) continue;
    ++num_drawn;
    if (!has_module)
      out.push_back(subject + ": passes no module to its case, and " + name + " is not waived");
  }
  if (has_module && num_drawn == 0)
    out.push_back(subject + ": passes a module to its case, and every scenario of it is waived");
}

/// The table's rules about one pack: its manifest, its pins and its cells.
void check_pack(const fs::path& root, const std::string& folder,
                std::map<int, std::string>& numbers, std::vector<std::string>& out) {
  const std::string path = "packs/" + folder + "/manifest.json";
  Manifest manifest;
  try {
    manifest = parse_manifest(read(root / path), path, read(root / "packs/manifest.schema.json"));
    const Pins pins = Pins::parse(read(root / "env/pins.json"), "env/pins.json");
    for (const UpstreamUse& use : manifest.upstreams) pins.resolve(use.name, use.red_pin);
  } catch (const Error& e) {
    const std::string message = e.what();
    out.push_back(message.starts_with(path) ? message : path + ": " + message);
    return;
  }
  if (manifest.slug.str() != folder) out.push_back(path + ": slug differs from its folder");
  const auto [other, is_new] = numbers.emplace(manifest.number, folder);
  if (!is_new) out.push_back(path + ": its number is that of " + other->second);
  for (const Json& lock : manifest.environments) {
    const std::string file = "env/locks/" + lock.get<std::string>() + ".txt";
    if (!fs::exists(root / file)) out.push_back(path + ": no " + file);
  }
  for (const Column column : all_columns()) {
    const bool is_waived = manifest.waived(column).has_value();
    const std::string cell = cell_path(manifest.slug, column);
    if (is_filled(root, manifest.slug, column) == is_waived) {
      out.push_back(cell + (is_waived ? ": filled and waived" : ": neither filled nor waived"));
    }
  }
  // No column of its own: a part of the pack's cell that some packs do without.
  const std::string op = cell_path(manifest.slug, Column::kPack) + "/op.cpp";
  const bool is_waived = std::any_of(manifest.waivers.begin(), manifest.waivers.end(),
                                     [](const Waiver& waiver) { return waiver.cell == "op"; });
  if (fs::exists(root / op) == is_waived)
    out.push_back(op + (is_waived ? ": filled and waived" : ": neither filled nor waived"));
  check_scenarios(root, manifest, out);
}

/// Things in a column that no pack owns. `own` are names that belong to the column itself.
void check_orphans(const fs::path& root, const std::string& column,
                   const std::set<std::string>& own, const std::set<std::string>& packs,
                   std::vector<std::string>& out) {
  for (const std::string& name : names_in(root / column)) {
    const std::string stem = name.substr(0, name.find('.'));
    const bool is_owned = std::any_of(packs.begin(), packs.end(), [&](const std::string& slug) {
      return stem == slug || (column == "tests/packs" && name.starts_with(slug + "_"));
    });
    if (!is_owned && !own.contains(name))
      out.push_back(column + "/" + name + ": belongs to no pack");
  }
}

/// Names that say nothing, and files that are too long without saying why on their first line.
void check_files(const fs::path& root, std::vector<std::string>& out) {
  const std::set<std::string> empty_words = {"utils", "util",    "common",
                                             "misc",  "helpers", "helper"};
  const std::set<std::string> code = {".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake"};
  auto it = fs::recursive_directory_iterator(root);
  for (; it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    const bool is_skipped =
        name == "build" || name == "__pycache__" || (name.starts_with('.') && name != ".ci");
    if (it->is_directory() && is_skipped) {
      it.disable_recursion_pending();
      continue;
    }
    const std::string path = fs::relative(it->path(), root).string();
    if (empty_words.contains(it->path().stem().string()))
      out.push_back(path + ": its name says nothing");
    if (!it->is_regular_file() || !code.contains(it->path().extension().string())) continue;
    const std::string text = read(it->path());
    const size_t num_lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    const size_t limit = path.starts_with("tests/") ? kMaxTestLines : kMaxLines;
    const std::string first = text.substr(0, text.find('\n'));
    if (num_lines > limit && first.find("onger than") == std::string::npos) {
      out.push_back(path + ": " + std::to_string(num_lines) + " lines, more than " +
                    std::to_string(limit) +
                    ", and its first line does not say why it is \"longer than\" that");
    }
  }
}

/// The rooms of the runner that a room's files may include, besides their own. cli may include all.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"workbench", {"core"}},
    {"exec", {"core"}},
    {"git", {"core", "exec"}},
    {"ledger", {"core"}},
    {"job", {"core"}},
    {"report", {"core"}},
    {"python", {"core"}},
    {"status", {"core", "workbench", "ledger", "report"}},
    {"run", {"core", "workbench", "exec", "git", "job", "ledger", "report", "status"}}};

void check_includes(const fs::path& root, std::vector<std::string>& out) {
  for (const auto& [room, others] : kMayInclude) {
    for (const std::string& name : names_in(root / "runner" / room)) {
      if (fs::is_directory(root / "runner" / room / name)) continue;
      std::istringstream lines(read(root / "runner" / room / name));
      for (std::string line; std::getline(lines, line);) {
        constexpr std::string_view kInclude = "#include \"";
        if (!line.starts_with(kInclude)) continue;
        const std::string from = line.substr(kInclude.size(), line.find('/') - kInclude.size());
        const bool is_room = from == "cli" || kMayInclude.contains(from);
        if (is_room && from != room && !others.contains(from))
          out.push_back("runner/" + room + "/" + name + ": may not include " + from);
      }
    }
  }
}

using Graph = std::map<std::string, std::set<std::string>>;

/// The nodes of a graph that can be reached from themselves.
std::vector<std::string> in_circles(const Graph& graph) {
  std::vector<std::string> found;
  for (const auto& [start, first] : graph) {
    std::set<std::string> reached;
    std::vector<std::string> open(first.begin(), first.end());
    while (!open.empty()) {
      const std::string node = open.back();
      open.pop_back();
      const auto next = graph.find(node);
      if (reached.insert(node).second && next != graph.end())
        open.insert(open.end(), next->second.begin(), next->second.end());
    }
    if (reached.contains(start)) found.push_back(start);
  }
  return found;
}

/// A mitigation's module that imports itself through others cannot be read, nor imported, alone.
void check_circles(const fs::path& root, std::vector<std::string>& out) {
  static const std::regex kImport("from patchbench_mitigations(?:\\.(\\w+))? import ([\\w, ]+)");
  const fs::path package = root / "mitigations/patchbench_mitigations";
  Graph modules;
  for (const std::string& name : names_in(package)) {
    if (!name.ends_with(".py")) continue;
    const std::string text = read(package / name);
    for (std::sregex_iterator at(text.begin(), text.end(), kImport), end; at != end; ++at) {
      std::istringstream words((*at)[1].matched ? (*at)[1].str() : (*at)[2].str());
      for (std::string word; std::getline(words >> std::ws, word, ',');)
        modules[fs::path(name).stem().string()].insert(word);
    }
  }
  for (const std::string& module : in_circles(modules))
    out.push_back("mitigations/" + module + ": imports itself through others");
}

/// One header a .cpp: x.h declares what x.cpp defines for others.
void check_headers(const fs::path& root, std::vector<std::string>& out) {
  static const std::regex kWithout(
      "cli/.*"               // one verb a file, all declared in commands.h
      "|.*/main_.*"          // a program: nothing in it is for others
      "|core/sentinel_.*");  // one question a file, all behind the interface of sentinel.h
  if (!fs::exists(root / "runner")) return;
  for (const auto& entry : fs::recursive_directory_iterator(root / "runner")) {
    const std::string path = fs::relative(entry.path(), root / "runner").string();
    const bool has_own = fs::exists(fs::path(entry.path()).replace_extension(".h"));
    if (path.ends_with(".cpp") && !has_own && !std::regex_match(path, kWithout))
      out.push_back("runner/" + path + ": has no header of its own");
  }
}

/// What a subject, a question or a device is, and the state of a bug, is asked of a type, never of
/// its word; counts are read from observations, never from a sentence.
void check_decisions(const fs::path& root, std::vector<std::string>& out) {
  static const std::regex kDecision(
      R"re((subject|state\.state|release\.state)(\(\))?(\.text\(\))? *[!=]= *"|subject(\.text\(\))?\.starts_with\(|question(\.text\(\))?\.(starts|ends)_with\()re"
      R"re(|question(\.text\(\))? *[!=]= *"|"why", *""\)\.(starts|ends)_with\()re");
  static const std::regex kDevice(R"re(device *[!=]= *"cpu")re");
  for (const char* folder : {"runner", "repro/harness"}) {
    if (!fs::exists(root / folder)) continue;
    std::set<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".cpp" || extension == ".h") files.insert(entry.path());
    }
    for (const fs::path& file : files) {
      const std::string text = read(file);
      const bool is_runner = std::string_view(folder) == "runner";
      if (std::regex_search(text, kDecision) || (is_runner && std::regex_search(text, kDevice)))
        out.push_back(fs::relative(file, root).string() + ": decides by a word");
    }
  }
}

/// Each mitigation has a program of at most 40 lines, which shows it at work as a user would.
void check_programs(const fs::path& root, const std::set<std::string>& packs,
                    std::vector<std::string>& out) {
  constexpr long kMaxProgramLines = 40;
  for (const std::string& slug : packs) {
    const std::string path = "mitigations/programs/" + slug + ".py";
    if (fs::exists(root / "mitigations/patchbench_mitigations" / (slug + ".py")) &&
        !fs::exists(root / path))
      out.push_back(path + ": is missing");
    const std::string text = fs::exists(root / path) ? read(root / path) : "";
    if (std::count(text.begin(), text.end(), '\n') > kMaxProgramLines)
      out.push_back(path + ": more than " + std::to_string(kMaxProgramLines) + " lines");
  }
}

/// A subject's process finds the harness's modules before the pack's: no two have one name.
void check_modules(const fs::path& root, const std::set<std::string>& packs,
                   std::vector<std::string>& out) {
  for (const std::string& slug : packs) {
    for (const std::string& name : names_in(root / "repro" / slug)) {
      if (name.ends_with(".py") && fs::exists(root / "repro/harness" / name))
        out.push_back("repro/" + slug + "/" + name + ": the harness has a module of this name");
    }
  }
}

/// Every rule of the layout that `root` breaks, one line each.
std::vector<std::string> violations(const fs::path& root) {
  std::vector<std::string> out;
  std::set<std::string> packs;
  std::map<int, std::string> numbers;
  for (const std::string& name : names_in(root / "packs")) {
    if (!fs::exists(root / "packs" / name / "manifest.json")) continue;
    packs.insert(name);
    check_pack(root, name, numbers, out);
  }
  check_orphans(root, "packs", {"README.md", "kernel", "manifest.schema.json", "python"}, packs,
                out);
  check_orphans(root, "repro", {"bench", "function", "harness", "training", "wheel"}, packs, out);
  check_orphans(root, "patches", {"README.md"}, packs, out);
  check_orphans(root, "mitigations/patchbench_mitigations",
                {"__init__.py", "__main__.py", "after_import.py", "auto.py", "callees.py",
                 "conditions", "counting.py", "data", "fingerprint.py", "megatron.py", "ranks.py",
                 "registry.py", "start", "switch.py", "watch.py"},
                packs, out);
  check_orphans(root, "mitigations/patchbench_mitigations/conditions", {"__init__.py"}, packs, out);
  check_orphans(root, "mitigations/programs", {}, packs, out);
  check_programs(root, packs, out);
  check_modules(root, packs, out);
  check_orphans(root, "tests/packs",
                {"kernel_test.cpp", "op_test.h", "sm90_emulator.h", "sm90_machine.h"}, packs, out);
  check_orphans(root, "reports/evidence", {"spine", "OWED.md", "judged.json"}, packs, out);
  check_files(root, out);
  check_decisions(root, out);
  check_includes(root, out);
  check_circles(root, out);
  check_headers(root, out);
  const std::string cmake = read(root / "CMakeLists.txt");
  if (static_cast<size_t>(std::count(cmake.begin(), cmake.end(), '\n')) > kMaxRootCmakeLines) {
    out.push_back("CMakeLists.txt: more than " + std::to_string(kMaxRootCmakeLines) + " lines");
  }
  return out;
}

/// Of the tree that PATCHBENCH_ROOT names, else of the one that this test was compiled in.
TEST(Repository, KeepsItsLayout) {
  const char* named = ::getenv("PATCHBENCH_ROOT");
  EXPECT_EQ(violations(named != nullptr ? named : PATCHBENCH_ROOT), std::vector<std::string>());
}

/// A small repository of one pack that keeps every rule; each test breaks one.
class Layout : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "layout_test.XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    for (const char* file :
         {"packs/manifest.schema.json", "env/pins.json", "env/locks/torch-2.11.txt"}) {
      fs::create_directories((root_ / file).parent_path());
      fs::copy_file(fs::path(PATCHBENCH_ROOT) / file, root_ / file);
    }
    manifest_ = parse_json(read(fs::path(PATCHBENCH_ROOT) / "tests/golden/manifest_complete.json"),
                           "golden");
    for (Json* upstream : {&manifest_["upstreams"][0]["name"], &manifest_["cases"][2]["upstream"],
                           &manifest_["scope"][0]["test"]["upstream"]})
      *upstream = "liger-kernel";
    manifest_["upstreams"][0]["red_pin"] = "0.8.0";
    manifest_["environments"] = {"torch-2.11"};
    put_manifest("some_pack");
    for (const char* file :
         {"packs/some_pack/op.cpp", "repro/some_pack/repro.cpp", "repro/harness/compare.cpp",
          "patches/some_pack/0001-a.edit", "mitigations/patchbench_mitigations/some_pack.py",
          "mitigations/programs/some_pack.py", "reports/evidence/spine/fuzz.json",
          "reports/evidence/some_pack/a.jsonl"}) {
      put(file, "\n");
    }
    ASSERT_EQ(violations(root_), std::vector<std::string>());
  }

  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void put_manifest(const std::string& folder) {
    put("packs/" + folder + "/manifest.json", manifest_.dump(2));
  }

  void expect(const std::vector<std::string>& wanted) { EXPECT_EQ(violations(root_), wanted); }

  fs::path root_;
  Json manifest_;
};

TEST_F(Layout, CellIsFilledOrWaived) {
  fs::remove_all(root_ / "patches/some_pack");
  expect({"patches/some_pack: neither filled nor waived"});
  fs::create_directories(root_ / "patches/some_pack");
  expect({"patches/some_pack: neither filled nor waived"});
}

TEST_F(Layout, AnOpIsThereOrWaived) {
  fs::remove(root_ / "packs/some_pack/op.cpp");
  expect({"packs/some_pack/op.cpp: neither filled nor waived"});
  manifest_["waivers"].push_back({{"cell", "op"}, {"reason", "the op of another pack serves"}});
  put_manifest("some_pack");
  expect({});
}

TEST_F(Layout, CellIsNotFilledAndWaived) {
  put("tests/packs/some_pack_test.cpp", "\n");
  expect({"tests/packs/some_pack_test.cpp: filled and waived"});
}

TEST_F(Layout, ManifestIsChecked) {
  manifest_["colour"] = 1;
  put_manifest("some_pack");
  const std::vector<std::string> got = violations(root_);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_NE(got[0].find("/colour: unknown key"), std::string::npos) << got[0];
}

TEST_F(Layout, RedPinIsAKnownVersion) {
  manifest_["upstreams"][0]["red_pin"] = "0.8.99";
  put_manifest("some_pack");
  const std::vector<std::string> got = violations(root_);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_NE(got[0].find("no release \"0.8.99\""), std::string::npos) << got[0];
}

TEST_F(Layout, EnvironmentHasALock) {
  manifest_["environments"] = {"torch-9"};
  put_manifest("some_pack");
  expect({"packs/some_pack/manifest.json: no env/locks/torch-9.txt"});
}

TEST_F(Layout, NumberAndFolderNameOnePack) {
  manifest_["waivers"] = Json::array();
  for (const char* cell : {"op", "repro", "patches", "mitigations", "tests", "reports"}) {
    manifest_["waivers"].push_back({{"cell", cell}, {"reason", "not yet built"}});
  }
  manifest_["slug"] = "third_pack";
  put_manifest("second_pack");
  expect({"packs/second_pack/manifest.json: slug differs from its folder",
          "packs/third_pack: neither filled nor waived",
          "packs/some_pack/manifest.json: its number is that of second_pack"});
}

TEST_F(Layout, NothingStandsWithoutItsPack) {
  for (const char* file : {"packs/lost/op.cpp", "repro/lost/repro.cpp", "patches/lost/0001-a.edit",
                           "mitigations/patchbench_mitigations/lost.py",
                           "mitigations/patchbench_mitigations/conditions/lost.py",
                           "tests/packs/lost_test.cpp", "reports/evidence/lost/a.jsonl"})
    put(file, "\n");
  expect({"packs/lost: belongs to no pack", "repro/lost: belongs to no pack",
          "patches/lost: belongs to no pack",
          "mitigations/patchbench_mitigations/lost.py: belongs to no pack",
          "mitigations/patchbench_mitigations/conditions/lost.py: belongs to no pack",
          "tests/packs/lost_test.cpp: belongs to no pack",
          "reports/evidence/lost: belongs to no pack"});
}

TEST_F(Layout, AMitigationHasAProgramOfFewLines) {
  put("mitigations/programs/some_pack.py", std::string(41, '\n'));
  expect({"mitigations/programs/some_pack.py: more than 40 lines"});
  fs::remove(root_ / "mitigations/programs/some_pack.py");
  expect({"mitigations/programs/some_pack.py: is missing"});
}

TEST_F(Layout, NamesSaySomething) {
  put("runner/core/utils.h", "\n");
  put("repro/harness/common/a.h", "\n");
  std::vector<std::string> got = violations(root_);
  std::sort(got.begin(), got.end());
  EXPECT_EQ(got, (std::vector<std::string>{"repro/harness/common: its name says nothing",
                                           "runner/core/utils.h: its name says nothing"}));
}

TEST_F(Layout, APacksModuleHasNoNameOfTheHarness) {
  put("repro/some_pack/rows.py", "");
  expect({});
  put("repro/harness/rows.py", "");
  expect({"repro/some_pack/rows.py: the harness has a module of this name"});
}

std::string lines(size_t count) { return std::string(count, '\n'); }

TEST_F(Layout, LongFileSaysWhy) {
  put("runner/core/a.h", lines(600));
  put("tests/unit/a_test.cpp", lines(400));
  expect({});
  put("runner/core/a.h", lines(601));
  EXPECT_EQ(violations(root_).size(), 1u);
  put("runner/core/a.h",
      "// Longer than 600 lines: one table of the kernel's constants." + lines(601));
  expect({});
  put("tests/unit/a_test.cpp", lines(401));
  EXPECT_EQ(violations(root_).size(), 1u);
}

TEST_F(Layout, RoomsIncludeDownwards) {
  put("runner/status/due.h", "#include \"core/json.h\"\n#include \"run/trial.h\"\n");
  put("runner/core/json.h", "#include <string>\n#include \"cli/commands.h\"\n");
  expect({"runner/core/json.h: may not include cli", "runner/status/due.h: may not include run"});
}

TEST_F(Layout, NoMitigationImportsItselfThroughOthers) {
  put("mitigations/patchbench_mitigations/ranks.py",
      "from patchbench_mitigations.after_import import LOG, Refused\n");
  put("mitigations/patchbench_mitigations/registry.py",
      "from patchbench_mitigations import ranks\n");
  expect({});
  put("mitigations/patchbench_mitigations/after_import.py",
      "    from patchbench_mitigations.registry import data_of\n");
  expect({"mitigations/after_import: imports itself through others",
          "mitigations/ranks: imports itself through others",
          "mitigations/registry: imports itself through others"});
}

TEST_F(Layout, ACppHasAHeaderOfItsOwn) {
  for (const char* file : {"run/plan.cpp", "core/plan.h", "core/sentinel_claim.cpp",
                           "exec/main_sandbox.cpp", "cli/list.cpp"})
    put(std::string("runner/") + file, "\n");
  expect({"runner/run/plan.cpp: has no header of its own"});
  put("runner/run/plan.h", "\n");
  expect({});
}

TEST_F(Layout, AScenarioOfModulesHasASubjectWithAModule) {
  const std::string subject = "repro/some_pack/subject.py";
  manifest_["scenarios"]["waived"] = {{"tied", "it owns no parameter"}};
  put_manifest("some_pack");
  expect({subject + ": passes no module to its case, and copied is not waived",
          subject + ": passes no module to its case, and evaluated is not waived"});
  put(subject, "net = case.module(net)\n");
  expect({});
  for (const char* name : {"copied", "evaluated"})
    manifest_["scenarios"]["waived"][name] = "it owns no parameter";
  put_manifest("some_pack");
  expect({subject + ": passes a module to its case, and every scenario of it is waived"});
  put(subject, "\n");
  expect({});
}

TEST_F(Layout, NoWordDecides) {
  put("runner/run/a.h", "if (o.subject == \"patched\") return;\n");
  put("runner/run/e.h", "if (setup.device != \"cpu\") return;\n");
  put("runner/core/b.h", "if (release.state != \"absent\") return;\n");
  put("runner/core/c.h", "if (o.subject == SubjectKind::kPatched) return;\n");
  put("runner/run/f.h", "if (finding.question.text().starts_with(\"claim\")) return;\n");
  put("runner/run/g.h", "if (p.value(\"why\", \"\").ends_with(\", 0 red\")) return;\n");
  put("repro/harness/d.cpp", "if (request.subject.text().starts_with(\"op\")) return;\n");
  expect({"runner/core/b.h: decides by a word", "runner/run/a.h: decides by a word",
          "runner/run/e.h: decides by a word", "runner/run/f.h: decides by a word",
          "runner/run/g.h: decides by a word", "repro/harness/d.cpp: decides by a word"});
}

TEST_F(Layout, RootCmakeStaysShort) {
  put("CMakeLists.txt", lines(81));
  expect({"CMakeLists.txt: more than 80 lines"});
}

}  // namespace
}  // namespace patchbench
