#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/commands.h"
#include "core/error.h"
#include "report/table.h"
#include "unit/sample_run.h"
#include "workbench/skeleton.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A repository of one pack, and the commands on it.
class ListCommands : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "list_test.XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    context_.root = name;
    const fs::path source = PATCHBENCH_ROOT;
    put("packs/manifest.schema.json", read(source / "packs/manifest.schema.json"));
    put("env/pins.json", read(source / "env/pins.json"));
    put("packs/some_pack/manifest.json", read(source / "tests/golden/manifest_complete.json"));
    put("repro/some_pack/repro.cpp", "\n");
  }

  void TearDown() override { fs::remove_all(context_.root); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((context_.root / path).parent_path());
    std::ofstream(context_.root / path) << text;
  }

  /// What the words print on stdout; Error and CLI::ParseError pass through.
  std::string run(const std::vector<std::string>& words) {
    CLI::App app;
    app.fallthrough();
    app.add_flag("--json", context_.json);
    add_list_commands(app, context_);
    add_status_command(app, context_);
    add_new_command(app, context_);
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    std::ostringstream out;
    std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
    try {
      app.parse(reversed);
    } catch (...) {
      std::cout.rdbuf(before);
      throw;
    }
    std::cout.rdbuf(before);
    return out.str();
  }

  std::string refusal(const std::vector<std::string>& words) {
    try {
      run(words);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      return e.what();
    }
    return "no error";
  }

  /// Compares with a golden; PATCHBENCH_UPDATE_GOLDENS=1 rewrites it.
  void expect_golden(const std::string& name, const std::string& got) {
    const fs::path path = fs::path(PATCHBENCH_ROOT) / "tests/golden" / name;
    if (::getenv("PATCHBENCH_UPDATE_GOLDENS") != nullptr) std::ofstream(path) << got;
    EXPECT_EQ(got, read(path));
  }

  const std::string upstream_ = "liger-kernel@0.8.0=liger_kernel/ops/utils.py";
  Context context_;
};

TEST_F(ListCommands, TheCatalogHasAdaptersAndDonorsAsRows) {
  const auto rows = [&] {
    std::vector<std::string> out;
    for (const Json& row : Json::parse(run({"list", "--catalog", "--json"})))
      out.push_back(row.at("role").get<std::string>() + ": " + row.at("what").get<std::string>() +
                    ", " + row.at("backend_contract").get<std::string>());
    return out;
  };
  EXPECT_EQ(rows(), (std::vector<std::string>{"chosen: some_pack, any strides",
                                              "donor: thing 2.0, contiguous rows"}));
  put("mitigations/patchbench_mitigations/some_pack.py", "\n");
  EXPECT_EQ(rows().at(1), "adapter: some_pack in thing, modes exact");
  EXPECT_NE(run({"list", "--catalog"}).find("cross entropy"), std::string::npos);
}

TEST_F(ListCommands, ListGivesOneRowAPack) { expect_golden("list.txt", run({"list"})); }

TEST_F(ListCommands, ShowFitsEightyColumns) {
  const std::string got = run({"show", "some_pack"});
  expect_golden("show.txt", got);
  std::istringstream lines(got);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(report::display_width(line), 80) << line;
}

TEST_F(ListCommands, JsonIsOneDocument) {
  const Json list = parse_json(run({"list", "--json"}), "list");
  EXPECT_EQ(list.at(0).at("slug"), "some_pack");
  EXPECT_EQ(list.at(0).at("cells").size(), 6u);
  const Json show = parse_json(run({"show", "some_pack", "--json"}), "show");
  EXPECT_EQ(show.at("manifest").at("number"), 42);
  EXPECT_EQ(show.at("cells").at(1).at("filled"), true);
  EXPECT_EQ(show.at("cells").at(4).at("waived"), "the op has no test of its own yet");
}

TEST_F(ListCommands, TableShowsWhatWasCounted) {
  RunContext where = sample::context();
  where.slug = "some_pack";
  Observation o = sample::observation("upstream", "fp32", CaseRole::kTrigger, CaseStatus::kAbsent);
  o.slug = where.slug;
  EXPECT_EQ(run({"status", "cases", "some_pack"}),
            "some_pack: no record; run patchbench window some_pack\n");
  o.self_reported["numbers"] = {{"registers", 255}, {"spill_bytes", number_or_name(NAN)}};
  put("reports/evidence/some_pack/cpu.jsonl",
      canonical_json(make_observation_record(where, o).statement) + "\n");
  EXPECT_NE(
      run({"status", "cases", "some_pack"}).find("absent (registers 255, spill_bytes nan) 0.8.0"),
      std::string::npos);
}

