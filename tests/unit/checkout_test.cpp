#include "git/checkout.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>

#include "core/digest.h"
#include "core/edit_make.h"
#include "core/error.h"
#include "fixtures/git_toy.h"
#include "git/source.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

const ToyWorld::Files kFiles = {{"toy/__init__.py", "version = 1\n"},
                                {"toy/ops/a.py", "def f(x):\n    return x + 1\n"},
                                {"toy/crlf.txt", "a\r\nb\r\n"}};

class StoreTest : public testing::Test {
 protected:
  ToyWorld world;
};

Edit one_edit(const std::string& path, const std::optional<std::string>& base,
              const std::optional<std::string>& text) {
  return {"0001-x.edit", {{"Subject", "x"}}, {make_file_edit(path, base, text)}};
}

Edit edit_of_a(const std::string& text) {
  return one_edit("toy/ops/a.py", kFiles.at("toy/ops/a.py"), text);
}

/// The message with which `work` ends, "" if it does not throw; the code in front.
template <typename Work>
std::string failure_of(const Work& work, ErrorCode code) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    return e.what();
  }
  return "";
}

TEST_F(StoreTest, AWheelBecomesAWorktreeThatGitFindsClean) {
  world.add_release("1.0", kFiles);
  const Checkout checkout = world.store().materialize(world.pin("1.0"), {});
  EXPECT_EQ(checkout.path, checkout.package);
  EXPECT_EQ(checkout.path.filename(), checkout.tree);
  for (const auto& [path, text] : kFiles) EXPECT_EQ(ToyWorld::read(checkout.package / path), text);
  EXPECT_EQ(world.output("git -C " + checkout.path.string() + " status --porcelain"), "");
  EXPECT_EQ(world.output("git -C " + checkout.path.string() + " write-tree"), checkout.tree + "\n");
}

TEST_F(StoreTest, AnSdistAndAGitPinHoldTheSameBlobsAsTheWheel) {
  world.add_release("1.0", kFiles);
  ToyWorld::write_files(world.folder() / "sd/toy-1.1/src", kFiles);
  world.add_file("toy-1.1.tar.gz", "1.1",
                 "tar -C " + (world.folder() / "sd").string() + " -czf " +
                     (world.folder() / "archive").string() + " toy-1.1");
  const std::string commit = world.commit(kFiles);
  Store store = world.store();
  const Entries wheel = store.entries(world.pin("1.0"));
  EXPECT_EQ(wheel.size(), kFiles.size());
  EXPECT_EQ(wheel.at("toy/ops/a.py").id, git_blob_id(kFiles.at("toy/ops/a.py")));
  EXPECT_EQ(store.entries(world.pin("1.1")), wheel);
  EXPECT_EQ(store.entries(world.pin("git:" + commit)), wheel);
  const Checkout sdist = store.materialize(world.pin("1.1"), {});
  EXPECT_EQ(sdist.package, sdist.path / "toy-1.1/src");
  EXPECT_EQ(ToyWorld::read(sdist.package / "toy/ops/a.py"), kFiles.at("toy/ops/a.py"));
}

TEST_F(StoreTest, AGitPinHoldsThePackageAndFetchesNothingElse) {
  world.commit(kFiles);
  const std::string large(100000, 'x');
  const std::string commit = world.commit({{"../assets/large.bin", large}});
  Store store = world.store();
  const Checkout checkout = store.materialize(world.pin("git:" + commit), {});
  EXPECT_EQ(ToyWorld::read(checkout.package / "toy/ops/a.py"), kFiles.at("toy/ops/a.py"));
  EXPECT_FALSE(fs::exists(checkout.path / "assets"));
  EXPECT_FALSE(Objects::open(world.cache() / "git/toy.git").has(git_blob_id(large)));
  EXPECT_EQ(world.output("git -C " + checkout.path.string() + " status --porcelain"), "");
}

TEST_F(StoreTest, ReadAndListNeedNoWorktree) {
  world.add_release("1.0", kFiles);
  Store store = world.store();
  EXPECT_EQ(store.read(world.pin("1.0"), "toy/crlf.txt"), "a\r\nb\r\n");
  EXPECT_EQ(store.read(world.pin("1.0"), "toy/none.py"), std::nullopt);
  EXPECT_EQ(store.list(world.pin("1.0")),
            (std::vector<std::string>{"toy/__init__.py", "toy/crlf.txt", "toy/ops/a.py"}));
  EXPECT_FALSE(fs::exists(world.cache() / "checkouts"));
}

