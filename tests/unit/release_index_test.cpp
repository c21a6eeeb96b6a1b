#include "core/release_index.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench {
namespace {

std::string digest(char digit) { return std::string(64, digit); }

/// One upstream, its locked releases as {version, date, file}; the digests are 111…, 222… and so
/// on.
struct Row {
  const char *version, *date, *file;
};

std::string pins_text(const std::vector<Row>& rows, const std::string& more = "") {
  std::string releases;
  char digit = '1';
  for (const Row& row : rows) {
    releases += std::string(releases.empty() ? "" : ",\n") + "        {\"version\": \"" +
                row.version + "\", \"date\": \"" + row.date + "\", \"file\": \"" + row.file +
                "\", \"sha256\": \"" + digest(digit++) + "\"}";
  }
  return "{\n  \"upstreams\": {\n    \"toy\": {\n"
         "      \"project\": \"toy-kit\", \"package\": \"toy\", \"license\": \"MIT\", \"url\": "
         "\"https://example.org\",\n"
         "      \"git_prefix\": \"\", \"environment\": \"torch\",\n      \"releases\": [\n" +
         releases + "\n      ]" + more + ",\n      \"commits\": []\n    }\n  }\n}\n";
}

Upstream toy(const std::string& text) { return Pins::parse(text, "pins.json").upstream("toy"); }

Json file(const std::string& name, const std::string& day, const Json& yanked = false) {
  return {{"filename", name},
          {"hashes", {{"sha256", digest('a')}}},
          {"upload-time", day + "T01:02:03Z"},
          {"yanked", yanked}};
}

Json page(std::initializer_list<Json> files, const Json& versions = Json::array()) {
  Json rows = Json::array();
  for (const Json& one : files) rows.push_back(one);
  return {{"files", rows}, {"versions", versions}};
}

/// "1.1 hole" or "1.9 newer", in the order of the proposals.
std::vector<std::string> lockable(const IndexComparison& found) {
  std::vector<std::string> out;
  for (const LockableRelease& r : found.lockable)
    out.push_back(r.version + (r.is_hole ? " hole" : " newer"));
  return out;
}

using Words = std::vector<std::string>;

const std::vector<Row> kWheels = {
    {"1.0.0", "2025-01-01", "toy_kit-1.0.0-cp38-abi3-manylinux_2_27_x86_64.whl"},
    {"1.2.0", "2025-03-01", "toy_kit-1.2.0-cp39-abi3-manylinux_2_28_x86_64.whl"}};

TEST(ReleaseKey, OrdersFinalAndPostReleases) {
  const Words ordered = {"0.5.9", "0.5.10", "1.0", "1.0.post1", "1.0.post2", "1.0.1", "2"};
  for (std::size_t i = 0; i + 1 < ordered.size(); ++i)
    EXPECT_LT(release_key(ordered[i]), release_key(ordered[i + 1])) << ordered[i];
  for (const char* same : {"v1.0", "1.0.0", "0!1.0"})
    EXPECT_EQ(release_key("1.0"), release_key(same)) << same;
  for (const char* same : {"1.0-1", "1.0post1", "1.0.rev1", "1.0_r_1"})
    EXPECT_EQ(release_key("1.0.post1"), release_key(same)) << same;
  for (const char* other : {"1.0rc1", "1.0.dev3", "1.0a1", "1.0+cu1", "", "x", "1.0.post1.dev2",
                            "99999999999", "1.", "1.0.postx"})
    EXPECT_FALSE(release_key(other)) << other;
}

struct Name {
  const char *file, *version;
  IndexFileName::Kind kind;
};

TEST(IndexFileName, IsReadInEverySpellingOfTheProject) {
  using Kind = IndexFileName::Kind;
  for (const Name& one : std::vector<Name>{
           {"toy_kit-1.0.tar.gz", "1.0", Kind::kSdist},
           {"toy-kit-1.0.post1.tar.gz", "1.0.post1", Kind::kSdist},
           {"Toy.Kit-1.0.zip", "1.0", Kind::kSdist},
           {"toy_kit-1.0-py3-none-any.whl", "1.0", Kind::kPureWheel},
           {"toy_kit-1.0-py2.py3-none-any.whl", "1.0", Kind::kPureWheel},
           {"toy_kit-1.0-1-py3-none-any.whl", "1.0", Kind::kPureWheel},
           {"toy_kit-1.0-cp311-cp311-linux_x86_64.whl", "1.0", Kind::kPlatformWheel}}) {
    const auto name = parse_index_file_name(one.file, "toy-kit");
    ASSERT_TRUE(name) << one.file;
    EXPECT_EQ(name->version, one.version) << one.file;
    EXPECT_EQ(name->kind, one.kind) << one.file;
  }
  for (const char* other : {"toy-1.0.tar.gz", "toy_kit_more-1.0.tar.gz", "toy_kit-1.0.exe",
                            "toy_kit-1.0-any.whl", "toy_kit-1.0-py2-none-any.whl", ""})
    EXPECT_FALSE(parse_index_file_name(other, "toy-kit")) << other;
}

TEST(CompareWithIndex, FindsHolesAndWhatIsNewer) {
  const Upstream upstream = toy(pins_text(
      {{"1.0", "2025-01-01", "toy_kit-1.0.tar.gz"}, {"1.2", "2025-03-01", "toy_kit-1.2.tar.gz"}}));
  const IndexComparison found = compare_with_index(
      upstream,
      page({file("toy_kit-0.9.tar.gz", "2024-12-01"), file("toy_kit-1.0.tar.gz", "2025-01-01"),
            file("toy-kit-1.1.post1.tar.gz", "2025-02-02"),
            file("toy_kit-1.1.tar.gz", "2025-02-01"), file("toy_kit-1.1.1rc1.tar.gz", "2025-02-03"),
            file("toy_kit-1.2.0.tar.gz", "2025-03-01"), file("toy_kit-1.1.9.tar.gz", "2025-04-01"),
            file("toy_kit-1.10.tar.gz", "2025-05-01")}));
  EXPECT_EQ(lockable(found), (Words{"1.1 hole", "1.1.post1 hole", "1.1.9 newer", "1.10 newer"}));
  EXPECT_TRUE(found.unlockable.empty());
  EXPECT_EQ(found.from, "1.0");
  EXPECT_FALSE(found.is_complete());
}

TEST(CompareWithIndex, SeesAHoleWhoseTagsAreNotThoseOfTheNewestLock) {
  const IndexComparison found = compare_with_index(
      toy(pins_text(kWheels)),
      page({file("toy_kit-1.1.0-cp38-abi3-manylinux_2_34_aarch64.whl", "2025-02-01"),
            file("toy_kit-1.1.0-cp38-abi3-musllinux_1_2_x86_64.whl", "2025-02-01"),
            file("toy_kit-1.1.0-cp311-cp311-manylinux_2_27_x86_64.whl", "2025-02-01"),
            file("toy_kit-1.1.0-cp312-cp312-manylinux_2_27_x86_64.whl", "2025-02-01"),
            file("toy_kit-1.1.1-cp38-abi3-manylinux_2_27_x86_64.whl", "2025-02-02"),
            file("toy_kit-1.3.0-cp311-cp311-manylinux_2_27_x86_64.whl", "2025-04-01"),
            file("toy_kit-1.3.0-cp39-abi3-manylinux_2_27_x86_64.whl", "2025-04-01")}));
  ASSERT_EQ(lockable(found), (Words{"1.1.0 hole", "1.1.1 hole", "1.3.0 newer"}));
  EXPECT_EQ(found.lockable[0].file, "toy_kit-1.1.0-cp311-cp311-manylinux_2_27_x86_64.whl");
  EXPECT_EQ(found.lockable[2].file, "toy_kit-1.3.0-cp39-abi3-manylinux_2_27_x86_64.whl");
}

TEST(CompareWithIndex, ReportsWhatHasNoUsableFile) {
  const IndexComparison found = compare_with_index(
      toy(pins_text(kWheels)),
      page({file("toy_kit-1.1.0.tar.gz", "2025-02-02"),
            file("toy_kit-1.1.0-cp312-cp312-manylinux_2_27_x86_64.whl", "2025-02-01")},
           {"1.0.0", "1.0.1", "1.1.0", "1.1.5rc1", "1.2.0", "0.1"}));
  EXPECT_TRUE(found.lockable.empty());
  ASSERT_EQ(found.unlockable.size(), 2u);
  EXPECT_EQ(found.unlockable[0].version, "1.0.1");
  EXPECT_EQ(found.unlockable[0].reason, "no usable file: no sdist and no wheel");
  EXPECT_EQ(found.unlockable[1].version, "1.1.0");
  EXPECT_EQ(found.unlockable[1].date, "2025-02-01");
  EXPECT_EQ(found.unlockable[1].reason,
            "no usable file: it has a wheel cp312-cp312-manylinux_2_27_x86_64, an sdist");
  EXPECT_FALSE(found.is_complete());
}

TEST(CompareWithIndex, TellsYankedReleasesApart) {
  const IndexComparison found =
      compare_with_index(toy(pins_text({{"1.0", "2025-01-01", "toy_kit-1.0.tar.gz"},
                                        {"1.2", "2025-03-01", "toy_kit-1.2.tar.gz"}})),
                         page({file("toy_kit-1.0.tar.gz", "2025-01-01", "wrong\nversion"),
                               file("toy_kit-1.1.tar.gz", "2025-02-01", true),
                               file("toy_kit-1.2.tar.gz", "2025-03-01")}));
  EXPECT_TRUE(found.lockable.empty());
  ASSERT_EQ(found.unlockable.size(), 1u);
  EXPECT_EQ(found.unlockable[0].reason, "yanked: no reason given");
  ASSERT_EQ(found.yanked.size(), 1u);
  EXPECT_EQ(found.yanked[0].version, "1.0");
  EXPECT_EQ(found.yanked[0].reason, "wrong version");
}

TEST(CompareWithIndex, IsCompleteWithWhatIsLeftOut) {
  const std::string left_out =
      ",\n\"left_out\": [{\"version\": \"1.1.0\", \"reason\": \"yanked\"}]";
  const IndexComparison found = compare_with_index(
      toy(pins_text(kWheels, left_out)), page({file("toy_kit-1.1.tar.gz", "2025-02-01", true)}));
  EXPECT_TRUE(found.is_complete());
}

TEST(CompareWithIndex, RefusesAMalformedPage) {
  const Upstream upstream = toy(pins_text(kWheels));
  Json no_day = file("toy_kit-1.1-py3-none-any.whl", "2025-02-01");
  no_day.erase("upload-time");
  Json bad_digest = file("toy_kit-1.1-cp38-abi3-manylinux1_x86_64.whl", "2025-02-01");
  bad_digest["hashes"]["sha256"] = "12";
  const auto error = [&](const Json& bad) -> std::string {
    try {
      compare_with_index(upstream, bad);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      return e.what();
    }
    return "no error";
  };
  const std::string none = "the index page of toy-kit: no \"files\"; it is not PEP 691 JSON";
  EXPECT_EQ(error(Json()), none);
  EXPECT_EQ(error({{"files", 3}}), none);
  EXPECT_EQ(error(page({Json{{"filename", 3}}})),
            "the index page of toy-kit: a file without \"filename\"");
  EXPECT_EQ(error(page({no_day})), "the index page of toy-kit: a file without \"upload-time\"");
  EXPECT_EQ(
      error(page({bad_digest})),
      "the index page of toy-kit: toy_kit-1.1-cp38-abi3-manylinux1_x86_64.whl has a malformed "
      "sha256");
}

TEST(LockLines, GoWhereDayAndVersionPutThem) {
  const std::string text = pins_text(
      {{"1.0", "2025-01-01", "toy_kit-1.0.tar.gz"}, {"1.2", "2025-03-01", "toy_kit-1.2.tar.gz"}});
  const std::string changed =
      with_lock_lines(text, toy(text),
                      {{"1.1", "2025-02-01", "toy_kit-1.1.tar.gz", digest('a'), true},
                       {"1.1.1", "2025-03-01", "toy_kit-1.1.1.tar.gz", digest('b'), true},
                       {"1.2.1", "2025-03-01", "toy_kit-1.2.1.tar.gz", digest('c'), false},
                       {"1.3", "2025-04-01", "toy_kit-1.3.tar.gz", digest('d'), false}});
  const std::string wanted = pins_text({{"1.0", "2025-01-01", "toy_kit-1.0.tar.gz"},
                                        {"1.1", "2025-02-01", "toy_kit-1.1.tar.gz"},
                                        {"1.1.1", "2025-03-01", "toy_kit-1.1.1.tar.gz"},
                                        {"1.2", "2025-03-01", "toy_kit-1.2.tar.gz"},
                                        {"1.2.1", "2025-03-01", "toy_kit-1.2.1.tar.gz"},
                                        {"1.3", "2025-04-01", "toy_kit-1.3.tar.gz"}});
  const auto without_digests = [](std::string lines) {
    for (auto at = lines.find("\"sha256\""); at != std::string::npos;
         at = lines.find("\"sha256\"", at))
      lines.erase(at, 76);
    return lines;
  };
  EXPECT_EQ(without_digests(changed), without_digests(wanted));
}

TEST(LockLines, RefuseAReleaseThatIsNotOneLine) {
  std::string text = pins_text({{"1.0", "2025-01-01", "toy_kit-1.0.tar.gz"}});
  const Upstream upstream = toy(text);
  text.insert(text.find("\"date\""), "\n");
  EXPECT_THROW(with_lock_lines(text, upstream, {{"1.1", "2025-02-01", "f", digest('a'), false}}),
               Error);
}

}  // namespace
}  // namespace patchbench
