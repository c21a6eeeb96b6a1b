#include "core/package_list.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench {
namespace {

PackageList list_of(const std::string& text) {
  return listed_packages(text, "in", [](const std::string& path) { return "b==2 # " + path; });
}

std::string error_of(const std::string& text) {
  try {
    list_of(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

/// The only entry of a package.
Listed only(const std::string& text, const std::string& name) {
  const PackageList list = list_of(text);
  const auto at = list.packages.find(name);
  EXPECT_NE(at, list.packages.end()) << text;
  return at == list.packages.end() ? Listed{} : at->second.at(0);
}

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

TEST(PackageList, NamesAreThoseOfTheIndex) {
  EXPECT_EQ(normalised("Liger__Kernel.X"), "liger-kernel-x");
}

TEST(PackageList, ASourceThatIsNoIndexIsSaid) {
  const std::string head = "[[package]]\nname = \"a\"\nversion = \"1\"\n", commit = kCommit;
  EXPECT_EQ(only(head + "source = { registry = \"https://x/simple\" }\n", "a").source, "");
  const Listed uv = only(head + "source = { git = \"https://x/y?rev=v1#" + commit + "\" }\n", "a");
  EXPECT_EQ(uv.source + " " + uv.commit, "git " + commit);
  for (const char* key : {"editable", "directory", "virtual", "path"})
    EXPECT_EQ(only(head + "source = { " + key + " = \".\" }\n", "a").source, "folder") << key;
  EXPECT_EQ(only(head + "source = { url = \"https://x/a.whl\" }\n", "a").source, "url");
  const Listed poetry = only(head +
                                 "[package.source]\ntype = \"git\"\nurl = \"u\"\n"
                                 "resolved_reference = \"" +
                                 commit + "\"\n",
                             "a");
  EXPECT_EQ(poetry.source + " " + poetry.commit, "git " + commit);
  EXPECT_EQ(only(head + "[package.source]\ntype = \"legacy\"\nurl = \"u\"\n", "a").source, "");
  EXPECT_EQ(only(head + "git = \"u\"\nrevision = \"" + commit + "\"\n", "a").commit, commit);
  EXPECT_EQ(only("[[packages]]\nname = \"a\"\narchive = { url = \"u\" }\n", "a").source, "url");
}

TEST(PackageList, ALineIsThatOfTheVersion) {
  EXPECT_EQ(only("# x\n[[package]]\nname = \"a\"\nversion = \"1\"\n", "a").line, 4);
  EXPECT_EQ(only("\n\na==1 \\\n  --hash=x\n", "a").line, 3);
  EXPECT_EQ(only("{\"bomFormat\": \"CycloneDX\", \"components\": [\n{\"type\": \"library\",\n"
                 "\"name\": \"a\", \"purl\": \"pkg:pypi/a@1\"}]}",
                 "a")
                .line,
            2);
}

TEST(PackageList, RequirementsNameWhatTheyCan) {
  EXPECT_EQ(only("A[x,y] == 1.0 ; python_version < '3'\n", "a").version, "1.0");
  EXPECT_EQ(only("a===1.0\n", "a").version, "1.0");
  EXPECT_EQ(only("a==1.*\n", "a").version, "");
  EXPECT_EQ(only("-r sub/more.txt\n", "b").version, "2");
  EXPECT_EQ(only("a @ git+https://x/y@" + std::string(kCommit) + "\n", "a").commit, kCommit);
  EXPECT_TRUE(list_of("a==1\nb==2\n").lists_all);
  const PackageList open = list_of("a==1\nb>=2\n");
  EXPECT_FALSE(open.lists_all);
  EXPECT_EQ(open.unread.size(), 1U);
  EXPECT_EQ(list_of("./wheels/a.whl\na==1\n").unread, std::vector<std::string>{"./wheels/a.whl"});
  EXPECT_EQ(list_of("a==1\na==2\na\n").packages.at("a").size(), 2U);
}

TEST(PackageList, APackageUrlMayNameAnotherBuild) {
  std::string name;
  Listed one;
  EXPECT_TRUE(read_purl("pkg:pypi/Liger%5FKernel@1.0%2Bcu13", name, one));
  EXPECT_EQ(name + " " + one.version + " " + one.source, "Liger_Kernel 1.0+cu13 ");
  EXPECT_FALSE(read_purl("pkg:deb/debian/python3-numpy@1", name, one));
  EXPECT_TRUE(read_purl("pkg:conda/a@1?build=0", name, one));
  EXPECT_EQ(one.source, "conda");
}

TEST(PackageList, ALetterThatIsNoAsciiIsForStringsAndComments) {
  const std::string right = "# \u00e9\n[[package]]\nname = \"a\"\nversion = \"1\"\n";
  EXPECT_TRUE(
      list_of(right + "x = \"\u00e9\"\ny = \"\"\"\n\u00e9\"\"\"\"\n").packages.contains("a"));
  EXPECT_NE(error_of(right + "\u00e9 = 1\n").find("in:5: is not TOML"), std::string::npos);
  EXPECT_NE(error_of(right + "x = \"\\\"\" \u00e9\n").find("in:5: is not TOML"), std::string::npos);
}

TEST(PackageList, ARefusalSaysWhatAndWhere) {
  EXPECT_NE(error_of("[[package]]\nname = \n").find("in:2: is not TOML"), std::string::npos);
  EXPECT_NE(error_of("a b c\n").find("in:1: is no requirement: a b c"), std::string::npos);
  EXPECT_NE(error_of("a[b\n").find("in:1: is no requirement"), std::string::npos);
  EXPECT_NE(error_of(std::string("a\0b", 3)).find("zero bytes"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 1}").find("JSON of another kind"), std::string::npos);
  EXPECT_NE(error_of("").find("names no package"), std::string::npos);
}

}  // namespace
}  // namespace patchbench
