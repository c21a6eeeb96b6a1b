#include "core/pin.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/schema.h"

namespace patchbench {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::string(PATCHBENCH_ROOT) + "/" + path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::string kDigest(64, 'a'), kOne = "1" + std::string(39, '0'),
                                    kTwo = "12" + std::string(38, '0');

std::string release(const std::string& version, const std::string& file, const std::string& date) {
  return "{\"version\": \"" + version + "\", \"date\": \"" + date + "\", \"file\": \"" + file +
         "\", \"sha256\": \"" + kDigest + "\"}";
}

std::string text_of(const std::string& releases, const std::string& more = "") {
  return "{\"upstreams\": {\"thing\": {\n\"project\": \"thing\", \"package\": \"thing\", "
         "\"license\": \"MIT\",\n"
         "\"url\": \"https://example.org/thing\", \"git_prefix\": \"src/\", \"environment\": "
         "\"torch\",\n"
         "\"releases\": [\n" +
         releases + "],\n\"commits\": [\n{\"commit\": \"" + kOne +
         "\", \"date\": \"2026-01-01\", \"note\": \"one\"},\n{\"commit\": \"" + kTwo +
         "\", \"date\": \"2026-01-01\", \"note\": \"two\"}]" + more + "}}}";
}

const std::string kReleases = release("1.0", "thing-1.0.tar.gz", "2025-01-01") + ",\n" +
                              release("1.1", "thing-1.1-py3-none-any.whl", "2025-02-01");

std::string error_of(const std::string& text) {
  try {
    Pins::parse(text, "pins.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

std::string unresolved(const Pins& pins, const std::string& version) {
  try {
    pins.resolve("thing", version);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

TEST(Pins, KnowWhereThePackageLiesInEachForm) {
  const Pins pins = Pins::parse(text_of(kReleases), "pins.json");
  EXPECT_EQ(pins.resolve("thing", "1.0").prefix, "thing-1.0/src/");
  EXPECT_EQ(pins.resolve("thing", "1.1").prefix, "");
  EXPECT_EQ(pins.resolve("thing", "git:" + kOne).prefix, "src/");
  EXPECT_EQ(pins.resolve("thing", "path:/some/clone").prefix, "src/");
}

TEST(Pins, AReleaseMayNameAnEnvironmentOfItsOwn) {
  std::string own = kReleases;
  own.insert(own.rfind('}'), ", \"environment\": \"newer\"");
  const Pins pins = Pins::parse(text_of(own), "pins.json");
  EXPECT_EQ(pins.resolve("thing", "1.0").environment, "torch");
  EXPECT_EQ(pins.resolve("thing", "1.1").environment, "newer");
}

TEST(Pins, KeepWhatIsLeftOutWithItsReason) {
  const std::string left_out = R"("left_out": [{"version": "1.0.5", "reason": "yanked"}])";
  const Pins pins = Pins::parse(text_of(kReleases, ",\n" + left_out), "pins.json");
  ASSERT_EQ(pins.upstream("thing").left_out.size(), 1u);
  EXPECT_EQ(pins.upstream("thing").left_out[0].version, "1.0.5");
  EXPECT_EQ(pins.upstream("thing").left_out[0].reason, "yanked");
  EXPECT_NE(unresolved(pins, "1.0.5").find("no release \"1.0.5\""), std::string::npos);
}

TEST(Pins, ResolveKeepsWhatIdentifiesAVersion) {
  const Pins pins = Pins::parse(text_of(kReleases), "pins.json");
  const Pin pin = pins.resolve("thing", "1.1");
  EXPECT_EQ(pin.kind, PinKind::kFile);
  EXPECT_EQ(
      canonical_json(pin.to_json()),
      "{\"date\":\"2025-02-01\",\"environment\":\"torch\",\"file\":\"thing-1.1-py3-none-any.whl\","
      "\"project\":\"thing\",\"sha256\":\"" +
          kDigest + "\",\"upstream\":\"thing\",\"version\":\"1.1\"}");
  EXPECT_EQ(pins.resolve("thing", "path:/a").kind, PinKind::kPath);
  EXPECT_EQ(pins.resolve("thing", "git:" + std::string(40, 'f')).commit, std::string(40, 'f'));
}

TEST(Pins, NamedCommitIsFoundByAUniqueStart) {
  const Pins pins = Pins::parse(text_of(kReleases), "pins.json");
  EXPECT_EQ(pins.resolve("thing", "git:1200000").commit, kTwo);
  EXPECT_EQ(pins.resolve("thing", "git:1200000").note, "two");
  EXPECT_NE(unresolved(pins, "git:120000").find("neither 40 lower-case hex digits"),
            std::string::npos);
  EXPECT_NE(unresolved(pins, "git:main").find("neither 40 lower-case hex digits"),
            std::string::npos);
}

TEST(Pins, StartOfTwoNamedCommitsIsAmbiguous) {
  std::string text = text_of(kReleases);
  const std::string other = "1" + std::string(38, '0') + "7";
  text.replace(text.find(kTwo), kTwo.size(), other);
  const Pins pins = Pins::parse(text, "pins.json");
  EXPECT_NE(unresolved(pins, "git:1000000").find("start of 2 named commits"), std::string::npos);
  EXPECT_EQ(pins.resolve("thing", "git:" + other).commit, other);
}

TEST(Pins, UnknownNamesGetAProposal) {
  const Pins pins = Pins::parse(text_of(kReleases), "pins.json");
  EXPECT_NE(unresolved(pins, "1.2").find("did you mean 1."), std::string::npos);
  EXPECT_NE(unresolved(pins, "path:").find("path: needs a folder"), std::string::npos);
  try {
    pins.upstream("thin");
    FAIL() << "an unknown upstream was found";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "no upstream \"thin\" in env/pins.json; did you mean thing?");
  }
}

struct BadPins {
  const char* name;
  std::string text;
  const char* message;
};

class PinsRefuse : public testing::TestWithParam<BadPins> {};
TEST_P(PinsRefuse, WithLineAndPointer) { EXPECT_EQ(error_of(GetParam().text), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    Files, PinsRefuse,
    testing::Values(
        BadPins{"unknown_key", text_of(kReleases, ",\n\"licence\": \"MIT\""),
                "pins.json:10: /upstreams/thing/licence: unknown key; did you mean license?"},
        BadPins{"locked_and_left_out",
                text_of(kReleases, R"(, "left_out": [{"version": "1.1", "reason": "x"}])"),
                "pins.json:9: /upstreams/thing/left_out/0/version: version 1.1 is locked or left "
                "out already"},
        BadPins{"left_out_for_no_reason",
                text_of(kReleases, R"(, "left_out": [{"version": "1.2", "reason": ""}])"),
                "pins.json:9: /upstreams/thing/left_out/0/reason: a release is left out for a "
                "reason"},
        BadPins{"no_upstreams", "{}", "pins.json:1: /: \"upstreams\" is missing"},
        BadPins{"not_an_object", "{\"upstreams\": []}",
                "pins.json:1: /upstreams: must be an object"},
        BadPins{"version_twice", text_of(kReleases + ",\n" + release("1.1", "b.whl", "2025-03-01")),
                "pins.json:7: /upstreams/thing/releases/2/version: version 1.1 stands twice"},
        BadPins{"newest_first", text_of(kReleases + ",\n" + release("0.9", "b.whl", "2024-03-01")),
                "pins.json:7: /upstreams/thing/releases/2/date: the oldest release comes first"},
        BadPins{"file_with_a_folder", text_of(release("1", "../b.whl", "2024-03-01")),
                "pins.json:5: /upstreams/thing/releases/0/file: must be the name of a wheel or an "
                "sdist"},
        BadPins{"file_of_no_kind", text_of(release("1", "b.exe", "2024-03-01")),
                "pins.json:5: /upstreams/thing/releases/0/file: must be the name of a wheel or an "
                "sdist"},
        BadPins{"no_day", text_of(release("1", "b.whl", "2024-3-01")),
                "pins.json:5: /upstreams/thing/releases/0/date: must be a day, YYYY-MM-DD"}),
    [](const testing::TestParamInfo<BadPins>& i) { return i.param.name; });

TEST(CommittedPins, HoldTheirSchemaAndEveryLigerRelease) {
  const std::string text = read("env/pins.json");
  check_schema(text, "env/pins.json", read("env/pins.schema.json"));
  const Pins pins = Pins::parse(text, "env/pins.json");
  const Upstream& liger = pins.upstream("liger-kernel");
  EXPECT_EQ(liger.releases.front().version, "0.3.0");
  EXPECT_EQ(liger.releases.back().version, "0.8.5");
  EXPECT_EQ(liger.releases.size(), 29u);
  EXPECT_EQ(liger.package, "liger_kernel");
  for (const auto& [name, upstream] : pins.all()) {
    EXPECT_FALSE(upstream.releases.empty() && upstream.commits.empty()) << name;
    EXPECT_FALSE(read("env/locks/" + upstream.environment + ".txt").empty()) << name;
  }
}

}  // namespace
}  // namespace patchbench
