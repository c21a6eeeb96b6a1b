
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "status/listing.h"

namespace patchbench {
namespace {

PackageList list_of(const std::string& text) {
  return packages_in(text, "in", [](const std::string& path) {
    return path == "sub/a.txt" ? std::string("a==1.0") : "b==2 # " + path;
  });
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
  for (const char* line :
       {"A[x,y] == 1.0 ; python_version < '3'", "a===1.0", "a (==1.0)", "a==1.0,!=1.1",
        "a>=0.5 , ==1.0", "\ta==1.0\t# x", "a==1.0 --hash sha256:0 \\\n --hash=sha256:1",
        "a==1.0;(os_name=='x'or 'y' not in extra)", "-c sub/a.txt", "a==1.\\\n0"})
    EXPECT_EQ(only(line, "a").version, "1.0") << line;
  EXPECT_EQ(only("a==1.*\n", "a").version, "");
  EXPECT_EQ(only("a==1,==2\n", "a").version, "");
  for (const char* option : {"-r sub/more.txt", "-rsub/more.txt", "--requirement='sub/more.txt'",
                             "--pre -r sub/more.txt"})
    EXPECT_EQ(only(option, "b").version, "2") << option;
  EXPECT_EQ(only("a @ git+https://x/y@" + std::string(kCommit) + "\n", "a").commit, kCommit);
  EXPECT_EQ(only("a@https://x/A-1.0-py3-none-any.whl", "a").version, "1.0");
  EXPECT_EQ(only("a@https://x/b-1.0-py3-none-any.whl", "a").source, "url");
  for (const char* place : {"./a_b-1.0-py3-none-any.whl[x]", "https://x/a-b-1.0.tar.gz#sha256=0",
                            "a_b-1.0-py3-none-any.whl ; extra == 'x'"}) {
    const Listed one = only(place, "a-b");
    EXPECT_EQ(one.version, "1.0") << place;
    EXPECT_NE(one.source, "") << place;
  }
  EXPECT_EQ(only("-e git+https://x#egg=a[z]&subdirectory=s", "a").source, "git");
  const PackageList open = list_of("a==1\nb>=2\n");
  EXPECT_FALSE(open.lists_all || list_of("a==1\nb==2\n").lists_all);
  EXPECT_EQ(open.num_unpinned, 1U);
  EXPECT_EQ(list_of("./wheels/a.whl\na==1\n").unread, std::vector<std::string>{"./wheels/a.whl"});
  EXPECT_EQ(list_of("a==1\na==2\na\n").packages.at("a").size(), 2U);
}

TEST(PackageList, APinHoldsForTheLinesThatItMeets) {
  EXPECT_EQ(list_of("a>=1\na\na==2\n").num_unpinned, 0U);
  for (const char* open : {"a\na==2;os_name=='x'", "a<2\na==2", "a~=1.0\na==2", "-e a\na==2"})
    EXPECT_EQ(list_of(open).unread.size() + list_of(open).num_unpinned, 1U) << open;
}

TEST(PackageList, ALineThatIsNotUnderstoodIsUnread) {
  for (const char* line : {"b==1 c==2",
                           "b==1 c",
                           "b==1; c==2",
                           "- b==1",
                           "b==${X}",
                           "${X}",
                           "-r ${X}",
                           "--unknown",
                           "b==1 --pre",
                           "b==\u00a01",
                           "b==1#c",
                           "b==1,",
                           "b (==1",
                           "b[x==1",
                           "b==1 -r more.txt",
                           "-e 'x",
                           "-r more.txt c==1",
                           "b=1",
                           "b==1 ; os_name",
                           "b==1 ; (os_name=='x'",
                           "b 1.0 pypi_0 pypi",
                           "b @ https://x y"}) {
    const PackageList list = list_of(std::string("a==1\n") + line + "\n");
    EXPECT_EQ(list.unread.size(), 1U) << line;
    EXPECT_FALSE(list.lists_all);
  }
  EXPECT_EQ(list_of("a==1\nb==1 c==2\n").unread, std::vector<std::string>{"in:2: b==1 c==2"});
  EXPECT_FALSE(list_of("a==1\n# caf\xe9\n").unread.empty()) << "in Latin-1 a byte may end a line";
}

TEST(PackageList, LinesEndWherePipEndsThem) {
  for (const char* end : {"\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\xc2\x85",
                          "\xe2\x80\xa8", "\xe2\x80\xa9"})
    EXPECT_EQ(list_of(std::string("# x") + end + "a==1" + end + "b==2").packages.size(), 2U)
        << Json(end);
  EXPECT_EQ(only(std::string("\xff\xfe"
                             "a\0=\0=\0001\0",
                             10),
                 "a")
                .version,
            "1");
  EXPECT_EQ(only(std::string("\xfe\xff"
                             "\0a\0=\0=\0001",
                             10),
                 "a")
                .version,
            "1");
  EXPECT_NE(error_of("# -*- coding: utf-7 -*-\na==1\n").find("encoding"), std::string::npos);
  EXPECT_EQ(only("# a coding style: latin-1\n# coding=latin_1\na==1\n", "a").version, "1");
}

TEST(PackageList, AContradictionIsEachOfItsClaims) {
  const auto versions = [](const std::string& text) {
    const PackageList list = list_of(text);
    std::set<std::string> found;
    for (const Listed& one : list.packages.at("a")) found.insert(one.version + one.source);
    return found;
  };
  const std::set<std::string> both = {"1", "2"};
  const std::string head = "[[package]]\nname = \"A\"\nversion = \"1\"\n",
                    wheel = "A-2-py3-none-any.whl";
  EXPECT_EQ(versions(head + "wheels = [{ url = \"https://x/" + wheel + "#y\" }]\n"), both);
  EXPECT_EQ(
      versions(head + "files = [{ file = \"" + wheel + "\" }, { file = \"a-1.0.tar.gz\" }]\n"),
      both);
  EXPECT_EQ(versions("[[package]]\nname = \"b\"\nversion = \"1\"\nsdist = { url = \"a-2.zip\" }\n" +
                     head),
            both);
  EXPECT_EQ(versions(head + "[[package]]\nname = \"a\"\n"), (std::set<std::string>{"1", ""}));
  const auto bill = [](const std::string& component) {
    return "{\"bomFormat\": \"CycloneDX\", \"components\": [{" + component + "}]}";
  };
  EXPECT_EQ(versions(bill(R"("name": "a", "version": "1", "purl": "pkg:pypi/a@2")")), both);
  EXPECT_EQ(versions(bill(R"("name": "b", "bom-ref": "pkg:pypi/a@1", "purl": "PKG://PyPI/%41@2")")),
            both);
  EXPECT_EQ(
      versions(bill(R"("name": "a", "version": "1", "purl": "pkg:pypi/a@1.0", "bom-ref": "x")")),
      std::set<std::string>{"1.0"});
  EXPECT_EQ(
      versions(
          R"({"spdxVersion": "2", "packages": [{"name": "a", "versionInfo": "1", "externalRefs": [)"
          R"({"referenceLocator": "pkg:pypi/a@1"}, {"referenceLocator": "pkg:pypi/a@2"}]}]})"),
      both);
}

TEST(PackageList, ABillSaysWhatItDoesNotKnow) {
  const auto list = [](const std::string& row, const std::string& rest = "") {
    return list_of("{\"bomFormat\": \"CycloneDX\", \"components\": [" + row + "]" + rest + "}");
  };
  const std::string other = R"({"name": "x", "purl": "pkg:pypi/x@1"})";
  for (const char* purl : {"pkg:generic/a@1", "pkg:github/o/a@1", "pkg:huggingface/o/a@1",
                           "pkg:conda/a@1", "pkg:new/a@1"})
    EXPECT_NE(list(std::string(R"({"name": "b", "purl": ")") + purl + "\"}")
                  .packages.at("a")
                  .at(0)
                  .source,
              "")
        << purl;
  EXPECT_FALSE(list(other + R"(, {"name": "a", "purl": "pkg:npm/a@1"})").packages.contains("a"));
  EXPECT_EQ(list(R"({"name": "A B", "version": "1"})").packages.at("a-b").at(0).source, "url");
  EXPECT_EQ(list(R"({"name": "b", "purl": "pkg:pypi/a%40%0a@1"})").unread.size(), 1U);
  EXPECT_EQ(list(other, R"(, "dependencies": [{"ref": "pkg:pypi/a@1", "dependsOn": []}])")
                .packages.at("a")
                .at(0)
                .version,
            "1");
  EXPECT_TRUE(list(other, R"(, "metadata": {"component": {"name": "a", "purl": "pkg:pypi/a@1"}})")
                  .packages.contains("a"));
  EXPECT_FALSE(list(other).lists_all) << "it lists what its maker recognised";
  EXPECT_NE(error_of(R"({"bomFormat": "CycloneDX", "components": [], "_meta": {}})")
                .find("several kinds"),
            std::string::npos);
  EXPECT_NE(error_of("[[package]]\nname = \"a\"\nsource = \"registry+https://crates\"\n")
                .find("source must be a table"),
            std::string::npos);
}

TEST(PackageList, APackageUrlMayNameAnotherBuild) {
  const auto one = parse_package_url("pkg:pypi/Liger%5FKernel@1.0%2Bcu13");
  EXPECT_EQ(one->name + " " + one->version + " " + one->source, "Liger_Kernel 1.0+cu13 ");
  EXPECT_EQ(parse_package_url("pkg:conda/a@1?build=0")->source, "conda");
  EXPECT_EQ(parse_package_url("pkg:pypi/a@1#x@2")->version, "1");
  EXPECT_FALSE(parse_package_url("https://pkg:pypi/a").has_value());
}

TEST(PackageList, WhatComesFromAFileIsPrintable) {
  const PackageList list = list_of(
      R"({"bomFormat": "CycloneDX", "components": [{"name": "a", "purl": "pkg:pypi/a@1%1b%5b2J%0ax%c2%9b"}]})");
  EXPECT_EQ(list.packages.at("a").at(0).version, "1?[2J?x?");
  EXPECT_EQ(printable("a\x1b\xc2\x9b\u202e\u2028\xff\u00e9"), "a?????\u00e9");
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
  EXPECT_NE(error_of("a b c\nd\ne f\n").find("in:1: is no requirement: a b c"), std::string::npos);
  EXPECT_NE(error_of("a[b\n").find("in:1: is no requirement"), std::string::npos);
  EXPECT_NE(error_of(std::string("a\0b", 3)).find("zero bytes"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 1}").find("JSON of another kind"), std::string::npos);
  EXPECT_NE(error_of("").find("names no package"), std::string::npos);
}

}  // namespace
}  // namespace patchbench
