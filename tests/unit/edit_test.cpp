#include "core/edit.h"

#include <gtest/gtest.h>

#include <string>

#include "core/digest.h"
#include "core/edit_make.h"
#include "core/error.h"

namespace patchbench {
namespace {

const char* const kHeader =
    "Subject: a short line\n"
    "Description: first\n"
    " second\n"
    " .\n"
    "  indented\n"
    "Upstream: toy\n";

std::string section(const std::string& script) {
  return "\nFile: toy/a.py\nBlob: " + std::string(40, 'a') + "\nResult: " + std::string(40, 'b') +
         "\n\n" + script;
}

std::string with(const std::string& script) { return kHeader + section(script); }

/// The message of the refusal, "" if the text was taken.
std::string refusal(const std::string& text) {
  try {
    parse_edit(text, "0001-x.edit");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "";
}

TEST(ParseEdit, ReadsHeaderSectionsAndCommands) {
  const Edit edit = parse_edit(
      with("9m2\n7,8s/^/    /\n5s/^  //\n4d\n2,3c\nnew\n..\n.\ns/.//\na\n..\n.\n0a\ntop\n.\nw\n"),
      "0001-x.edit");
  EXPECT_EQ(edit.name, "0001-x.edit");
  EXPECT_EQ(edit.field("Description"), "first\nsecond\n\n indented");
  EXPECT_EQ(edit.field("Bug"), "");
  ASSERT_EQ(edit.files.size(), 1u);
  const auto& commands = edit.files[0].commands;
  ASSERT_EQ(commands.size(), 6u);
  EXPECT_EQ(commands[0], (EdCommand{'m', 9, 9, 2, {}}));
  EXPECT_EQ(commands[1], (EdCommand{'>', 7, 8, 4, {}}));
  EXPECT_EQ(commands[2], (EdCommand{'<', 5, 5, 2, {}}));
  EXPECT_EQ(commands[3], (EdCommand{'d', 4, 4, 0, {}}));
  EXPECT_EQ(commands[4], (EdCommand{'c', 2, 3, 0, {"new", ".", ".."}}));
  EXPECT_EQ(commands[5], (EdCommand{'a', 0, 0, 0, {"top"}}));
}

TEST(ParseEdit, TextIsByteStable) {
  const std::string text = with("2,3c\n..\n.\ns/.//\n1a\n..\n.\ns/.//\na\nx\r\n.\nw\n") +
                           "\nFile: toy/gone.py\nBlob: " + std::string(40, 'c') +
                           "\nResult: deleted\n\nw\n" +
                           "\nFile: toy/added.py\nBlob: new\nResult: " + std::string(40, 'd') +
                           "\nMode: 100755\nFinal-Newline: no\n\n0a\nx\n.\nw\n";
  const Edit edit = parse_edit(text, "0001-x.edit");
  EXPECT_EQ(format_edit(edit), text);
  EXPECT_EQ(parse_edit(format_edit(edit), "0001-x.edit"), edit);
  EXPECT_EQ(edit.files[1].result, "");
  EXPECT_EQ(edit.files[2].blob, "");
  EXPECT_FALSE(edit.files[2].final_newline);
}

class RefusedCommand : public testing::TestWithParam<const char*> {};

TEST_P(RefusedCommand, IsNamedByFileAndLine) {
  const std::string message = refusal(with(std::string(GetParam()) + "\nw\n"));
  EXPECT_TRUE(message.starts_with("0001-x.edit:")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Edit, RefusedCommand,
                         testing::Values("!true", "r !true", "1r /etc/passwd", "e x", "w /tmp/x",
                                         "1,2!sort", "g/a/d", "1s/a/b/", "1t2", "1,$d", ".d", "$d",
                                         "/a/d", "'ad", "d", "1;2d", "5,5d", "5,4d", "05d", "0d",
                                         "0c", "-1d", "+1d", "1,2a\nx\n.", "1i\nx\n.", "1a\n.",
                                         "1c\n.", "3m2", "3,5m4", "3,5m5", "3m", "3m2 ", "1s/^//",
                                         "1s/^ / /", "1s/^/\t/", "1s/^/ /g", "s/.//", "1s/.//",
                                         "1a\nx\n.\ns/.//", "1a\n..\n.\ns/.//\na\n.", "H", "q",
                                         "1,2j", "99999999999d", "1a\nx", "", " 1d", "1d ", "1 d",
                                         "u", "P", "f name", "1k a"));

TEST(ParseEdit, RefusesAWrongCommandOnItsOwnLine) {
  EXPECT_TRUE(refusal(with("3d\n1!true\nw\n")).starts_with("0001-x.edit:13: \"1!true\""));
}

TEST(ParseEdit, RefusesMalformedSections) {
  const std::string id(40, 'a');
  const auto sections = [&](const std::string& body) { return refusal(kHeader + ("\n" + body)); };
  for (const char* path :
       {"/etc/passwd", "../x", "a/../b", "a//b", "a/", ".git/config", "a/.git/b", "a\\b", "./a"}) {
    EXPECT_NE(
        sections("File: " + std::string(path) + "\nBlob: " + id + "\nResult: " + id + "\n\nw\n"),
        "")
        << path;
  }
  EXPECT_NE(sections("File: a\nBlob: " + id + "\n\nw\n"), "");
  EXPECT_NE(sections("File: a\nBlob: xyz\nResult: " + id + "\n\nw\n"), "");
  EXPECT_NE(sections("File: a\nBlob: new\nResult: deleted\n\nw\n"), "");
  EXPECT_NE(sections("File: a\nBlob: " + id + "\nResult: deleted\n\n1d\nw\n"), "");
  EXPECT_NE(sections("File: a\nBlob: " + id + "\nResult: " + id + "\nMode: 120000\n\nw\n"), "");
  EXPECT_NE(sections("File: a\nBlob: " + id + "\nResult: " + id + "\nFinal-Newline: yes\n\nw\n"),
            "");
  EXPECT_NE(sections("File: a\nBlob: " + id + "\nResult: " + id + "\nw\n"), "");
  EXPECT_NE(sections("File: a\nBlob: " + id + "\nResult: " + id + "\n\nw"), "");
  const std::string one = "File: a\nBlob: " + id + "\nResult: " + id + "\n\nw\n";
  EXPECT_EQ(sections(one), "");
  EXPECT_NE(sections(one + "\n" + one), "") << "the same file twice";
  EXPECT_NE(sections(one + "\n"), "") << "a blank line at the end";
  EXPECT_NE(sections(one + one), "") << "no blank line between sections";
}

TEST(ParseEdit, RefusesMalformedHeaders) {
  const std::string tail = section("w\n");
  EXPECT_NE(refusal(tail), "") << "no header";
  EXPECT_NE(refusal("Upstream: toy\n" + tail), "") << "no subject";
  EXPECT_NE(refusal("Subject: a\nSubject: b\n" + tail), "") << "a field twice";
  EXPECT_NE(refusal("Subject: a\nBug: \n" + tail), "") << "a space at the end";
  EXPECT_NE(refusal("Subject:a\n" + tail), "") << "no space";
  EXPECT_NE(refusal("Subject: a\n \n" + tail), "") << "an empty further line";
  EXPECT_NE(refusal("Subject: a\n"), "") << "no section";
  EXPECT_NE(refusal(""), "");
  EXPECT_NE(refusal(std::string("Subject: a\0b\n", 13) + tail), "") << "a NUL byte";
  EXPECT_NE(refusal("Subject: a\nForwardd: no\n" + tail).find("did you mean Forwarded"),
            std::string::npos);
}

TEST(FormatEdit, RefusesAHeaderLineThatCannotBeWritten) {
  Edit edit = parse_edit(with("w\n"), "0001-x.edit");
  edit.set_field("Description", "a\n.\nb");
  EXPECT_THROW(format_edit(edit), Error);
}

TEST(MissingFields, NamesWhatAPacksEditNeeds) {
  Edit edit = parse_edit(with("w\n"), "0001-x.edit");
  EXPECT_EQ(missing_fields(edit),
            (std::vector<std::string>{"Base", "Origin", "Forwarded", "License", "Last-Update"}));
  for (const auto& key : missing_fields(edit)) edit.set_field(key, "x");
  EXPECT_TRUE(missing_fields(edit).empty());
}

TEST(ApplyFileEdit, RefusesAnotherBaseByNameAndBothBlobs) {
  const FileEdit edit = make_file_edit("toy/a.py", "one\n", "two\n");
  try {
    apply_file_edit(edit, "three\n");
    FAIL() << "another base was taken";
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("toy/a.py"), std::string::npos);
    EXPECT_NE(message.find(git_blob_id("one\n")), std::string::npos);
    EXPECT_NE(message.find(git_blob_id("three\n")), std::string::npos);
  }
}

TEST(ApplyFileEdit, RefusesAResultThatIsNotTheRecordedOne) {
  FileEdit edit = make_file_edit("toy/a.py", "one\n", "two\n");
  edit.commands[0].lines[0] = "tow";
  EXPECT_THROW(apply_file_edit(edit, "one\n"), Error);
  edit.commands.clear();
  EXPECT_THROW(apply_file_edit(edit, "one\n"), Error);
}

TEST(ApplyFileEdit, RefusesAddressesOutsideTheFile) {
  for (const EdCommand& command :
       {EdCommand{'d', 4, 4, 0, {}}, EdCommand{'a', 4, 4, 0, {"x"}}, EdCommand{'c', 3, 9, 0, {"x"}},
        EdCommand{'m', 1, 1, 4, {}}, EdCommand{'<', 1, 1, 3, {}}, EdCommand{'>', 1, 4, 3, {}}}) {
    FileEdit edit = make_file_edit("toy/a.py", "  a\nb\nc\n", "x\n");
    edit.commands = {command};
    try {
      apply_file_edit(edit, "  a\nb\nc\n");
      FAIL() << command.verb;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("command '"), std::string::npos) << e.what();
    }
  }
}

TEST(SplitLines, CountsALastLineWithoutALineFeed) {
  EXPECT_EQ(split_lines("").size(), 0u);
  EXPECT_EQ(split_lines("\n").size(), 1u);
  EXPECT_EQ(split_lines("a\nb").size(), 2u);
  EXPECT_EQ(split_lines("a\nb\n").size(), 2u);
}

}  // namespace
}  // namespace patchbench