TEST_F(StoreTest, EditsApplyInOrderToEveryKindOfPin) {
  world.add_release("1.0", kFiles);
  const std::string commit = world.commit(kFiles);
  const Edit first = edit_of_a("def f(x):\n    return x + 2\n");
  Edit second =
      one_edit("toy/ops/a.py", "def f(x):\n    return x + 2\n", "def f(x):\n    return x + 3\n");
  second.files.push_back(make_file_edit("toy/added.py", std::nullopt, "new = 1\n"));
  second.files.back().mode = "100755";
  second.files.push_back(make_file_edit("toy/crlf.txt", kFiles.at("toy/crlf.txt"), std::nullopt));
  Store store = world.store();
  for (const std::string& version : {std::string("1.0"), "git:" + commit}) {
    const Checkout checkout = store.materialize(world.pin(version), {first, second});
    EXPECT_EQ(ToyWorld::read(checkout.package / "toy/ops/a.py"), "def f(x):\n    return x + 3\n");
    EXPECT_EQ(ToyWorld::read(checkout.package / "toy/added.py"), "new = 1\n");
    EXPECT_EQ(access((checkout.package / "toy/added.py").c_str(), X_OK), 0);
    EXPECT_FALSE(fs::exists(checkout.package / "toy/crlf.txt"));
  }
  EXPECT_EQ(read_after(store, world.pin("1.0"), {first, second}, "toy/crlf.txt"), std::nullopt);
  EXPECT_EQ(read_after(store, world.pin("1.0"), {first}, "toy/ops/a.py"),
            "def f(x):\n    return x + 2\n");
}

TEST_F(StoreTest, AnEditForAnotherBaseIsRefusedByName) {
  world.add_release("1.0", kFiles);
  Store store = world.store();
  const std::vector<Edit> wrong = {one_edit("toy/ops/a.py", "other\n", "x\n"),
                                   one_edit("toy/gone.py", "x\n", "y\n"),
                                   one_edit("toy/crlf.txt", std::nullopt, "y\n")};
  for (const Edit& edit : wrong) {
    const std::string message =
        failure_of([&] { store.materialize(world.pin("1.0"), {edit}); }, ErrorCode::kUsage);
    EXPECT_TRUE(message.starts_with("0001-x.edit on toy 1.0: " + edit.files[0].path)) << message;
    EXPECT_NE(failure_of([&] { read_after(store, world.pin("1.0"), {edit}, edit.files[0].path); },
                         ErrorCode::kUsage),
              "");
  }
}

TEST_F(StoreTest, ATamperedCheckoutIsAnnouncedAndMadeAnew) {
  world.add_release("1.0", kFiles);
  Store store = world.store();
  const Checkout checkout = store.materialize(world.pin("1.0"), {});
  const std::vector<std::string> tamper = {"echo x >> toy/ops/a.py", "rm toy/ops/a.py",
                                           "touch toy/ops/a.pyc", "chmod +x toy/ops/a.py",
                                           "rm toy/ops/a.py; ln -s /dev/null toy/ops/a.py"};
  for (const std::string& line : tamper) {
    ToyWorld::sh("cd " + checkout.path.string() + " && " + line);
    testing::internal::CaptureStderr();
    store.materialize(world.pin("1.0"), {});
    EXPECT_NE(testing::internal::GetCapturedStderr().find("making it anew"), std::string::npos)
        << line;
    EXPECT_EQ(ToyWorld::read(checkout.path / "toy/ops/a.py"), kFiles.at("toy/ops/a.py")) << line;
    EXPECT_FALSE(fs::exists(checkout.path / "toy/ops/a.pyc"));
  }
  testing::internal::CaptureStderr();
  store.materialize(world.pin("1.0"), {});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(StoreTest, ADamagedRepositoryIsFilledAgain) {
  world.add_release("1.0", kFiles);
  Store store = world.store();
  const Checkout checkout = store.materialize(world.pin("1.0"), {});
  const std::string blob = git_blob_id(kFiles.at("toy/ops/a.py"));
  const fs::path object =
      world.cache() / "git/toy.git/objects" / blob.substr(0, 2) / blob.substr(2);
  fs::permissions(object, fs::perms::owner_all);
  ToyWorld::write(object, "not an object");
  fs::remove_all(checkout.path);
  testing::internal::CaptureStderr();
  store.materialize(world.pin("1.0"), {});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("is damaged"), std::string::npos);
  EXPECT_EQ(ToyWorld::read(checkout.path / "toy/ops/a.py"), kFiles.at("toy/ops/a.py"));
  EXPECT_EQ(world.output("git -C " + checkout.path.string() + " status --porcelain"), "");
}

