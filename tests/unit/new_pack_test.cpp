#include <gtest/gtest.h>

#include "cli/commands.h"
#include "core/error.h"
#include "fixtures/git_toy.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// A repository without packs, two releases of a toy upstream, and the command `new`.
class NewPackFiles : public testing::Test {
 protected:
  NewPackFiles() {
    fs::create_directories(world.root() / "packs");
    fs::copy_file(fs::path(PATCHBENCH_ROOT) / "packs/manifest.schema.json",
                  world.root() / "packs/manifest.schema.json");
    world.add_release("1.0", {{"toy/__init__.py", "\n"}, {"toy/old.py", "\n"}});
    world.add_release("1.1", {{"toy/__init__.py", "\n"},
                              {"toy/ops/loss.py", "\n"},
                              {"toy/ops/norm.py", "\n"},
                              {"toy-1.1.dist-info/METADATA", "\n"}});
    context.root = world.root();
    context.cache = world.cache();
  }

  /// The message that `new` is refused with; "" if it wrote a pack.
  std::string refusal(const std::string& upstream) {
    CLI::App app;
    add_new_command(app, context);
    testing::internal::CaptureStdout();
    std::string message;
    try {
      app.parse({"--title=a toy's bug", upstream, "first_pack", "new"});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      message = e.what();
    }
    testing::internal::GetCapturedStdout();
    return message;
  }

  ToyWorld world;
  Context context;
};

TEST_F(NewPackFiles, NameAloneListsTheNewestReleasesPackage) {
  EXPECT_EQ(refusal("toy"),
            "toy: name the files with the bug: toy@1.1=FILE[,FILE]; "
            "toy/ holds __init__.py, ops/");
  EXPECT_EQ(refusal("toy@1.0="),
            "toy@1.0=: name the files with the bug: toy@1.0=FILE[,FILE]; "
            "toy/ holds __init__.py, old.py");
}

TEST_F(NewPackFiles, FolderListsWhatItHolds) {
  EXPECT_EQ(refusal("toy=toy/ops/"),
            "toy/ops/: not a file of toy 1.1; toy/ops/ holds loss.py, norm.py");
}

TEST_F(NewPackFiles, FileThatTheReleaseLacksIsRefused) {
  EXPECT_EQ(refusal("toy@1.1=toy/ops/lost.py"),
            "toy/ops/lost.py: not a file of toy 1.1; toy/ops/ holds loss.py, norm.py");
  EXPECT_EQ(refusal("toy@1.1=toy/none/here/a.py"),
            "toy/none/here/a.py: not a file of toy 1.1; toy/ holds __init__.py, ops/");
  EXPECT_EQ(refusal("toy@1.1=a.py"),
            "a.py: not a file of toy 1.1; the release holds toy-1.1.dist-info/, toy/");
  EXPECT_FALSE(fs::exists(world.root() / "packs/first_pack"));
}

TEST_F(NewPackFiles, WithoutAVersionTheNewestReleaseIsTheRedPin) {
  EXPECT_EQ(refusal("toy=toy/ops/loss.py"), "");
  const Manifest manifest = context.manifest("first_pack");
  EXPECT_EQ(manifest.upstreams.at(0).red_pin, "1.1");
  EXPECT_EQ(manifest.upstreams.at(0).files, std::vector<std::string>{"toy/ops/loss.py"});
}

TEST_F(NewPackFiles, DamagedReleaseThatCannotBeFetchedAgainRefusesNoFile) {
  const Pin pin = world.pin("1.1");
  ToyWorld::write(world.cache() / "files" / pin.sha256 / pin.filename, "damaged");
  setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple", 1);
  EXPECT_EQ(refusal("toy=toy/unseen.py"), "");
}

TEST_F(NewPackFiles, ReleaseOutOfReachIsNamedWithoutAList) {
  fs::remove_all(world.cache());
  setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple", 1);
  EXPECT_EQ(refusal("toy"), "toy: name the files with the bug: toy@1.1=FILE[,FILE]");
  EXPECT_EQ(refusal("toy=toy/unseen.py"), "");
}

}  // namespace
}  // namespace patchbench::cli
