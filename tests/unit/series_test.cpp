#include "git/series.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/edit_make.h"
#include "core/error.h"
#include "fixtures/git_toy.h"
#include "git/diff_reader.h"
#include "git/mail.h"
#include "git/rebase.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

std::string numbered(int count, const std::map<int, std::string>& replaced = {}) {
  std::string text;
  for (int i = 1; i <= count; ++i) {
    text += (replaced.contains(i) ? replaced.at(i) : "line_" + std::to_string(i) + "()") + "\n";
  }
  return text;
}

const ToyWorld::Files kFiles = {
    {"toy/__init__.py", "version = 1\n"}, {"toy/a.py", numbered(30)}, {"toy/b.py", "b = 1\n"}};

Edit make_edit(const std::string& name, const std::vector<FileEdit>& files) {
  return {name,
          {{"Subject", "scale rows – one by one"},
           {"Description", "Why it is right.\n\n--- set in\nFrom here on."},
           {"Upstream", "toy"},
           {"Base", "1.0"},
           {"Origin", "vendor"},
           {"Bug", "https://toy.invalid/1"},
           {"Forwarded", "no"},
           {"License", "MIT"},
           {"Last-Update", "2026-11-21"}},
          files};
}

Edit edit_of_a(const std::map<int, std::string>& replaced) {
  return make_edit("0001-a.edit",
                   {make_file_edit("toy/a.py", kFiles.at("toy/a.py"), numbered(30, replaced))});
}

class SeriesTest : public testing::Test {
 protected:
  SeriesTest() { world.add_release("1.0", kFiles); }
  ToyWorld world;
  Store store = world.store();
};

/// An edit with every kind of change, the second of a series.
std::vector<Edit> two_edits() {
  FileEdit added = make_file_edit("toy/added.sh", std::nullopt, "echo");
  added.mode = "100755";
  return {edit_of_a({{3, "ours_3()"}}),
          make_edit("0002-b.edit",
                    {make_file_edit("toy/a.py", numbered(30, {{3, "ours_3()"}}),
                                    numbered(30, {{3, "ours_3()"}, {20, "if x:\n    line_20()"}})),
                     added, make_file_edit("toy/b.py", kFiles.at("toy/b.py"), std::nullopt)})};
}

TEST(SeriesFor, PrefersEditsWrittenForTheVersionAndElseThoseOfTheRedPin) {
  const auto with_base = [](const std::string& name, const std::string& base) {
    return Edit{name, {{"Base", base}}, {}};
  };
  const Series all = {{with_base("0001-a.edit", "2.0"), with_base("0002-b.edit", "2.0"),
                       with_base("0101-old.edit", "1.0")},
                      {with_base("mutant-a.edit", "2.0"), with_base("mutant-old.edit", "1.0")},
                      {with_base("claimed-a.edit", "2.0"), with_base("claimed-old.edit", "1.0")}};
  const BasedSeries red = series_for(all, "2.0", "2.0"), old = series_for(all, "1.0", "2.0"),
                    carried = series_for(all, "1.5", "2.0");
  EXPECT_EQ(red.series.edits.size(), 2u);
  EXPECT_EQ(red.series.mutants.at(0).name, "mutant-a.edit");
  ASSERT_EQ(old.series.edits.size(), 1u);
  EXPECT_EQ(old.base, "1.0");
  EXPECT_EQ(old.series.edits[0].name, "0101-old.edit");
  EXPECT_EQ(old.series.mutants.at(0).name, "mutant-old.edit");
  ASSERT_EQ(old.series.claimed.size(), 1u);
  EXPECT_EQ(old.series.claimed[0].name, "claimed-old.edit");
  EXPECT_EQ(carried.base, "2.0");
  EXPECT_EQ(carried.series.edits.size(), 2u);
}

