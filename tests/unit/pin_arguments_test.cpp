#include "core/pin_arguments.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench {
namespace {

Manifest pack() {
  Manifest pack{.slug = Slug("some_pack")};
  for (const char* name : {"transformers", "deepspeed"})
    pack.upstreams.push_back({.name = name, .red_pin = "1.0"});
  return pack;
}

const PinForm kOne{.instead = "one release alone"};

/// "upstream version version | companion@version"
std::string said(const std::vector<std::string>& words, const PinForm& form = kOne) {
  try {
    const NamedPins pins = named_pins(pack(), words, form);
    std::string text = pins.upstream;
    for (const std::string& version : pins.versions) text += " " + version;
    for (const PinWord& one : pins.companions) text += " | " + one.upstream + "@" + one.which;
    return text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
}

TEST(PinWords, FirstWordSaysWhatIsUnderTestAndOtherUpstreamsAreCompanions) {
  EXPECT_EQ(said({}), "");
  EXPECT_EQ(said({"5.3.0"}), " 5.3.0");
  EXPECT_EQ(said({"5.3.0", "deepspeed@0.18.1"}), " 5.3.0 | deepspeed@0.18.1");
  EXPECT_EQ(said({"deepspeed@0.18.1"}), "deepspeed 0.18.1");
  EXPECT_EQ(said({"transformers", "deepspeed@0.18.1"}), "transformers | deepspeed@0.18.1");
  EXPECT_EQ(said({"deepspeed", "0.18.1"}), "deepspeed 0.18.1");
  EXPECT_EQ(said({"deepspeed@0.18.1", "transformers@5.3.0"}),
            "deepspeed 0.18.1 | transformers@5.3.0");
}

TEST(PinWords, FolderAndCommitAreReleases) {
  EXPECT_EQ(said({"path:."}), " path:.");
  EXPECT_EQ(said({"path:/home/me@work/x"}), " path:/home/me@work/x");
  EXPECT_EQ(said({"deepspeed@path:/a b"}), "deepspeed path:/a b");
  EXPECT_EQ(said({"deepspeed@git:abc"}), "deepspeed git:abc");
  EXPECT_EQ(said({"git:abc"}), " git:abc");
}

TEST(PinWords, WrongWordsAreOneClearLine) {
  const std::string form = "want [UPSTREAM@]WHICH: a version, path:DIR or git:COMMIT";
  for (const char* word : {"", "@", "@1.0", "deepspeed@", "path:", "deepspeed@git:"})
    EXPECT_EQ(said({word}), "'" + std::string(word) + "': " + form);
  EXPECT_EQ(said({"depspeed@0.18.1"}),
            "some_pack has no upstream 'depspeed'; did you mean deepspeed?");
  EXPECT_EQ(said({"depspeed"}), "some_pack has no upstream 'depspeed'; did you mean deepspeed?");
  EXPECT_EQ(said({"5.3.0", "5.4.0"}), "'5.4.0': one release alone");
  EXPECT_EQ(said({"5.3.0", "deepspeed"}),
            "'deepspeed': a companion needs its version: deepspeed@WHICH");
  EXPECT_EQ(said({"5.3.0", "deepspeed@0.18.1"}, {.takes_companions = false}),
            "'deepspeed@0.18.1': one upstream alone is asked for here");
  EXPECT_EQ(said({"5.3.0"}, {.max_versions = 0, .instead = "it runs all"}), "'5.3.0': it runs all");
}

TEST(PinWords, PrintedWordIsReadBack) {
  EXPECT_EQ(pin_word("deepspeed", "0.18.1"), "deepspeed@0.18.1");
  EXPECT_EQ(pin_word("deepspeed", "path:/a b"), "'deepspeed@path:/a b'");
}

}  // namespace
}  // namespace patchbench