TEST_F(StoreTest, WorkThatWasKilledHalfwayLeavesNoHalfEntry) {
  world.add_release("1.0", kFiles);
  const std::string commit = world.commit(kFiles);
  const fs::path bare = world.cache() / "git/toy.git";
  ToyWorld::write(bare.string() + ".tmp/HEAD", "half");
  ToyWorld::write(bare.string() + ".unpack/half.py", "half");
  Store store = world.store();
  const Checkout checkout = store.materialize(world.pin("1.0"), {});
  EXPECT_EQ(store.list(world.pin("1.0")).size(), kFiles.size());
  ToyWorld::write(checkout.path.string() + ".tmp/half.py", "half");
  ToyWorld::write(bare / "shallow.lock", "");
  fs::remove_all(checkout.path);
  EXPECT_EQ(store.materialize(world.pin("1.0"), {}).tree, checkout.tree);
  EXPECT_FALSE(fs::exists(checkout.path / "half.py"));
  EXPECT_EQ(store.list(world.pin("git:" + commit)).size(), kFiles.size());
}

TEST_F(StoreTest, ProcessesAtOnceShareTheCache) {
  world.add_release("1.0", kFiles);
  const std::string commit = world.commit(kFiles);
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      bool ok = true;
      try {
        Store store = world.store();
        const Pin pin = world.pin(i % 2 == 0 ? "1.0" : "git:" + commit);
        const Checkout checkout =
            store.materialize(pin, {edit_of_a("x = " + std::to_string(i / 2) + "\n")});
        ok = ToyWorld::read(checkout.package / "toy/ops/a.py") ==
             "x = " + std::to_string(i / 2) + "\n";
      } catch (const std::exception&) {
        ok = false;
      }
      _exit(ok ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST_F(StoreTest, AnUnreachableUpstreamIsNotRunnableHere) {
  const Pin gone = world.pin("git:" + std::string(40, 'a'));
  Store store = world.store();
  world.commit(kFiles);
  std::string message = failure_of([&] { store.materialize(gone, {}); }, ErrorCode::kNotRunnable);
  EXPECT_TRUE(message.starts_with("upstream_unreachable: https://toy.invalid/toy aaaa")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  world.add_release("1.0", kFiles);
  fs::remove_all(world.cache() / "files");
  setenv("PIP_INDEX_URL", ("file://" + (world.folder() / "no_index").string()).c_str(), 1);
  message = failure_of([&] { store.materialize(world.pin("1.0"), {}); }, ErrorCode::kNotRunnable);
  unsetenv("PIP_INDEX_URL");
  EXPECT_TRUE(message.starts_with("upstream_unreachable: toy 1.0")) << message;
}

TEST_F(StoreTest, APathPinTakesADirtyCloneAsItIs) {
  world.commit(kFiles);
  ToyWorld::write(world.clone() / "src/toy/ops/a.py", "dirty = 1\n");
  ToyWorld::write(world.clone() / "src/toy/untracked.py", "u = 1\n");
  ToyWorld::write(world.clone() / ".gitignore", "*.log\n");
  ToyWorld::write(world.clone() / "src/toy/x.log", "ignored");
  fs::remove(world.clone() / "src/toy/crlf.txt");
  Store store = world.store();
  const Checkout checkout = store.materialize(world.pin("path:" + world.clone().string()), {});
  EXPECT_EQ(checkout.package, checkout.path / "src");
  EXPECT_EQ(ToyWorld::read(checkout.package / "toy/ops/a.py"), "dirty = 1\n");
  EXPECT_TRUE(fs::exists(checkout.package / "toy/untracked.py"));
  EXPECT_FALSE(fs::exists(checkout.package / "toy/x.log"));
  EXPECT_FALSE(fs::exists(checkout.package / "toy/crlf.txt"));
}

TEST_F(StoreTest, APathPinMayBeAnInstalledPackageAndMustHoldIt) {
  const fs::path site = world.folder() / "site-packages";
  ToyWorld::write_files(site, kFiles);
  ToyWorld::write(site / "toy/__pycache__/a.pyc", "x");
  Store store = world.store();
  EXPECT_EQ(store.list(world.pin("path:" + site.string())).size(), kFiles.size());
  fs::remove_all(site / "toy");
  EXPECT_NE(failure_of([&] { store.list(world.pin("path:" + site.string())); }, ErrorCode::kUsage),
            "");
  EXPECT_NE(failure_of([&] { store.list(world.pin("path:/nonexistent")); }, ErrorCode::kUsage), "");
}

TEST_F(StoreTest, DigestsNameAbsentFiles) {
  world.add_release("1.0", kFiles);
  const Checkout checkout = world.store().materialize(world.pin("1.0"), {});
  const auto digests = Store::digests(checkout, {"toy/ops/a.py", "toy/none.py"});
  EXPECT_EQ(digests.at("toy/ops/a.py"), sha256_hex(kFiles.at("toy/ops/a.py")));
  EXPECT_EQ(digests.at("toy/none.py"), "absent");
}

TEST_F(StoreTest, CommitsBetweenListsThoseThatTouchTheFiles) {
  const std::string good = world.commit(kFiles);
  const std::string first = world.commit({{"toy/ops/a.py", "one = 1\n"}});
  world.commit({{"toy/__init__.py", "version = 2\n"}});
  const std::string bad = world.commit({{"toy/ops/a.py", "two = 2\n"}});
  world.sh("git -C " + world.clone().string() + " tag v1.0 " + good);
  world.add_release("1.0", kFiles);
  Store store = world.store();
  for (const std::string& from : {"git:" + good, std::string("1.0")}) {
    const std::vector<Pin> commits =
        store.commits_between(world.pin(from), world.pin("git:" + bad), {"toy/ops/a.py"});
    ASSERT_EQ(commits.size(), 2u);
    EXPECT_EQ(commits[0].commit, first);
    EXPECT_EQ(commits[1].version, "git:" + bad);
    EXPECT_EQ(commits[1].prefix, "src/");
    EXPECT_TRUE(store.read(commits[0], "toy/ops/a.py") == "one = 1\n");
  }
  EXPECT_NE(
      failure_of([&] { store.commits_between(world.pin("path:/x"), world.pin("git:" + bad), {}); },
                 ErrorCode::kUsage),
      "");
}

TEST(PrefixOfFolder, FindsNamespacePackagesToo) {
  const fs::path folder = fs::path(testing::TempDir()) / "pb_prefix";
  fs::remove_all(folder);
  fs::create_directories(folder / "src/spaced/core");
  EXPECT_EQ(prefix_of_folder(folder, "spaced", ""), "src/");
  EXPECT_EQ(prefix_of_folder(folder / "src", "spaced.core", ""), "");
  EXPECT_NE(failure_of([&] { prefix_of_folder(folder, "other", ""); }, ErrorCode::kUsage)
                .find("no folder other here or under src/"),
            std::string::npos);
  fs::remove_all(folder);
}

TEST(FetchPy, RefusesArchivesThatLeaveTheFolder) {
  ToyWorld world;
  const std::string at = world.folder().string();
  const std::string fetch = "python3 " + (world.root() / "env/fetch.py").string() + " unzip " + at;
  ToyWorld::write(world.folder() / "x", "x");
  ToyWorld::sh("cd " + at +
               " && python3 -c \"import zipfile; z = zipfile.ZipFile('a.whl', 'w'); z.write('x', "
               "'../../evil')\"");
  ToyWorld::sh("cd " + at + " && tar -czPf b.tar.gz ../" + world.folder().filename().string() +
               "/x");
  ToyWorld::sh("cd " + at + " && ln -s ../.. up && tar -czf c.tar.gz up");
  ToyWorld::write(world.folder() / "d.zip", "no zip");
  for (const auto& [name, status] :
       std::map<std::string, int>{{"a.whl", 3}, {"b.tar.gz", 3}, {"c.tar.gz", 3}, {"d.zip", 2}}) {
    const int got =
        std::system((fetch + "/" + name + " " + at + "/out_" + name + " 2>/dev/null").c_str());
    EXPECT_EQ(WEXITSTATUS(got), status) << name;
  }
}

}  // namespace
}  // namespace patchbench::git
