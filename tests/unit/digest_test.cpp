#include "core/digest.h"

#include <gtest/gtest.h>

#include <fstream>

namespace patchbench {
namespace {

// FIPS 180-4's own messages.
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, IsTheSameInPieces) {
  const std::string text =
      "a text with a \0 byte and more than one block of sixty-four bytes in all";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 digest;
    digest.update(std::string_view(text).substr(0, cut));
    digest.update(std::string_view(text).substr(cut));
    EXPECT_EQ(digest.hex(), sha256_hex(text)) << cut;
  }
}

TEST(Sha256, OfAFileIsThatOfItsBytes) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "digest_test";
  const std::string bytes(3'000'001, 'x');
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_EQ(file_sha256(file), sha256_hex(bytes));
  std::filesystem::remove(file);
  EXPECT_EQ(file_sha256(file), "");
}

TEST(GitBlobId, IsWhatGitHashObjectSays) {
  EXPECT_EQ(git_blob_id(""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(git_blob_id("hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_NE(git_blob_id("hello"), git_blob_id("hello\n"));
}

TEST(IsHex, WantsLengthAndLowerCase) {
  EXPECT_TRUE(is_hex("0af9", 4));
  EXPECT_FALSE(is_hex("0af9", 5));
  EXPECT_FALSE(is_hex("0AF9", 4));
  EXPECT_FALSE(is_hex("0ag9", 4));
  EXPECT_TRUE(is_hex("", 0));
}

}  // namespace
}  // namespace patchbench