TEST_F(SeriesTest, LoadsEditsInOrderAndMutantsApart) {
  const fs::path folder = world.folder() / "patches";
  EXPECT_TRUE(load_series(folder).edits.empty());
  const Edit edit = edit_of_a({{3, "ours_3()"}});
  for (const char* name : {"0002-b.edit", "0001-a.edit", "mutant-half.edit", "claimed-once.edit"}) {
    ToyWorld::write(folder / name, format_edit(edit));
  }
  ToyWorld::write(folder / "README.md", "x");
  const Series series = load_series(folder);
  ASSERT_EQ(series.edits.size(), 2u);
  EXPECT_EQ(series.edits[0].name, "0001-a.edit");
  EXPECT_EQ(series.mutants.at(0).name, "mutant-half.edit");
  ASSERT_EQ(series.claimed.size(), 1u);
  EXPECT_EQ(series.claimed[0].name, "claimed-once.edit");
  ToyWorld::write(folder / "Fix.edit", format_edit(edit));
  EXPECT_THROW(load_series(folder), Error);
  fs::remove(folder / "Fix.edit");
  Edit bare = edit;
  bare.header.resize(1);
  ToyWorld::write(folder / "0003-c.edit", format_edit(bare));
  EXPECT_THROW(load_series(folder), Error);
}

TEST_F(SeriesTest, MailsAreTakenByGitAmAndGitApplyAtThePin) {
  const std::string base = world.commit(kFiles);
  const std::vector<Edit> edits = two_edits();
  const std::string at = world.clone().string();
  for (const std::string how : {"am -q", "apply --index"}) {
    for (size_t i = 0; i < edits.size(); ++i) {
      const std::vector<Edit> before(edits.begin(), edits.begin() + static_cast<std::ptrdiff_t>(i));
      const std::string mail = format_mail(edits[i], world.pin("1.0"), store, "src/",
                                           static_cast<int>(i) + 1, 2, before);
      EXPECT_EQ(mail, format_mail(edits[i], world.pin("1.0"), store, "src/",
                                  static_cast<int>(i) + 1, 2, before));
      ToyWorld::write(world.folder() / "mail", mail);
      ToyWorld::sh("git -C " + at + " " + how + " " + (world.folder() / "mail").string());
    }
    const Checkout wanted = store.materialize(world.pin("1.0"), edits);
    EXPECT_EQ(ToyWorld::read(world.clone() / "src/toy/a.py"),
              ToyWorld::read(wanted.package / "toy/a.py"));
    EXPECT_EQ(ToyWorld::read(world.clone() / "src/toy/added.sh"), "echo");
    EXPECT_EQ(access((world.clone() / "src/toy/added.sh").c_str(), X_OK), 0);
    EXPECT_FALSE(fs::exists(world.clone() / "src/toy/b.py"));
    if (how == "am -q") {
      EXPECT_EQ(world.output("git -C " + at + " log -1 --format='%s|%as|%an'"),
                "scale rows – one by one|2026-11-21|Nobody\n");
      EXPECT_EQ(
          world.output("git -C " + at + " log -1 --format=%b"),
          "Why it is right.\n\n --- set in\n From here on.\n\nBug: https://toy.invalid/1\n\n");
    }
    ToyWorld::sh("git -C " + at + " reset -q --hard " + base);
  }
}

TEST_F(SeriesTest, AMailIsSignedOffByWhoFiles) {
  world.commit(kFiles);
  Edit edit = edit_of_a({{3, "ours_3()"}});
  const auto mail = [&](const std::string& signer) {
    return format_mail(edit, world.pin("1.0"), store, "src/", 1, 1, {}, signer);
  };
  edit.set_field("Description", std::string(60, 'a') + " " + std::string(60, 'b'));
  EXPECT_NE(mail("").find("---\nNot signed off: "), std::string::npos);
  EXPECT_EQ(mail("").find("Signed-off-by"), std::string::npos);
  ToyWorld::write(world.folder() / "mail", mail("Zoë Example <zoe@example.org>"));
  const std::string at = world.clone().string();
  ToyWorld::sh("git -C " + at + " am -q " + (world.folder() / "mail").string());
  EXPECT_EQ(world.output("git -C " + at + " log -1 --format='%an <%ae>'"),
            "Zoë Example <zoe@example.org>\n");
  EXPECT_EQ(
      world.output("git -C " + at + " log -1 --format=%b"),
      std::string(60, 'a') + "\n" + std::string(60, 'b') +
          "\n\nBug: https://toy.invalid/1\n\nSigned-off-by: Zoë Example <zoe@example.org>\n\n");
}

TEST(Mailbox, IsANameAndOneAddressOnOneLine) {
  for (const char* good : {"A <a@b>", "Zoë van X. <z+1@example.org>"})
    EXPECT_TRUE(is_mailbox(good)) << good;
  for (const char* bad :
       {"", "A", "a@b", "<a@b>", " <a@b>", "A <a>", "A <@b>", "A <a@>", "A <a@b@c>", "A <a b@c>",
        "A <a@b> x", "A <a@b>\nBcc: x@y", "A\n <a@b>", "A <B> <a@b>", "\"A\" <a@b>", "A<a@b>"})
    EXPECT_FALSE(is_mailbox(bad)) << bad;
}

