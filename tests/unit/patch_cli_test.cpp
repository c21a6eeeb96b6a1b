#include <gtest/gtest.h>

#include "cli/commands.h"
#include "core/edit.h"
#include "core/error.h"
#include "fixtures/git_toy.h"
#include "git/series.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

std::string body(const std::string& middle, const std::string& last = "end()") {
  return "def f(x):\n    start(x)\n    keep_a()\n    keep_b()\n    keep_c()\n    " + middle +
         "\n    keep_d()\n    keep_e()\n    keep_f()\n    " + last + "\n";
}

/// A repository with two packs on one toy upstream, and the `patch` command.
class PatchCli : public testing::Test {
 protected:
  PatchCli() {
    fs::create_directories(world.root() / "packs");
    fs::copy_file(fs::path(PATCHBENCH_ROOT) / "packs/manifest.schema.json",
                  world.root() / "packs/manifest.schema.json");
    add_pack("toy_one", 1);
    add_pack("toy_two", 2);
    world.add_release("1.0", {{"toy/__init__.py", "\n"}, {"toy/a.py", body("old()")}});
    world.add_release("1.1",
                      {{"toy/__init__.py", "\n"}, {"toy/a.py", "import toy\n" + body("old()")}});
    world.add_release("1.2",
                      {{"toy/__init__.py", "\n"}, {"toy/a.py", "import toy\n" + body("theirs()")}});
    world.add_release("1.3",
                      {{"toy/__init__.py", "\n"}, {"toy/a.py", "import toy\n" + body("ours()")}});
  }

  void add_pack(const std::string& slug, int number) {
    Json waivers = Json::array();
    for (const char* cell : {"repro", "patches", "mitigations", "tests", "reports"}) {
      waivers.push_back({{"cell", cell}, {"reason", "a toy of a test"}});
    }
    const Json manifest = {
        {"slug", slug},
        {"number", number},
        {"title", "a toy"},
        {"kind", "bug"},
        {"upstreams",
         Json::array({{{"name", "toy"}, {"red_pin", "1.0"}, {"files", {"toy/a.py"}}}})},
        {"classes", Json::array({{{"name", "wrong"}, {"meaning", "is wrong"}}})},
        {"cases", Json::array()},
        {"subjects", Json::array()},
        {"scope", Json::array({{{"claim", "is wrong"},
                                {"of", "ours"},
                                {"architecture", "any"},
                                {"verdict", "claimed"}}})},
        {"waivers", waivers},
        {"mitigation", {{"modes", {"hook"}}, {"needs", Json::array()}, {"exactness", "a toy"}}},
        {"filing",
         {{"kind", "none"},
          {"repositories", {"owner/toy"}},
          {"thread", ""},
          {"group", ""},
          {"order", 0},
          {"depends_on", Json::array()},
          {"risk", "none"}}},
        {"lifecycle",
         {{"admission", "a toy"},
          {"keep", "drop"},
          {"retire_when", "never"},
          {"review_on", "2027-01-01"},
          {"catalog",
           {{"surface", "a"}, {"family", "b"}, {"backend_contract", "c"}, {"role", "donor"}}}}}};
    ToyWorld::write(world.root() / "packs" / slug / "manifest.json", manifest.dump());
  }

