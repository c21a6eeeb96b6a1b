#include "run/subject_spec.h"

#include <gtest/gtest.h>

#include <fstream>

#include "unit/sample_run.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// A repository with an ops library, and two checked-out releases.
class SubjectSpec : public testing::Test {
 protected:
  SubjectSpec() {
    context_.root = folder_ / "root";
    context_.bin = folder_ / "build/bin";
    fs::create_directories(folder_ / "build/lib");
    std::ofstream(folder_ / "build/lib/libpatchbench_ops.so") << "ops";
    setup_.target.manifest.slug = Slug("some_pack");
    setup_.python = "/usr/bin/python3";
    for (const char* name : {"thing", "other"})
      checkouts_.push_back({.path = folder_ / name, .package = folder_ / name / "src"});
  }

  exec::SandboxSpec spec_of(const Subject& subject) {
    return sandbox_spec(context_, setup_, subject, checkouts_, folder_ / "run");
  }
  static std::vector<std::string> targets_of(const exec::SandboxSpec& spec) {
    std::vector<std::string> targets;
    for (const exec::Mount& mount : spec.mounts) targets.push_back(mount.inside);
    return targets;
  }

  sample::TempFolder folder_;
  Context context_;
  patchbench::Setup setup_;
  std::vector<git::Checkout> checkouts_;
};

TEST_F(SubjectSpec, ASubjectWritesToItsWorkFolderAlone) {
  for (const char* subject : {"upstream", "mutant:half", "mitigated", "mitigated:exact"}) {
    for (const exec::Mount& mount : spec_of(subject).mounts)
      EXPECT_EQ(mount.is_writable, mount.host == folder_ / "run/work") << mount.host;
  }
}

TEST_F(SubjectSpec, AReleaseSeesTheHarnessItsPackAndItsTreesAndNothingElse) {
  const exec::SandboxSpec spec = spec_of("patched");
  EXPECT_EQ(targets_of(spec), (std::vector<std::string>{spec.cwd, "/.pb/harness", "/.pb/subject",
                                                        "/.pb/upstream", "/.pb/upstream-1"}));
  EXPECT_EQ(spec.env.at("PYTHONPATH"), "/.pb/upstream/src:/.pb/upstream-1/src");
  EXPECT_FALSE(spec.env.contains("PATCHBENCH_MITIGATE"));
}

TEST_F(SubjectSpec, OnlyANamedModeIsGivenTheOps) {
  EXPECT_FALSE(spec_of("mitigated").env.contains("PATCHBENCH_OPS_LIB"));
  EXPECT_EQ(spec_of("mitigated").env.at("PATCHBENCH_MITIGATE"), "some_pack");
  const exec::SandboxSpec named = spec_of("mitigated:exact");
  EXPECT_EQ(named.env.at("PATCHBENCH_MITIGATE"), "some_pack:exact");
  EXPECT_EQ(named.env.at("PATCHBENCH_OPS_LIB"), "/.pb/ops/libpatchbench_ops.so");
}

TEST_F(SubjectSpec, AGpuIsPassedInForADeviceThatIsOne) {
  EXPECT_FALSE(spec_of("upstream").wants_gpu);
  EXPECT_EQ(spec_of("upstream").env.at("TRITON_INTERPRET"), "1");
  setup_.target.device = {DeviceKind::kCuda, 0};
  EXPECT_TRUE(spec_of("upstream").wants_gpu);
  EXPECT_FALSE(spec_of("upstream").env.contains("TRITON_INTERPRET"));
}

}  // namespace
}  // namespace patchbench