TEST_F(SeriesTest, AMailWithCarriageReturnsSaysHowToTakeIt) {
  world.commit({{"toy/crlf.py", "a\r\nb\r\n"}});
  world.add_release("2.0", {{"toy/crlf.py", "a\r\nb\r\n"}});
  const Edit edit =
      make_edit("0001-c.edit", {make_file_edit("toy/crlf.py", "a\r\nb\r\n", "a\r\nc\r\n")});
  ToyWorld::write(world.folder() / "mail",
                  format_mail(edit, world.pin("2.0"), store, "src/", 1, 1));
  EXPECT_NE(ToyWorld::read(world.folder() / "mail").find("git am --keep-cr"), std::string::npos);
  ToyWorld::sh("cd " + world.clone().string() +
               " && git apply --check ../mail && git am -q --keep-cr ../mail");
  EXPECT_EQ(ToyWorld::read(world.clone() / "src/toy/crlf.py"), "a\r\nc\r\n");
}

TEST_F(SeriesTest, MailOfALastUpdateThatIsNoDayIsRefused) {
  Edit edit = edit_of_a({{3, "ours_3()"}});
  edit.set_field("Last-Update", "2026-13-01");
  EXPECT_THROW(format_mail(edit, world.pin("1.0"), store, "", 1, 1), Error);
}

TEST_F(SeriesTest, DiffsOfEveryFormComeBackAsTheSameEdit) {
  const std::vector<Edit> edits = two_edits();
  const Pin pin = world.pin("1.0");
  const std::vector<Edit> before = {edits[0]};
  const std::string diff = unified_diff(edits[1], pin, store, before);
  EXPECT_EQ(edit_from_diff(diff, pin, store, "x.diff", before).files, edits[1].files);
  const std::string mail = format_mail(edits[1], pin, store, "src/", 2, 2, before);
  EXPECT_EQ(edit_from_diff(mail, pin, store, "x.patch", before).files, edits[1].files);
  const std::string plain =
      "--- old/x/toy/b.py\t2026\n+++ new/x/toy/b.py\t2026\n@@ -1 +1,2 @@\n-b = 1\n+b = 2\n+c = "
      "3\n\\ No newline at end of file\n";
  const Edit edit = edit_from_diff(plain, pin, store, "x.diff");
  EXPECT_EQ(apply_file_edit(edit.files.at(0), "b = 1\n"), "b = 2\nc = 3");
}

