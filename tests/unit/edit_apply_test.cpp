#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/edit.h"
#include "core/edit_make.h"
#include "core/error.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// A folder that goes with the test.
class EdProgram : public testing::Test {
 protected:
  EdProgram() {
    std::string name = (fs::temp_directory_path() / "pb_edit_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~EdProgram() override { fs::remove_all(folder_); }

  void SetUp() override {
    if (std::system("command -v ed >/dev/null") != 0) {
      GTEST_SKIP()
          << "the ed program is not installed here (apt-get install ed): nothing to compare with";
    }
  }

  static void write(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  /// What the real ed makes of the base; its final line feed taken off where the edit says so.
  std::string by_ed(const FileEdit& edit, const std::string& base) {
    write(folder_ / "file", base);
    write(folder_ / "script", ed_script(edit));
    const std::string at = folder_.string();
    const int status = std::system(
        ("LC_ALL=C ed -s " + at + "/file < " + at + "/script > " + at + "/out 2>&1").c_str());
    EXPECT_EQ(status, 0) << read(folder_ / "out") << "\n" << ed_script(edit);
    std::string result = read(folder_ / "file");
    if (!edit.final_newline && !result.empty()) result.pop_back();
    return result;
  }

  fs::path folder_;
};

std::string random_line(std::mt19937& random) {
  static const std::vector<std::string> kLines = {"",
                                                  ".",
                                                  "..",
                                                  "...",
                                                  "w",
                                                  "a",
                                                  "x = 1",
                                                  "y = f(x)",
                                                  "return x",
                                                  "s/.//",
                                                  "  )",
                                                  ")",
                                                  "\t.",
                                                  ". ",
                                                  "else:",
                                                  "crlf\r",
                                                  "é = 1",
                                                  "if x:",
                                                  "1,2d",
                                                  "File: a",
                                                  "\r",
                                                  " .",
                                                  "    ",
                                                  "q",
                                                  "!true",
                                                  "& \\ /",
                                                  "\xff\xfe",
                                                  "loss = loss + 1",
                                                  "for i in z:",
                                                  "scale()",
                                                  "$d",
                                                  "Q"};
  const std::string spaces(4 * (random() % 3), ' ');
  const std::string& line = kLines[random() % kLines.size()];
  return random() % 4 == 0 ? line + std::to_string(random() % 5) : spaces + line;
}

std::vector<std::string> random_file(std::mt19937& random) {
  std::vector<std::string> lines(random() % 25);
  for (std::string& line : lines) line = random_line(random);
  return lines;
}

void spoil(std::vector<std::string>& lines, std::mt19937& random) {
  const size_t first = random() % (lines.size() + 1);
  const size_t count = std::min<size_t>(random() % 6, lines.size() - first);
  const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(first),
             end = begin + static_cast<std::ptrdiff_t>(count);
  switch (random() % 5) {
    case 0:
      lines.insert(begin, random_line(random));
      return;
    case 1:
      lines.erase(begin, end);
      return;
    case 2:
      for (auto at = begin; at != end; ++at)
        at->insert(0, std::string(2 + 2 * (random() % 2), ' '));
      return;
    case 3:
      for (auto at = begin; at != end; ++at) {
        if (at->starts_with("    ")) at->erase(0, 4);
      }
      return;
    default:
      const std::vector<std::string> block(begin, end);
      lines.erase(begin, end);
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(random() % (lines.size() + 1)),
                   block.begin(), block.end());
  }
}

std::string joined(const std::vector<std::string>& lines, bool has_final_newline) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  if (!has_final_newline && !text.empty()) text.pop_back();
  return text;
}

TEST_F(EdProgram, AgreesWithOurApplierOnRandomEdits) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> lines = random_file(random);
    const std::string base = joined(lines, random() % 4 != 0);
    for (unsigned i = random() % 5; i > 0; --i) spoil(lines, random);
    if (random() % 20 == 0) lines.clear();
    const std::string wanted = joined(lines, random() % 4 != 0);
    Edit edit{"0001-x.edit", {{"Subject", "x"}}, {make_file_edit("toy/a", base, wanted)}};
    const Edit read_back = parse_edit(format_edit(edit), edit.name);
    ASSERT_EQ(read_back, edit) << "seed " << seed;
    ASSERT_EQ(apply_file_edit(read_back.files[0], base), wanted) << "seed " << seed;
    ASSERT_EQ(by_ed(read_back.files[0], base), wanted) << "seed " << seed << "\n"
                                                       << ed_script(edit.files[0]);
  }
}