TEST_F(ListCommands, UnknownPackGetsAProposal) {
  EXPECT_EQ(refusal({"show", "some_pak"}), "no pack \"some_pak\"; did you mean some_pack?");
  EXPECT_EQ(refusal({"show", "../packs/some_pack"}),
            "no pack \"../packs/some_pack\"; one of: some_pack");
}

TEST_F(ListCommands, FolderAndSlugMustAgree) {
  put("packs/other_pack/manifest.json", read(context_.root / "packs/some_pack/manifest.json"));
  EXPECT_EQ(refusal({"list"}),
            "packs/other_pack/manifest.json: the slug is some_pack, the folder other_pack");
}

TEST_F(ListCommands, NewWritesAPackThatIsListed) {
  const std::string got = run({"new", "ninth_pack", "--title=A ninth bug", upstream_});
  EXPECT_NE(got.find("ninth_pack is pack 43"), std::string::npos) << got;
  const Manifest manifest = context_.manifest("ninth_pack");
  EXPECT_EQ(manifest.title, "A ninth bug");
  EXPECT_EQ(manifest.upstreams[0].red_pin, "0.8.0");
  for (const Column column : all_columns()) {
    EXPECT_NE(fs::exists(context_.root / cell_path(manifest.slug, column)),
              manifest.waived(column).has_value())
        << column_name(column);
  }
  EXPECT_NE(read(context_.root / "repro/ninth_pack/subject.py").find("PACKAGE = \"liger_kernel\""),
            std::string::npos);
  EXPECT_NE(read(context_.root / "repro/ninth_pack/standalone.py")
                .find("pip install liger-kernel==0.8.0"),
            std::string::npos);
  EXPECT_NE(read(context_.root / "tests/packs/ninth_pack_test.cpp").find("TEST(NinthPack, "),
            std::string::npos);
  EXPECT_EQ(context_.slugs(), (std::vector<std::string>{"some_pack", "ninth_pack"}));
  EXPECT_NE(run({"list"}).find("ninth_pack"), std::string::npos);
}

TEST_F(ListCommands, NewEditsNoFileThatIsThere) {
  put("repro/ninth_pack/subject.py", "mine\n");
  EXPECT_EQ(refusal({"new", "ninth_pack", "--title=t", upstream_}),
            "repro/ninth_pack/subject.py is there already; nothing was written");
  EXPECT_EQ(read(context_.root / "repro/ninth_pack/subject.py"), "mine\n");
  EXPECT_FALSE(fs::exists(context_.root / "packs/ninth_pack"));
}

TEST_F(ListCommands, NewRefusesWrongWords) {
  EXPECT_NE(refusal({"new", "Ninth", "--title=t", upstream_}).find("is no slug"),
            std::string::npos);
  EXPECT_EQ(refusal({"new", "some_pack", "--title=t", upstream_}),
            "the pack some_pack is there already; patchbench show some_pack");
  EXPECT_EQ(refusal({"new", "ninth_pack", "--number=42", "--title=t", upstream_}),
            "--number 42: that is some_pack");
  EXPECT_NE(refusal({"new", "ninth_pack", "--number=100", "--title=t", upstream_}).find("/number"),
            std::string::npos);
  EXPECT_NE(refusal({"new", "ninth_pack", "--title=t", "triton@9=a"}).find("9"), std::string::npos);
  EXPECT_NE(refusal({"new", "ninth_pack", "--title=t", "slime=a"})
                .find("write NAME@git:COMMIT=FILE; one of: slime@git:624b824a89"),
            std::string::npos);
  EXPECT_NE(refusal({"new", "ninth_pack", "--title=t", "liger-kernl@0.8.0=a"})
                .find("did you mean liger-kernel?"),
            std::string::npos);
  EXPECT_NE(refusal({"new", "ninth_pack", "--kind=bgu", "--title=t", upstream_}).find("/kind"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(context_.root / "packs/ninth_pack"));
}

TEST_F(ListCommands, UnreadableFileIsNamed) {
  fs::remove(context_.root / "env/pins.json");
  fs::create_directory(context_.root / "env/pins.json");
  try {
    context_.pins();
    FAIL() << "a folder was read as a file";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(e.what()).find("env/pins.json: cannot be read as a file"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace patchbench::cli