  /// Runs `patch <words>`; stdout. An Error goes through.
  std::string run(const std::vector<std::string>& words) {
    Context context;
    context.root = world.root();
    context.cache = world.cache();
    context.json = is_json;
    CLI::App app{"test"};
    app.fallthrough();
    cli::add_patch_command(app, context);
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    reversed.push_back("patch");
    testing::internal::CaptureStdout();
    try {
      app.parse(reversed);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    status = context.exit_code;
    return testing::internal::GetCapturedStdout();
  }

  ErrorCode refused(const std::vector<std::string>& words) {
    try {
      run(words);
    } catch (const Error& e) {
      message = e.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      return e.code();
    }
    ADD_FAILURE() << "was not refused";
    return ErrorCode::kInternal;
  }

  /// new, edit a.py, save.
  void make_edit(const std::string& slug, const std::string& text, const std::string& subject) {
    const fs::path folder = world.folder() / ("work-" + slug + subject);
    run({"new", slug, folder.string()});
    ToyWorld::write(folder / "toy/a.py", text);
    run({"save", folder.string(), "--subject", subject, "--bug", "https://toy.invalid/7"});
  }

  /// Makes a commit one that env/pins.json names.
  void name_commit(const std::string& commit) {
    const fs::path file = world.root() / "env/pins.json";
    std::string pins = ToyWorld::read(file);
    const std::string none = R"("commits": [])", note = R"(", "date": "2025-12-31", "note": "n"}])";
    ToyWorld::write(file, pins.replace(pins.find(none), none.size(),
                                       R"("commits": [{"commit": ")" + commit + note));
  }

  fs::path patches(const std::string& slug) const { return world.root() / "patches" / slug; }

  ToyWorld world;
  bool is_json = false;
  int status = 0;
  std::string message;
};

TEST_F(PatchCli, NewEditSaveApplyGivesTheIdenticalTree) {
  const fs::path work = world.folder() / "work", mine = world.folder() / "mine";
  run({"new", "toy_one", work.string()});
  EXPECT_EQ(world.output("git -C " + work.string() + " status --porcelain"), "");
  ToyWorld::write(work / "toy/a.py", body("ours()"));
  ToyWorld::write(work / "toy/extra.py", ".\nx = 1");
  run({"save", work.string(), "--subject", "Use ours, not old", "--description",
       "Because.\n\nTruly."});
  const git::Series series = git::load_series(patches("toy_one"));
  ASSERT_EQ(series.edits.size(), 1u);
  const Edit& edit = series.edits[0];
  EXPECT_EQ(edit.name, "0001-use-ours-not-old.edit");
  EXPECT_EQ(edit.field("License"), "MIT");
  EXPECT_EQ(edit.field("Base"), "1.0");
  EXPECT_EQ(edit.field("Description"), "Because.\n\nTruly.");
  EXPECT_TRUE(missing_fields(edit).empty());
  const git::Checkout pin = world.store().materialize(world.pin("1.0"), {});
  fs::copy(pin.path, mine, fs::copy_options::recursive);
  fs::remove(mine / ".git");
  run({"apply", "toy_one", mine.string()});
  fs::remove_all(work / ".git");
  EXPECT_EQ(world.output("diff -r " + work.string() + " " + mine.string()), "");
  EXPECT_EQ(refused({"apply", "toy_one", mine.string()}), ErrorCode::kUsage);
  EXPECT_NE(message.find("already applied"), std::string::npos) << message;
}

TEST_F(PatchCli, ApplyChangesNothingWhereOneFileIsAnother) {
  make_edit("toy_one", body("ours()"), "first");
  const fs::path mine = world.folder() / "mine";
  ToyWorld::write_files(mine,
                        {{"toy/__init__.py", "\n"}, {"toy/a.py", "import toy\n" + body("old()")}});
  EXPECT_EQ(refused({"apply", "toy_one", mine.string()}), ErrorCode::kUsage);
  EXPECT_NE(message.find("0001-first.edit"), std::string::npos) << message;
  EXPECT_EQ(ToyWorld::read(mine / "toy/a.py"), "import toy\n" + body("old()"));
  run({"apply", "toy_one", "1.1", mine.string()});
  EXPECT_EQ(ToyWorld::read(mine / "toy/a.py"), "import toy\n" + body("ours()"));
}

TEST_F(PatchCli, ASecondEditRestsOnTheFirstAndTheLastCanBeReplaced) {
  make_edit("toy_one", body("ours()"), "first");
  make_edit("toy_one", body("ours()", "finish()"), "second");
  std::vector<Edit> edits = git::load_series(patches("toy_one")).edits;
  ASSERT_EQ(edits.size(), 2u);
  EXPECT_EQ(edits[1].files.at(0).blob, edits[0].files.at(0).result);
  const fs::path work = world.folder() / "work";
  run({"new", "toy_one", work.string()});
  ToyWorld::write(work / "toy/a.py", body("ours()", "finish_better()"));
  EXPECT_EQ(refused({"save", work.string(), "--name", "0001-first"}), ErrorCode::kUsage);
  run({"save", work.string(), "--name", "0002-second"});
  edits = git::load_series(patches("toy_one")).edits;
  ASSERT_EQ(edits.size(), 2u);
  EXPECT_EQ(edits[1].field("Subject"), "second");
  EXPECT_EQ(edits[1].field("Bug"), "https://toy.invalid/7");
  git::Store store = world.store();
  EXPECT_EQ(git::read_after(store, world.pin("1.0"), edits, "toy/a.py"),
            body("ours()", "finish_better()"));
}