TEST_F(EdProgram, AgreesAtTheEdges) {
  const std::vector<std::string> files = {
      "",       "\n",     "a",      "a\n",          ".\n",          ".",        "..\n.\n...\n",
      "a\r\nb", "\n\n\n", "w\nq\n", "    a\n  b\n", "a\nb\nc\nd\n", ".\n.\n.\n"};
  for (const std::string& base : files) {
    for (const std::string& wanted : files) {
      const FileEdit edit = make_file_edit("toy/a", base, wanted);
      EXPECT_EQ(apply_file_edit(edit, base), wanted);
      EXPECT_EQ(by_ed(edit, base), wanted) << ed_script(edit);
    }
  }
}

size_t num_text_lines(const FileEdit& edit) {
  size_t count = 0;
  for (const EdCommand& command : edit.commands) count += command.lines.size();
  return count;
}

TEST(MakeFileEdit, ReindentedLinesAreCommandsNotText) {
  const std::string base = "def f(x):\n    a = g(x)\n\n    if a:\n        b = 1\n    return b\n";
  const std::string wanted =
      "def f(x):\n    if ours(x):\n        a = g(x)\n\n        if a:\n            b = 1\n    "
      "return b\n";
  const FileEdit edit = make_file_edit("toy/a.py", base, wanted);
  EXPECT_EQ(ed_script(edit), "4,5s/^/    /\n2s/^/    /\n1a\n    if ours(x):\n.\nw\n");
  const FileEdit back = make_file_edit("toy/a.py", wanted, base);
  EXPECT_EQ(ed_script(back), "5,6s/^    //\n3s/^    //\n2d\nw\n");
}

TEST(MakeFileEdit, AMovedBlockIsOneMove) {
  const std::string base = "a1\na2\na3\nb1\nb2\nc1\nc2\nc3\n";
  EXPECT_EQ(ed_script(make_file_edit("toy/a", base, "b1\nb2\na1\na2\na3\nc1\nc2\nc3\n")),
            "4,5m0\nw\n");
  EXPECT_EQ(ed_script(make_file_edit("toy/a", base, "a1\na2\na3\nc1\nc2\nc3\nb1\nb2\n")),
            "4,5m8\nw\n");
}

TEST(MakeFileEdit, ABlockMovedAndReindentedHoldsNoUpstreamLine) {
  const std::string base =
      "first()\nsecond(\n    x,\n)\n\nkeep1()\nkeep2()\nkeep3()\nkeep4()\nkeep5()\n";
  const std::string wanted =
      "keep1()\nkeep2()\nkeep3()\nkeep4()\nkeep5()\nif ours:\n    first()\n    second(\n        "
      "x,\n    )\n";
  const FileEdit edit = make_file_edit("toy/a.py", base, wanted);
  EXPECT_EQ(num_text_lines(edit), 1u) << ed_script(edit);
  EXPECT_EQ(apply_file_edit(edit, base), wanted);
}

TEST(MakeFileEdit, NewDeletedAndUnchangedFiles) {
  const FileEdit added = make_file_edit("toy/a", std::nullopt, "x\n");
  EXPECT_EQ(added.blob, "");
  EXPECT_EQ(ed_script(added), "0a\nx\n.\nw\n");
  const FileEdit deleted = make_file_edit("toy/a", "x\n", std::nullopt);
  EXPECT_EQ(deleted.result, "");
  EXPECT_EQ(ed_script(deleted), "w\n");
  EXPECT_EQ(apply_file_edit(deleted, "x\n"), "");
  const FileEdit emptied = make_file_edit("toy/a", "x\n", "");
  EXPECT_EQ(emptied.result, git_blob_id(""));
  EXPECT_TRUE(make_file_edit("toy/a", "x\n", "x\n").commands.empty());
  EXPECT_THROW(make_file_edit("toy/a", std::nullopt, std::nullopt), Error);
}

TEST(MakeFileEdit, RefusesBinaryFiles) {
  EXPECT_THROW(make_file_edit("toy/a", "x\n", std::string_view("a\0b", 3)), Error);
  EXPECT_THROW(make_file_edit("toy/a", std::string_view("a\0b", 3), "x\n"), Error);
}

TEST(MakeFileEdit, RefusesTwoFilesThatAreNotVersionsOfEachOther) {
  std::string base, wanted;
  for (int i = 0; i < 9000; ++i) {
    base += "b" + std::to_string(i) + "\n";
    wanted += "w" + std::to_string(i) + "\n";
  }
  EXPECT_THROW(make_file_edit("toy/a", base, wanted), Error);
}

TEST(CopiedRuns, NamesTextThatStandsInTheBase) {
  const std::string base = "a = 1\nb = 2\nc = 3\nd = 4\n";
  const FileEdit copied =
      make_file_edit("toy/a", base, base + "ours()\n  b = 2\n  c = 3\n  d = 4\n");
  EXPECT_EQ(copied_runs(copied, base),
            std::vector<std::string>{"toy/a: 3 lines as at base line 2"});
  EXPECT_TRUE(copied_runs(make_file_edit("toy/a", base, base + "ours()\nb = 2\n"), base).empty());
}

}  // namespace
}  // namespace patchbench
