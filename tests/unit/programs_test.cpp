#include "run/programs.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "core/digest.h"
#include "core/error.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// A folder of programs, each an empty file.
class Programs : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "programs_test.XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    context_.bin = name;
  }
  void TearDown() override { fs::remove_all(context_.bin); }

  std::string put(const std::string& name) {
    fs::create_directories((context_.bin / name).parent_path());
    std::ofstream(context_.bin / name) << "";
    return (context_.bin / name).string();
  }

  std::string script(const std::string& name, const std::string& text) {
    std::ofstream(context_.bin / name) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(context_.bin / name, fs::perms::owner_all);
    return (context_.bin / name).string();
  }

  Context context_;
};

TEST_F(Programs, AJudgeOfOnePackComesBeforeThatOfAll) {
  EXPECT_TRUE(judge_program(context_, "some_pack").file.empty());
  const std::string of_all = put("patchbench-judge");
  EXPECT_EQ(judge_program(context_, "some_pack").argv, (Words{of_all, "some_pack"}));
  EXPECT_TRUE(judge_program(context_, "some_pack").is_of_wheel);
  const std::string own = put("repro_some_pack");
  EXPECT_EQ(judge_program(context_, "some_pack").argv, Words{own});
  EXPECT_FALSE(judge_program(context_, "some_pack").is_of_wheel);
}

TEST_F(Programs, TheSearchOfAFunctionIsInTheJudgeOfTheWheel) {
  EXPECT_TRUE(search_program(context_).file.empty());
  const std::string wheel = put("patchbench-judge");
  EXPECT_EQ(search_program(context_).argv, (Words{wheel, "explore_function"}));
  const std::string own = put("explore_function");
  EXPECT_EQ(search_program(context_).argv, Words{own});
}

TEST_F(Programs, TheProgramIsTheSandboxWhereThereIsNoOther) {
  EXPECT_EQ(sandbox_program(context_).argv,
            (Words{(context_.bin / "patchbench").string(), "sandbox"}));
  const std::string own = put("patchbench-sandbox");
  EXPECT_EQ(sandbox_program(context_).argv, Words{own});
}

TEST_F(Programs, LibtorchComesFromTheEnvironmentOfTheRunIfThatHasTheRelease) {
  exec::Environment environment;
  environment.sites = {context_.bin / "other", context_.bin / "torch-2.11"};
  put("other/torch-2.12.0.dist-info/METADATA");
  put("torch-2.11/torch-2.11.0.dist-info/METADATA");
  EXPECT_EQ(libtorch_for(context_, environment), context_.bin / "torch-2.11/torch/lib");
}

TEST_F(Programs, LibtorchComesFromAnInstalledTorchThatIsEqualByDigestAlone) {
  context_.root = context_.bin;
  exec::Environment installed;
  installed.python = script("python", "echo " + (context_.bin / "venv/torch/lib").string());
  const fs::path cpu_half = put("venv/torch/lib/libtorch_cpu.so");
  put("venv/torch/lib/libc10.so");
  put("env/locks/judge.txt");
  std::ofstream(context_.bin / "env/locks/judge.txt")
      << "# libtorch cp311 libc10.so " << std::string(64, '0') << "\n# libtorch cp312 libc10.so "
      << sha256_hex("") << "\n# libtorch cp312 libtorch_cpu.so " << sha256_hex("") << "\n";
  EXPECT_EQ(libtorch_for(context_, installed), context_.bin / "venv/torch/lib");
  std::ofstream(cpu_half) << "other";
  EXPECT_THROW(libtorch_for(context_, installed), Error);  // the lock, which holds no wheel here
}

TEST_F(Programs, AJudgeIsAskedWhereItComputesForAGpu) {
  const fs::path libtorch = context_.bin / "lib";
  const Program judge{
      {},
      {script("judge", "[ \"$1 $2 $LD_LIBRARY_PATH\" = \"--probe cuda:1 " + libtorch.string() +
                           "\" ] && echo '{\"device\": \"cpu\", \"why\": \"no half\", "
                           "\"has_ops\": false}'")}};
  const JudgeDevice on_gpu = judge_device(judge, libtorch, {DeviceKind::kCuda, 1});
  EXPECT_EQ(on_gpu.device, Device{});
  EXPECT_FALSE(on_gpu.has_ops);
  EXPECT_THROW(judge_device(judge, libtorch, {DeviceKind::kCuda, 0}), Error);
  EXPECT_TRUE(judge_device({}, "", {}).has_ops);
}

TEST_F(Programs, WithoutThatAndWithoutItsLockTheFileIsNamed) {
  context_.root = context_.bin;
  try {
    libtorch_for(context_, {});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("env/locks/judge.txt"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace patchbench