TEST_F(SeriesTest, DiffsThatDoNotApplyExactlyAreRefusedByLine) {
  const std::string head = "--- a/toy/b.py\n+++ b/toy/b.py\n";
  const auto message = [&](const std::string& diff) -> std::string {
    try {
      edit_from_diff(diff, world.pin("1.0"), store, "x.diff");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message(head + "@@ -1 +1 @@\n-b = 1\n+b = 2\n"), "");
  EXPECT_TRUE(message(head + "@@ -1 +1 @@\n-b = 9\n+b = 2\n")
                  .starts_with("x.diff:4: does not apply exactly to toy/b.py"));
  const std::vector<std::string> wrong = {
      "",
      "prose\n",
      head + "@@ -2 +2 @@\n-b = 1\n+b = 2\n",
      head + "@@ -1,2 +1 @@\n-b = 1\n+b = 2\n",
      head + "@@ -1 +1 @@\n-b = 1\n\\ No newline at end of file\n+b = 2\n",
      head + "@@ -1 +1 @@\n-b = 1\n",
      head + "@@ -x +1 @@\n",
      head + "@@ -1 +1 @@\n-b = 1\n!b = 2\n",
      "--- a/toy/no.py\n+++ b/toy/no.py\n@@ -1 +1 @@\n-b\n+c\n",
      "--- /dev/null\n+++ b/toy/b.py\n@@ -0,0 +1 @@\n+c\n",
      "--- a/toy/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-line_1()\n",
      "diff --git a/toy/b.py b/toy/c.py\nrename from toy/b.py\nrename to toy/c.py\n",
      "diff --git a/toy/b.py b/toy/b.py\nGIT binary patch\n"};
  for (const std::string& diff : wrong)
    EXPECT_TRUE(message(diff).starts_with("x.diff:")) << diff << "|" << message(diff);
}

TEST_F(SeriesTest, AChangedFolderIsAnEditOfThePackagesFilesOnly) {
  const std::vector<Edit> edits = two_edits();
  const Checkout checkout = store.materialize(world.pin("1.0"), {edits[0]});
  const fs::path copy = world.folder() / "copy";
  fs::create_directories(copy);
  fs::copy(checkout.package / "toy", copy / "toy", fs::copy_options::recursive);
  EXPECT_THROW(edit_from_folder(copy, world.pin("1.0"), store, "x.edit", {edits[0]}), Error);
  ToyWorld::write(copy / "toy/a.py", numbered(30, {{3, "ours_3()"}, {20, "if x:\n    line_20()"}}));
  ToyWorld::write(copy / "toy/added.sh", "echo");
  fs::permissions(copy / "toy/added.sh", fs::perms::owner_all);
  ToyWorld::write(copy / "setup.py", "x");
  fs::remove(copy / "toy/b.py");
  const Edit edit = edit_from_folder(copy, world.pin("1.0"), store, "x.edit", {edits[0]});
  std::map<std::string, FileEdit> got, wanted;
  for (const FileEdit& file : edit.files) got[file.path] = file;
  for (const FileEdit& file : edits[1].files) wanted[file.path] = file;
  EXPECT_EQ(got, wanted);
}

/// The rebase of `edit` from 1.0 to a version that holds `files`.
Rebase rebase_to(ToyWorld& world, Store& store, const Edit& edit, const ToyWorld::Files& files) {
  world.add_release("1.1", files);
  return rebase_edit(edit, world.pin("1.0"), world.pin("1.1"), store);
}

TEST_F(SeriesTest, RebaseCarriesACleanEdit) {
  const Rebase rebase = rebase_to(world, store, edit_of_a({{20, "ours_20()"}}),
                                  {{"toy/a.py", numbered(30, {{5, "theirs_a()\ntheirs_b()"}})}});
  EXPECT_EQ(rebase_state_name(rebase.state), "clean");
  EXPECT_EQ(rebase.edit->field("Base"), "1.1");
  EXPECT_EQ(read_after(store, world.pin("1.1"), {*rebase.edit}, "toy/a.py"),
            numbered(30, {{5, "theirs_a()\ntheirs_b()"}, {20, "ours_20()"}}));
}

TEST_F(SeriesTest, RebaseOntoTheSameBlobKeepsTheEditsBytes) {
  const Edit edit = edit_of_a({{20, "ours_20()"}});
  const Rebase rebase =
      rebase_to(world, store, edit, {{"toy/a.py", kFiles.at("toy/a.py")}, {"toy/c.py", "c\n"}});
  EXPECT_EQ(rebase.edit->files, edit.files);
}

TEST_F(SeriesTest, RebaseSaysLandedWhereTheResultIsTheNewBlob) {
  const Rebase rebase =
      rebase_to(world, store, edit_of_a({{20, "ours_20()"}}),
                {{"toy/a.py", numbered(30, {{5, "theirs()"}, {20, "ours_20()"}})}});
  EXPECT_EQ(rebase_state_name(rebase.state), "landed");
  EXPECT_FALSE(rebase.edit.has_value());
}

TEST_F(SeriesTest, RebaseLocatesEachConflictInTheNewFile) {
  const std::string theirs = numbered(
      30, {{1, "top_1()\ntop_2()\ntop_3()"}, {10, "theirs_10()\ntheirs_x()"}, {25, "theirs_25()"}});
  const Rebase rebase = rebase_to(
      world, store, edit_of_a({{5, "ours_5()\nmore()"}, {10, "ours_10()"}, {25, "ours_25()"}}),
      {{"toy/a.py", theirs}});
  EXPECT_EQ(rebase_state_name(rebase.state), "conflict");
  ASSERT_EQ(rebase.conflicts.size(), 2u);
  EXPECT_EQ(rebase.conflicts[0].path, "toy/a.py");
  EXPECT_EQ(rebase.conflicts[0].first_line, 12);
  EXPECT_EQ(rebase.conflicts[0].last_line, 13);
  EXPECT_EQ(rebase.conflicts[0].ours, "ours_10()\n");
  EXPECT_EQ(rebase.conflicts[0].theirs, "theirs_10()\ntheirs_x()\n");
  EXPECT_EQ(rebase.conflicts[1].first_line, 28);
  EXPECT_EQ(rebase.conflicts[1].last_line, 28);
}

TEST_F(SeriesTest, RebaseLocatesAConflictAmongRepeatedLinesAfterLinesOfOurs) {
  std::string many;
  for (int i = 0; i < 12; ++i) many += "more_" + std::to_string(i) + "()\n";
  const std::string theirs = numbered(30, {{1, "top()\nline_1()"}, {17, "same()"}, {28, "same()"}});
  const Rebase rebase = rebase_to(
      world, store, edit_of_a({{5, many + "line_5()"}, {17, "ours_17()"}}), {{"toy/a.py", theirs}});
  ASSERT_EQ(rebase.conflicts.size(), 1u);
  EXPECT_EQ(rebase.conflicts[0].first_line, 18);
  EXPECT_EQ(rebase.conflicts[0].theirs, "same()\n");
}

TEST_F(SeriesTest, RebaseLocatesAConflictWithADeletion) {
  std::string theirs = numbered(30);
  theirs.erase(theirs.find("line_10()\n"), std::string("line_10()\n").size());
  const Rebase rebase =
      rebase_to(world, store, edit_of_a({{10, "ours_10()"}}), {{"toy/a.py", theirs}});
  ASSERT_EQ(rebase.conflicts.size(), 1u);
  EXPECT_EQ(rebase.conflicts[0].first_line, 9);
  EXPECT_EQ(rebase.conflicts[0].theirs, "");
}

TEST_F(SeriesTest, RebaseNamesAMissingFile) {
  const Rebase rebase =
      rebase_to(world, store, edit_of_a({{20, "ours_20()"}}), {{"toy/b.py", "b = 1\n"}});
  EXPECT_EQ(rebase_state_name(rebase.state), "missing_file");
  EXPECT_EQ(rebase.conflicts.at(0).path, "toy/a.py");
}

TEST_F(SeriesTest, ASeriesRebasesEditOnEditAndStopsAtTheFirstConflict) {
  ToyWorld::Files files = kFiles;
  files["toy/a.py"] = numbered(30, {{1, "top()"}});
  world.add_release("1.1", files);
  std::vector<Rebase> rebases =
      rebase_series(two_edits(), world.pin("1.0"), world.pin("1.1"), store);
  ASSERT_EQ(rebases.size(), 2u);
  ASSERT_TRUE(rebases[1].edit.has_value());
  const Checkout checkout =
      store.materialize(world.pin("1.1"), {*rebases[0].edit, *rebases[1].edit});
  EXPECT_EQ(ToyWorld::read(checkout.package / "toy/a.py"),
            numbered(30, {{1, "top()"}, {3, "ours_3()"}, {20, "if x:\n    line_20()"}}));
  files["toy/a.py"] = numbered(30, {{3, "theirs()"}});
  world.add_release("1.2", files);
  rebases = rebase_series(two_edits(), world.pin("1.0"), world.pin("1.2"), store);
  EXPECT_EQ(rebases.size(), 1u);
  files["toy/a.py"] = numbered(30, {{3, "ours_3()"}});
  world.add_release("1.3", files);
  rebases = rebase_series(two_edits(), world.pin("1.0"), world.pin("1.3"), store);
  ASSERT_EQ(rebases.size(), 2u);
  EXPECT_EQ(rebases[0].state, Rebase::State::kLanded);
  EXPECT_EQ(rebases[1].state, Rebase::State::kClean);
}

TEST_F(SeriesTest, SeriesThatDoNotGoTogetherAreNamedInPairs) {
  const std::map<std::string, std::vector<Edit>> series = {
      {"one", {edit_of_a({{3, "one()"}})}},
      {"three", {edit_of_a({{3, "three()"}, {25, "x()"}})}},
      {"two", {edit_of_a({{20, "two()"}})}}};
  const std::vector<Clash> clashes = clashes_of(series, world.pin("1.0"), store);
  ASSERT_EQ(clashes.size(), 1u);
  EXPECT_EQ(clashes[0].one, "one");
  EXPECT_EQ(clashes[0].other, "three");
  EXPECT_EQ(clashes[0].conflicts.at(0).first_line, 3);
}

}  // namespace
}  // namespace patchbench::git
