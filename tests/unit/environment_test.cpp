#include "exec/environment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "exec/gpu.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// A root with a downloader of its own, so that no test touches the network or the user's cache.
class EnvironmentTest : public testing::Test {
 protected:
  EnvironmentTest() {
    std::string pattern = (fs::temp_directory_path() / "patchbench-env-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    fs::create_directories(folder_ / "env" / "locks");
    std::ofstream(folder_ / "env" / "locks" / "toy.txt") << "torch==1\n";
  }
  ~EnvironmentTest() override { fs::remove_all(folder_); }

  void downloader(const std::string& text) { std::ofstream(folder_ / "env" / "fetch.py") << text; }
  Environment locked() {
    return locked_environment({"toy"}, "cp311", folder_ / "cache" / "patchbench", folder_);
  }
  /// An installed stack: an interpreter that answers through a script of ours.
  fs::path interpreter(const std::string& script) {
    const fs::path bin = folder_ / "venv" / "bin";
    fs::create_directories(bin);
    std::ofstream(bin / "python3") << "#!/bin/sh\n" << script;
    fs::permissions(bin / "python3", fs::perms::owner_all);
    return folder_ / "venv";
  }

  fs::path folder_;
};

template <typename Call>
std::string error_of(ErrorCode code, Call call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST_F(EnvironmentTest, LockedTakesTheFolderThatFetchPrintsAndReadsItsPackages) {
  downloader(
      "import os, sys\n"
      "assert sys.argv[1] == 'env' and sys.argv[2].endswith('toy.txt') and sys.argv[3:] == "
      "['--tag', 'cp311'], sys.argv\n"
      "site = os.environ['XDG_CACHE_HOME'] + '/patchbench/env/toy-cp311-abc'\n"
      "for name in ['torch-2.11.0', 'numpy-2.3.5', 'sympy-1.0']: os.makedirs(site + '/' + name + "
      "'.dist-info')\n"
      "print('fetch: working', file=sys.stderr)\n"
      "print(site)\n");
  const Environment environment = locked();
  EXPECT_EQ(environment.sites.at(0), folder_ / "cache/patchbench/env/toy-cp311-abc");
  EXPECT_EQ(environment.address, "toy-cp311-abc");
  EXPECT_EQ(environment.packages, Json::parse(R"({"torch": "2.11.0", "numpy": "2.3.5"})"));
  EXPECT_EQ(environment.python, "");
}

TEST_F(EnvironmentTest, LockedPassesOnTheDownloadersOwnLine) {
  downloader(
      "import sys\nprint('fetch: one', file=sys.stderr)\nprint('fetch: the index is away', "
      "file=sys.stderr)\nsys.exit(1)\n");
  EXPECT_EQ(error_of(ErrorCode::kNotRunnable, [&] { locked(); }),
            "environment toy for cp311: fetch: the index is away");
}

TEST_F(EnvironmentTest, LockedNamesALockThatIsNotThere) {
  EXPECT_NE(
      error_of(ErrorCode::kUsage, [&] { locked_environment({"tony"}, "cp311", folder_, folder_); })
          .find("tony.txt: no such lock"),
      std::string::npos);
}

TEST_F(EnvironmentTest, LockedPutsTheBaseOfALockBehindIt) {
  std::ofstream(folder_ / "env/locks/over.txt") << "# over toy\n-r toy.txt\nnumpy==1\n";
  EXPECT_EQ(with_base_locks({"over", "toy"}, folder_), (std::vector<std::string>{"over", "toy"}));
  downloader(
      "import os, sys\n"
      "name = os.path.basename(sys.argv[2])[:-4]\n"
      "site = os.environ['XDG_CACHE_HOME'] + '/patchbench/env/' + name + '-cp311-abc'\n"
      "os.makedirs(site)\n"
      "print(site)\n");
  const Environment environment =
      locked_environment({"over"}, "cp311", folder_ / "cache" / "patchbench", folder_);
  EXPECT_EQ(environment.address, "over-cp311-abc+toy-cp311-abc");
  ASSERT_EQ(environment.sites.size(), 2u);
  EXPECT_EQ(environment.sites.at(1), folder_ / "cache/patchbench/env/toy-cp311-abc");
}

TEST_F(EnvironmentTest, LockedNamesABaseThatIsNotThere) {
  std::ofstream(folder_ / "env/locks/over.txt") << "-r tony.txt\n";
  EXPECT_NE(error_of(ErrorCode::kUsage, [&] { with_base_locks({"over"}, folder_); })
                .find("tony.txt: no such lock"),
            std::string::npos);
}

TEST_F(EnvironmentTest, HostStackIsNamedByItsPackages) {
  const fs::path venv = interpreter(
      "echo '{\"tag\": \"cp312\", \"all\": {\"torch\": \"2.9\", \"liger-kernel\": \"0.8.0\", "
      "\"x\": \"1\"}}'\n");
  const Environment environment = host_environment(venv);
  EXPECT_EQ(environment.python, (venv / "bin/python3").string());
  EXPECT_TRUE(environment.sites.empty());
  EXPECT_EQ(environment.packages,
            Json::parse(R"({"torch": "2.9", "liger-kernel": "0.8.0", "python": "cp312"})"));
  EXPECT_EQ(environment.address, host_environment(venv / "bin/python3").address);
  interpreter(
      "echo '{\"tag\": \"cp312\", \"all\": {\"torch\": \"2.9\", \"liger-kernel\": \"0.8.0\", "
      "\"x\": \"2\"}}'\n");
  EXPECT_NE(environment.address, host_environment(venv).address);
}

TEST_F(EnvironmentTest, HostStackOfARealInterpreterCanBeAsked) {
  const Environment environment = host_environment("/usr/bin/python3");
  EXPECT_TRUE(environment.address.starts_with("host:"));
  EXPECT_TRUE(environment.packages.at("python").get<std::string>().starts_with("cp3"));
  const Json digests = host_file_digests(environment, {"json/__init__.py", "no/such/file.py"});
  EXPECT_EQ(digests.at("json/__init__.py").get<std::string>().size(), 64u);
  EXPECT_EQ(digests.at("no/such/file.py"), "absent");
}

TEST_F(EnvironmentTest, HostStackRefusesWhatIsNoInterpreter) {
  EXPECT_NE(error_of(ErrorCode::kUsage, [&] { host_environment(folder_ / "nothing"); })
                .find("neither an interpreter"),
            std::string::npos);
  EXPECT_NE(error_of(ErrorCode::kUsage, [&] { host_environment(interpreter("echo hello\n")); })
                .find("no Python"),
            std::string::npos);
}

TEST(Gpus, AreReadFromTheQuerysRows) {
  const auto gpus = gpus_from_csv(
      "0, NVIDIA H200, 570.1, 9.0, 143771\nNo devices were found\n1, NVIDIA X, 1, [N/A], 5\n");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "NVIDIA H200");
  EXPECT_EQ(gpus[0].capability, "9.0");
  EXPECT_EQ(gpus[0].memory_bytes, int64_t{143771} << 20);
  EXPECT_EQ(gpus[1].index, 1);
  EXPECT_EQ(gpus[1].capability, "");
  EXPECT_TRUE(gpus_from_csv("NVIDIA-SMI has failed\n").empty());
}

TEST(Machine, IsDescribedInFewBytes) {
  const Json machine = describe_machine("cpu");
  EXPECT_EQ(machine.at("device"), "cpu");
  EXPECT_NE(machine.at("os").get<std::string>(), "");
  EXPECT_NE(machine.at("cpu").get<std::string>().find(" x"), std::string::npos);
  EXPECT_FALSE(machine.contains("driver"));
  EXPECT_LT(machine.dump().size(), 400u);
}

TEST(Gpus, DeviceNodesAreOnlyNvidiaDevices) {
  for (const fs::path& node : gpu_device_nodes())
    EXPECT_TRUE(node.string().starts_with("/dev/nvidia")) << node;
}

}  // namespace
}  // namespace patchbench::exec
