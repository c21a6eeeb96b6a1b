#include "core/edit_over.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "core/digest.h"
#include "core/edit_make.h"
#include "core/error.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

std::string numbered(int first, int last) {
  std::string text;
  for (int i = first; i <= last; ++i) text += "    line " + std::to_string(i) + "\n";
  return text;
}

Edit edit_of(const std::string& name, std::vector<FileEdit> files) {
  return {name,
          {{"Subject", "x"},
           {"Description", "x"},
           {"Upstream", "toy"},
           {"Base", "1.0"},
           {"Origin", "vendor"},
           {"Forwarded", "no"},
           {"License", "MIT"},
           {"Last-Update", "2026-11-29"}},
          std::move(files)};
}

/// The mutant's section: what it says of the file, its script over the fixed file.
Edit over(const std::string& fix, FileEdit section, const std::string& without = "") {
  Edit edit = edit_of("mutant-half.edit", {std::move(section)});
  edit.header.insert(edit.header.begin() + 4, {"Over", fix});
  if (!without.empty()) edit.header.insert(edit.header.begin() + 5, {"Without", without});
  return edit;
}

std::string refusal(const Edit& mutant, const std::vector<Edit>& fix) {
  try {
    expand_edit(mutant, fix);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const std::string kBase = numbered(1, 9);
/// Two hunks: 1 appends after line 8, 2 changes lines 2 and 3.
const std::string kFixed = "    line 1\n    ours\n" + numbered(4, 8) + "    more\n    line 9\n";
Edit fix() { return edit_of("0001-a.edit", {make_file_edit("toy/a.py", kBase, kFixed)}); }

FileEdit section(const std::string& fixed, const std::string& wanted) {
  FileEdit file = make_file_edit("toy/a.py", fixed, wanted);
  file.blob = git_blob_id(kBase);
  return file;
}

TEST(ExpandEdit, IsTheEditOfTheReleaseThatMakesTheSameFile) {
  const std::string wanted = "    line 1\n    theirs\n" + numbered(4, 8) + "    more\n    line 9\n";
  const Edit mutant = over("0001-a.edit", section(kFixed, wanted));
  EXPECT_EQ(expand_edit(mutant, {fix()}),
            edit_of("mutant-half.edit", {make_file_edit("toy/a.py", kBase, wanted)}));
  EXPECT_EQ(expand_edit(fix(), {}), fix());
}

TEST(ExpandEdit, LeavesHunksOut) {
  const std::string one = numbered(1, 8) + "    more\n    line 9\n";
  EXPECT_EQ(expand_edit(over("0001-a.edit", section(one, one), "2"), {fix()}),
            edit_of("mutant-half.edit", {make_file_edit("toy/a.py", kBase, one)}));
  const std::string other = "ours\n" + kBase;
  EXPECT_EQ(expand_edit(over("0001-a.edit", section(kBase, other), "1-2"), {fix()}),
            edit_of("mutant-half.edit", {make_file_edit("toy/a.py", kBase, other)}));
}

TEST(ExpandEdit, AFileWithoutASectionIsAsTheFixOrTheReleaseHasIt) {
  Edit both = fix();
  both.files.push_back(make_file_edit("toy/b.py", std::nullopt, "new\n"));
  Edit mutant = over("0001-a.edit", section(kFixed, "one\n" + kFixed));
  const Edit expanded = expand_edit(mutant, {both});
  ASSERT_EQ(expanded.files.size(), 2u);
  EXPECT_EQ(expanded.files[1], both.files[1]);
  mutant.set_field("Without", "3");
  EXPECT_EQ(expand_edit(mutant, {both}).files.size(), 1u);
  mutant.set_field("Without", "2");
  mutant.files[0].path = "toy/c.py";
  EXPECT_EQ(refusal(mutant, {both}),
            "mutant-half.edit: toy/a.py: hunks are left out and no section gives its Result");
}

TEST(ExpandEdit, SaysInOneLineWhatIsWrong) {
  const FileEdit same = section(kFixed, kFixed);
  const auto with_script = [&](EdCommand command) {
    FileEdit file = same;
    file.commands = {std::move(command)};
    return over("0001-a.edit", file);
  };
  EXPECT_EQ(refusal(over("0001-a.edit", same, "2 4-7"), {fix()}),
            "mutant-half.edit: Without: 7: the fix has 2 hunks");
  for (const char* without : {"0", "x", "2 ", "3-1", "1-", "-1", "99999999999"})
    EXPECT_NE(refusal(over("0001-a.edit", same, without), {fix()}).find("such as 2 5-7"),
              std::string::npos)
        << without;
  EXPECT_EQ(refusal(over("0002-b.edit", same), {fix()}),
            "mutant-half.edit: Over: needs the edits 0002-b.edit of its folder");
  FileEdit elsewhere = same;
  elsewhere.blob = git_blob_id("other");
  EXPECT_EQ(refusal(over("0001-a.edit", elsewhere), {fix()}),
            "mutant-half.edit: toy/a.py: Blob is not the one of the fix");
  EXPECT_EQ(refusal(with_script({'<', 2, 2, 8, {}}), {fix()}),
            "mutant-half.edit: toy/a.py: command '<' on lines 2-2: a line has no 8 spaces to take "
            "off");
  EXPECT_EQ(refusal(with_script({'m', 4, 5, 8, {}}), {fix()}),
            "mutant-half.edit: toy/a.py: lines are moved; write the edit over the release");
  const Edit made = edit_of("0001-a.edit", {make_file_edit("toy/a.py", std::nullopt, "a\nb\n")});
  FileEdit beyond = made.files[0];
  beyond.commands = {{'d', 2, 3, 0, {}}};
  EXPECT_EQ(refusal(over("0001-a.edit", beyond), {made}),
            "mutant-half.edit: toy/a.py: command 'd' on lines 2-3: the file has 2 lines there");
}

/// A text of lines, some twice, with indentation; `spoil` changes it as a programmer would.
using Lines = std::vector<std::string>;

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

void spoil(Lines& lines, std::mt19937& random) {
  const size_t at = random() % (lines.size() + 1), end = std::min(at + random() % 4, lines.size());
  const auto place = [&](size_t i) { return lines.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (random() % 4) {
    case 0:
      lines.erase(place(at), place(end));
      return;
    case 1:
      lines.insert(place(at), "  ours " + std::to_string(random() % 30));
      return;
    case 2:
      for (size_t i = at; i < end; ++i) lines[i].insert(0, "    ");
      return;
    default:
      for (size_t i = at; i < end; ++i) lines[i] = "    changed " + std::to_string(random() % 30);
  }
}

Lines spoilt(Lines lines, std::mt19937& random) {
  for (unsigned i = 1 + random() % 4; i > 0; --i) spoil(lines, random);
  return lines;
}

TEST(ExpandEdit, MakesWhatTheScriptsMakeOneAfterTheOther) {
  int num_moved = 0, num_over = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    Lines base;
    for (unsigned i = random() % 30; i > 0; --i)
      base.push_back(std::string(4 * (random() % 3), ' ') + "word" + std::to_string(random() % 40));
    const Lines first = spoilt(base, random), second = spoilt(first, random),
                wanted = spoilt(second, random);
    const std::vector<Edit> series = {
        edit_of("0001-a.edit", {make_file_edit("toy/a.py", joined(base), joined(first))}),
        edit_of("0002-b.edit", {make_file_edit("toy/a.py", joined(first), joined(second))})};
    FileEdit file = make_file_edit("toy/a.py", joined(second), joined(wanted));
    file.blob = git_blob_id(joined(base));
    const Edit mutant = over("0001-a.edit 0002-b.edit", file);
    if (const std::string reason = refusal(mutant, series); !reason.empty()) {
      ASSERT_TRUE(reason.ends_with("lines are moved; write the edit over the release")) << reason;
      ++num_moved;
    } else {
      const Edit expanded = expand_edit(mutant, series);
      ASSERT_EQ(apply_file_edit(expanded.files.at(0), joined(base)), joined(wanted)) << seed;
    }
    const Edit plain =
        edit_of("mutant-half.edit", {make_file_edit("toy/a.py", joined(base), joined(wanted))});
    if (const std::optional<Edit> written = over_fix(plain, series)) {
      const bool is_of_both = written->field("Over") == "0001-a.edit 0002-b.edit";
      ASSERT_EQ(expand_edit(*written, is_of_both ? series : std::vector<Edit>{series[0]}), plain);
      ASSERT_EQ(parse_edit(format_edit(*written), plain.name), *written);
      ++num_over;
    }
  }
  // A mutation of expand_edit that is always refused, or of over_fix that never writes, is seen
  // here.
  EXPECT_LT(num_moved, 200);
  EXPECT_GT(num_over, 600);
}

class LoadEdit : public testing::Test {
 protected:
  LoadEdit() {
    std::string name = (fs::temp_directory_path() / "pb_over_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    write(fix());
  }
  ~LoadEdit() override { fs::remove_all(folder_); }

  void write(const Edit& edit) const {
    std::ofstream(folder_ / edit.name, std::ios::binary) << format_edit(edit);
  }
  std::string refusal(const std::string& name) const {
    try {
      load_edit(folder_ / name);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(LoadEdit, FindsTheFixInTheFolder) {
  Edit mutant = over("0001-a.edit", section(kFixed, "one\n" + kFixed));
  write(mutant);
  EXPECT_EQ(load_edit(folder_ / mutant.name), expand_edit(mutant, {fix()}));
  EXPECT_EQ(load_edit(folder_ / "0001-a.edit"), fix());
}

TEST_F(LoadEdit, SaysInOneLineWhatIsWrong) {
  Edit mutant = over("0002-b.edit", section(kFixed, kFixed));
  write(mutant);
  EXPECT_EQ(refusal(mutant.name), "mutant-half.edit: Over: no edit 0002-b.edit in its folder");
  mutant.set_field("Over", "0001-a.edit");
  mutant.set_field("Base", "2.0");
  write(mutant);
  EXPECT_EQ(refusal(mutant.name), "mutant-half.edit: Over: 0001-a.edit has another Base");
  mutant.set_field("Base", "1.0");
  mutant.name = "0002-b.edit";
  write(mutant);
  EXPECT_EQ(refusal(mutant.name),
            "0002-b.edit: Over: only a mutant-, wrong- or right-NAME.edit is written over a fix");
  mutant.name = "mutant-half.edit";
  mutant.set_field("Over", "0002-b.edit");
  write(mutant);
  EXPECT_EQ(refusal(mutant.name), "mutant-half.edit: Over: 0002-b.edit is a mutant itself");
}

}  // namespace
}  // namespace patchbench