TEST_F(PatchCli, AMutantStandsAloneOnThePin) {
  make_edit("toy_one", body("ours()"), "first");
  const fs::path work = world.folder() / "work";
  run({"new", "toy_one", work.string()});
  ToyWorld::write(work / "toy/a.py", body("half()"));
  run({"save", work.string(), "--name", "mutant-half", "--subject", "half a fix"});
  const git::Series series = git::load_series(patches("toy_one"));
  ASSERT_EQ(series.mutants.size(), 1u);
  EXPECT_EQ(series.edits.size(), 1u);
  git::Store store = world.store();
  EXPECT_EQ(git::read_after(store, world.pin("1.0"), series.mutants, "toy/a.py"), body("half()"));
  run({"save", work.string(), "--name", "claimed-half", "--subject", "what was proposed"});
  const git::Series again = git::load_series(patches("toy_one"));
  ASSERT_EQ(again.claimed.size(), 1u);
  EXPECT_EQ(again.claimed[0].name, "claimed-half.edit");
  EXPECT_EQ(again.mutants.size(), 1u);
  run({"save", work.string(), "--name", "wrong-half", "--subject", "a candidate"});
  EXPECT_TRUE(fs::exists(patches("toy_one") / "wrong-half.edit"));
  EXPECT_EQ(git::load_series(patches("toy_one")).mutants.size(), 1u) << "no part of the series";
}

TEST_F(PatchCli, AMutantOfALongFixIsSavedOverIt) {
  std::string ours = "one()";
  for (const char* more : {"two()", "three()", "four()", "five()", "six()"})
    ours += std::string("\n    ") + more;
  make_edit("toy_one", body(ours), "first");
  const fs::path work = world.folder() / "work";
  run({"new", "toy_one", work.string()});
  ToyWorld::write(work / "toy/a.py", body(ours + "\n    and_wrong()"));
  run({"save", work.string(), "--name", "mutant-half", "--subject", "half a fix"});
  const std::string text = ToyWorld::read(patches("toy_one") / "mutant-half.edit");
  EXPECT_NE(text.find("\nOver: 0001-first.edit\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("one()"), std::string::npos) << text;
  git::Store store = world.store();
  EXPECT_EQ(git::read_after(store, world.pin("1.0"), git::load_series(patches("toy_one")).mutants,
                            "toy/a.py"),
            body(ours + "\n    and_wrong()"));
  const fs::path elsewhere = world.folder() / "elsewhere";
  run({"save", work.string(), "--name", "mutant-half", "--subject", "half a fix", "--out",
       elsewhere.string()});
  EXPECT_EQ(ToyWorld::read(elsewhere / "mutant-half.edit").find("Over:"), std::string::npos);
}

TEST_F(PatchCli, SaveNamesCopiedUpstreamLines) {
  const fs::path work = world.folder() / "work";
  run({"new", "toy_one", work.string()});
  ToyWorld::write(work / "toy/a.py", body("old()") + body("old()"));
  testing::internal::CaptureStderr();
  run({"save", work.string(), "--subject", "twice"});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("copied from upstream: toy/a.py"),
            std::string::npos);
}

TEST_F(PatchCli, ShowPrintsADiffThatGitTakes) {
  make_edit("toy_one", body("ours()"), "first");
  const std::string out = run({"show", "toy_one"});
  EXPECT_NE(out.find("-    old()\n+    ours()\n"), std::string::npos) << out;
  is_json = true;
  const Json rows = Json::parse(run({"show", "toy_one", "1.1"}));
  EXPECT_EQ(rows.at(0).at("version"), "1.1");
}

TEST_F(PatchCli, ExportWritesAQuiltSeriesOfMailsThatGitAmTakes) {
  make_edit("toy_one", body("ours()"), "first");
  make_edit("toy_one", body("ours()", "finish()"), "second");
  make_edit("toy_two", body("other()"), "third");
  world.commit({{"toy/__init__.py", "\n"}, {"toy/a.py", body("old()")}});
  const fs::path out = world.folder() / "out";
  run({"export", "--all", out.string()});
  EXPECT_EQ(ToyWorld::read(out / "toy_one/series"), "0001-first.patch\n0002-second.patch\n");
  EXPECT_TRUE(fs::exists(out / "toy_two/0001-third.patch"));
  ToyWorld::sh("cd " + world.clone().string() + " && git am -q " + out.string() +
               "/toy_one/*.patch");
  EXPECT_EQ(ToyWorld::read(world.clone() / "src/toy/a.py"), body("ours()", "finish()"));
  EXPECT_EQ(refused({"export", out.string()}), ErrorCode::kUsage);
  const fs::path by_ada = world.folder() / "by_ada";
  run({"export", "toy_two", by_ada.string(), "--from", "Ada B <ada@example.org>"});
  EXPECT_NE(ToyWorld::read(by_ada / "toy_two/0001-third.patch")
                .find("\nSigned-off-by: Ada B <ada@example.org>\n---\n"),
            std::string::npos);
}

TEST_F(PatchCli, RebaseAllNamesEachStateAndTheFirstBreak) {
  make_edit("toy_one", body("ours()"), "first");
  is_json = true;
  const fs::path out = world.folder() / "carried";
  const Json table = Json::parse(run({"rebase", "toy_one", "--write", out.string()}));
  std::string states;
  for (const Json& row : table.at("rows"))
    states += row.at("version").get<std::string>() + "=" + row.at("state").get<std::string>() + " ";
  EXPECT_EQ(states, "1.0=clean 1.1=clean 1.2=conflict 1.3=landed ");
  EXPECT_EQ(table.at("first_break_later"), "1.2");
  const Json conflict = table.at("rows").at(2).at("edits").at(0).at("conflicts").at(0);
  EXPECT_EQ(conflict.at("path"), "toy/a.py");
  EXPECT_EQ(conflict.at("first_line"), 7);
  EXPECT_EQ(conflict.at("theirs"), "    theirs()\n");
  EXPECT_EQ(status, 0);
  const Edit carried = parse_edit(ToyWorld::read(out / "1.1/0001-first.edit"), "0001-first.edit");
  EXPECT_EQ(carried.field("Base"), "1.1");
  EXPECT_FALSE(fs::exists(out / "1.2"));
}

TEST_F(PatchCli, RebaseToOneVersionSaysWhereItConflicts) {
  make_edit("toy_one", body("ours()"), "first");
  const std::string out = run({"rebase", "toy_one", "1.2"});
  EXPECT_NE(out.find("toy/a.py:7"), std::string::npos) << out;
  EXPECT_NE(out.find("    theirs()"), std::string::npos) << out;
  EXPECT_EQ(status, 1);
  EXPECT_EQ(refused({"new", "toy_one", "1.2", (world.folder() / "x").string()}),
            ErrorCode::kUnresolved);
  EXPECT_FALSE(fs::exists(world.folder() / "x"));
}

TEST_F(PatchCli, TogetherNamesThePairsThatConflict) {
  make_edit("toy_one", body("ours()"), "first");
  make_edit("toy_two", body("old()", "finish()"), "apart");
  is_json = true;
  Json rows = Json::parse(run({"rebase", "--together"}));
  EXPECT_EQ(rows.at(0).at("clashes"), Json::array());
  make_edit("toy_two", body("other()", "finish()"), "clash");
  rows = Json::parse(run({"rebase", "--together"}));
  ASSERT_EQ(rows.at(0).at("clashes").size(), 1u);
  EXPECT_EQ(rows.at(0).at("clashes").at(0).at("one"), "toy_one");
  EXPECT_EQ(rows.at(0).at("clashes").at(0).at("other"), "toy_two");
}

TEST_F(PatchCli, CheckTakesNamedCommitsByDateAndNamesPairsThere) {
  make_edit("toy_one", body("ours()"), "first");
  make_edit("toy_two", body("other()"), "clash");
  const std::string commit = world.commit({{"toy/a.py", "import os\n" + body("old()")}});
  name_commit(commit);
  const std::string out = run({"check", "--all", "--commits"});
  const std::string name = "git:" + commit.substr(0, 10);
  EXPECT_NE(out.find(name + " rebased; 1.0 applies; 1.1 rebased; 1.2 conflict"), std::string::npos)
      << out;
  EXPECT_NE(
      out.find("  toy " + name + ": toy_one toy_two do not all go together; toy_one + toy_two"),
      std::string::npos)
      << out;
  EXPECT_EQ(run({"check", "--all"}).find(name), std::string::npos);
}

TEST_F(PatchCli, CheckGoesOnPastAPinOutOfReachAndNamesItAtTheEnd) {
  make_edit("toy_one", body("ours()"), "first");
  make_edit("toy_two", body("old()", "finish()"), "second");
  const std::string commit(40, 'c'), base = "Base: 1.0";
  std::string text = ToyWorld::read(patches("toy_one") / "0001-first.edit");
  ASSERT_NE(text.find(base), std::string::npos);
  ToyWorld::write(patches("toy_one") / "0002-lost.edit",
                  text.replace(text.find(base), base.size(), "Base: git:" + commit));
  name_commit(commit);
  const std::string out = run({"check", "--all", "--commits"});
  EXPECT_EQ(status, 0);
  const std::string name = "git:" + commit.substr(0, 10);
  EXPECT_NE(out.find(name + "-1.3 not_run"), std::string::npos) << out;
  EXPECT_NE(out.find(name + " not_run; 1.0 applies"), std::string::npos) << out;
  EXPECT_NE(out.find("  toy " + name + ": no two to test; toy_one not_run; toy_two not_run"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("\nnot run: 1\n  toy git:" + commit + ":\n  NOT_RUN:upstream_unreachable: "),
            std::string::npos)
      << out;
  is_json = true;
  const Json rows = Json::parse(run({"check", "--all"}));
  EXPECT_EQ(rows.at("edits").at(1).at("releases").at(0).at("state"), "not_run");
  EXPECT_EQ(rows.at("edits").at(2).at("releases").at(0).at("state"), "applies");
  EXPECT_EQ(rows.at("not_run").size(), 1u);
}

TEST_F(PatchCli, WrongWordsAreOneClearLine) {
  const std::string folder = (world.folder() / "w").string();
  EXPECT_EQ(refused({"new", "toy_onne", folder}), ErrorCode::kUsage);
  EXPECT_NE(message.find("did you mean toy_one"), std::string::npos);
  EXPECT_EQ(refused({"new", "toy_one", "9.9", folder}), ErrorCode::kUsage);
  EXPECT_EQ(refused({"new", "toy_one", "tooy", folder}), ErrorCode::kUsage);
  EXPECT_EQ(refused({"new", "toy_one", world.root().string()}), ErrorCode::kUsage);
  EXPECT_EQ(refused({"save", world.root().string(), "--subject", "x"}), ErrorCode::kUsage);
  EXPECT_EQ(refused({"apply", "toy_one", folder}), ErrorCode::kUsage);
  EXPECT_EQ(refused({"rebase", "toy_one"}), ErrorCode::kUsage);
  EXPECT_EQ(refused({"rebase", "toy_one"}), ErrorCode::kUsage);
  EXPECT_EQ(refused({"rebase"}), ErrorCode::kUsage);
  run({"new", "toy_one", folder});
  EXPECT_EQ(refused({"save", folder, "--subject", "x"}), ErrorCode::kUsage)
      << "nothing was changed";
  ToyWorld::write(fs::path(folder) / "toy/a.py", body("ours()"));
  EXPECT_EQ(refused({"save", folder}), ErrorCode::kUsage) << "no subject";
}

}  // namespace
}  // namespace patchbench
