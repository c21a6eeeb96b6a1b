#include "exec/sandbox.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "exec/choice.h"
#include "exec/engine.h"
#include "exec/gpu.h"
#include "exec/limited.h"
#include "exec/runc.h"
#include "exec/supervisor.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// A work folder and a spec for the plain process, which every machine has.
class SandboxTest : public testing::Test {
 protected:
  SandboxTest() {
    std::string pattern = (fs::temp_directory_path() / "patchbench-sandbox-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    fs::create_directories(folder_ / "work");
    spec_.argv = {"/bin/sh", "-c", "exit 0"};
    spec_.env = {{"PATH", "/usr/bin:/bin"}};
    spec_.mounts = {{folder_ / "work", "/work", true}};
    spec_.cwd = "/work";
    spec_.timeout_s = 30;
    spec_.log = folder_ / "log";
    spec_.report = folder_ / "report.json";
  }
  ~SandboxTest() override { fs::remove_all(folder_); }

  SandboxReport run_script(const std::string& script) {
    spec_.argv = {"/bin/bash", "-c", script};
    return run_sandboxed(spec_);
  }
  std::string log() const {
    std::ifstream in(spec_.log);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  std::string error_of(const Json& json) const {
    try {
      static_cast<void>(SandboxSpec::from_json(json));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      return e.what();
    }
    return "";
  }

  fs::path folder_;
  SandboxSpec spec_;
};

/// Whether any process of this machine still has `mark` among its arguments.
bool is_running(const std::string& mark) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream in(entry.path() / "cmdline");
    std::ostringstream text;
    text << in.rdbuf();
    if (text.str().find(mark) != std::string::npos) return true;
  }
  return false;
}

TEST_F(SandboxTest, SpecAndReportSurviveTheirJson) {
  spec_.wants_gpu = true;
  spec_.python = "/usr/bin/python3";
  EXPECT_EQ(SandboxSpec::from_json(spec_.to_json()).to_json(), spec_.to_json());
  SandboxReport report{
      .exit_code = 3, .signal = 9, .out_of_memory = true, .peak_bytes = 5, .meter = "cgroup"};
  EXPECT_EQ(SandboxReport::from_json(report.to_json()).to_json(), report.to_json());
}

TEST_F(SandboxTest, SpecRefusesWhatItDoesNotKnow) {
  Json json = spec_.to_json();
  json["network"] = true;
  EXPECT_NE(error_of(json).find("network"), std::string::npos);
  json = spec_.to_json();
  json["kind"] = "bwra";
  EXPECT_NE(error_of(json).find("did you mean bwrap?"), std::string::npos);
  json = spec_.to_json();
  json["timeout_s"] = 0;
  EXPECT_NE(error_of(json).find("timeout_s"), std::string::npos);
  json = spec_.to_json();
  json["mounts"][0]["host"] = "work";
  EXPECT_NE(error_of(json).find("absolute"), std::string::npos);
}

TEST_F(SandboxTest, SpecRefusesAReportWithinTheSubjectsReach) {
  Json json = spec_.to_json();
  json["report"] = (folder_ / "work" / "report.json").string();
  EXPECT_NE(error_of(json).find("where the subject can write"), std::string::npos);
  fs::create_directory_symlink(folder_ / "work", folder_ / "alias");
  json["report"] = (folder_ / "alias" / "report.json").string();
  EXPECT_NE(error_of(json).find("where the subject can write"), std::string::npos);
  json["report"] = (folder_ / "work-report.json").string();
  EXPECT_EQ(error_of(json), "");
}

TEST_F(SandboxTest, ProcessRewritesMountedPathsLongestFirst) {
  fs::create_directories(folder_ / "deep");
  spec_.mounts.push_back({folder_ / "deep", "/work/deep", false});
  spec_.env["PYTHONPATH"] = "/work/deep/a:/workshop:/work";
  spec_.cwd = "/work/deep";
  spec_.argv = {"/bin/sh", "-c", "pwd; echo $PYTHONPATH; echo $1", "sh", "/work/file"};
  EXPECT_EQ(run_sandboxed(spec_).exit_code, 0);
  const std::string base = folder_.string();
  EXPECT_EQ(log(), base + "/deep\n" + base + "/deep/a:/workshop:" + base + "/work\n" + base +
                       "/work/file\n");
}

TEST_F(SandboxTest, ProcessClearsTheEnvironment) {
  ::setenv("PATCHBENCH_TEST_SECRET", "visible", 1);
  EXPECT_EQ(run_script("env").exit_code, 0);
  ::unsetenv("PATCHBENCH_TEST_SECRET");
  EXPECT_EQ(log().find("SECRET"), std::string::npos);
  EXPECT_NE(log().find("PATH=/usr/bin:/bin"), std::string::npos);
}

TEST_F(SandboxTest, ReportTellsExitCodesAndSignalsOfTheSubject) {
  EXPECT_EQ(run_script("exit 125").exit_code, 125);
  const SandboxReport killed = run_script("kill -SEGV $$");
  EXPECT_EQ(killed.signal, SIGSEGV);
  EXPECT_FALSE(killed.engine_failed);
  std::ifstream in(spec_.report);
  EXPECT_EQ(SandboxReport::from_json(Json::parse(in)).signal, SIGSEGV);
}

TEST_F(SandboxTest, ReportTellsEngineFailuresApart) {
  spec_.argv = {"/no/such/program"};
  const SandboxReport report = run_sandboxed(spec_);
  EXPECT_TRUE(report.engine_failed);
  EXPECT_EQ(report.error, "/no/such/program: not found on PATH");
  spec_.argv = {"/bin/true"};
  spec_.mounts[0].host = folder_ / "gone";
  EXPECT_NE(run_sandboxed(spec_).error.find("gone: not there"), std::string::npos);
}

/// The two ways in which descendants are found: a cgroup's list, where one can be made, and the
/// tree.
class DaemonTest : public SandboxTest, public testing::WithParamInterface<LimitsBy> {
 protected:
  SandboxReport run_limited_script(const std::string& script) {
    SpawnRequest request{.argv = {"/bin/bash", "-c", script}, .env = {"PATH=/usr/bin:/bin"}};
    request.own_session = true;
    return run_limited(spec_, std::move(request), GetParam());
  }
};

TEST_P(DaemonTest, EndsAtTheTimeLimit) {
  const std::string mark = "7" + std::to_string(::getpid()) + ".25";
  spec_.timeout_s = 1;
  const SandboxReport report = run_limited_script(
      "(setsid setsid sleep " + mark + " &) ; (setsid sh -c 'trap \"\" TERM HUP; (sleep " + mark +
      " &) ; wait' &) ; sleep " + mark);
  EXPECT_TRUE(report.timed_out);
  EXPECT_LT(report.wall_s, 20);
  EXPECT_FALSE(is_running(mark));
}

TEST_P(DaemonTest, EndsWithItsSubject) {
  const std::string mark = "8" + std::to_string(::getpid()) + ".25";
  const SandboxReport report =
      run_limited_script("(setsid setsid sleep " + mark + " &) ; sleep 0.3; exit 0");
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_FALSE(report.timed_out);
  EXPECT_FALSE(is_running(mark));
}

INSTANTIATE_TEST_SUITE_P(Finding, DaemonTest, testing::Values(LimitsBy::kBest, LimitsBy::kWatchdog),
                         [](const auto& found) {
                           return found.param == LimitsBy::kBest ? "ByTheBestWayHere" : "ByTheTree";
                         });

TEST_F(SandboxTest, WatchdogKillsWhatTakesTooMuchMemory) {
  spec_.memory_bytes = 64 << 20;
  SpawnRequest request{.argv = {"/usr/bin/python3", "-c",
                                "import time; held = bytearray(200 << 20); time.sleep(30)"}};
  request.own_session = true;
  const SandboxReport report = run_limited(spec_, request, LimitsBy::kWatchdog);
  EXPECT_TRUE(report.out_of_memory);
  EXPECT_EQ(report.limits, "watchdog");
  EXPECT_GT(report.peak_bytes, 64 << 20);
  EXPECT_LT(report.wall_s, 20);
}

TEST_F(SandboxTest, WatchdogCountsTheWholeTreesMemory) {
  spec_.memory_bytes = 120 << 20;
  const char* script =
      "import os, time\n"
      "for i in range(3):\n"
      "  if os.fork() == 0:\n"
      "    os.setsid(); held = bytearray(60 << 20); time.sleep(30)\n"
      "time.sleep(30)\n";
  SpawnRequest request{.argv = {"/usr/bin/python3", "-c", script}};
  EXPECT_TRUE(run_limited(spec_, request, LimitsBy::kWatchdog).out_of_memory);
}

TEST_F(SandboxTest, WatchdogKillsAForkBomb) {
  spec_.max_processes = 20;
  const std::string mark = "9" + std::to_string(::getpid()) + ".25";
  SpawnRequest request{
      .argv = {"/bin/bash", "-c", "for i in $(seq 400); do sleep " + mark + " & done; wait"},
      .env = {"PATH=/usr/bin:/bin"}};
  const SandboxReport report = run_limited(spec_, request, LimitsBy::kWatchdog);
  EXPECT_EQ(report.error, "killed with more than 20 processes");
  EXPECT_EQ(report.signal, SIGKILL);
  EXPECT_FALSE(is_running(mark));
}

TEST_F(SandboxTest, WatchdogLeavesAnOrderlySubjectAlone) {
  SpawnRequest request{.argv = {"/bin/bash", "-c", "sleep 0.2 & wait; exit 4"},
                       .env = {"PATH=/usr/bin:/bin"}};
  const SandboxReport report = run_limited(spec_, request, LimitsBy::kWatchdog);
  EXPECT_EQ(report.exit_code, 4);
  EXPECT_EQ(report.error, "");
  EXPECT_FALSE(report.out_of_memory);
}

TEST_F(SandboxTest, LogIsCappedAndSaysSo) {
  EXPECT_EQ(run_script("head -c 30000000 /dev/zero; echo the end").exit_code, 0);
  EXPECT_EQ(fs::file_size(spec_.log), kMaxLog);
  EXPECT_TRUE(log().ends_with("[cut here: the log is longer than 8 MiB]\n"));
}

TEST_F(SandboxTest, AFloodDoesNotKeepTheTimeLimitFromActing) {
  spec_.timeout_s = 0.5;
  const SandboxReport report = run_script("yes");
  EXPECT_TRUE(report.timed_out);
  EXPECT_LT(report.wall_s, 20);
}

TEST_F(SandboxTest, StopsWhenAskedTo) {
  std::thread later([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    request_stop(SIGTERM);
  });
  const SandboxReport report = run_script("sleep 60");
  later.join();
  request_stop(0);
  EXPECT_TRUE(report.engine_failed);
  EXPECT_EQ(report.error, "stopped by signal 15");
  EXPECT_LT(report.wall_s, 20);
}

TEST_F(SandboxTest, MakesHomeAndTmpWithoutFollowingPlantedLinks) {
  const fs::path victim = folder_ / "victim";
  fs::create_directories(victim);
  fs::create_directory_symlink(victim / "made", folder_ / "work" / "home");
  spec_.env["HOME"] = "/work/home";
  spec_.env["TMPDIR"] = "/work/tmp";
  prepare_mounts(spec_, ::geteuid() == 0 ? Ownership::kToSubject : Ownership::kKeep);
  EXPECT_TRUE(fs::is_directory(folder_ / "work" / "tmp"));
  EXPECT_FALSE(fs::exists(victim / "made"));
  fs::create_directory_symlink(victim, folder_ / "work" / "bait");
  prepare_mounts(spec_, ::geteuid() == 0 ? Ownership::kToSubject : Ownership::kKeep);
  struct stat info {};
  ASSERT_EQ(::stat(victim.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, ::geteuid());
}

TEST_F(SandboxTest, ProbeOfThePlainProcessSaysThatItIsNotIsolated) {
  const SandboxProbe probe =
      probe_sandbox(SandboxKind::kProcess, folder_ / "cache", PATCHBENCH_ROOT);
  EXPECT_TRUE(probe.usable);
  EXPECT_NE(probe.detail.find("not isolated"), std::string::npos);
  EXPECT_EQ(choose_sandbox(SandboxKind::kProcess, folder_ / "cache", PATCHBENCH_ROOT),
            SandboxKind::kProcess);
}

TEST_F(SandboxTest, ForgetsAnswersButNotWhatAnotherProcessIsTrying) {
  const fs::path probes = folder_ / "cache" / "probe";
  fs::create_directories(probes / "try-another" / "work");
  std::ofstream(probes / "podman.json") << "{}";
  forget_probes(folder_ / "cache");
  EXPECT_FALSE(fs::exists(probes / "podman.json"));
  EXPECT_TRUE(fs::exists(probes / "try-another" / "work"));
  EXPECT_NO_THROW(forget_probes(folder_ / "nowhere"));
}

TEST_F(SandboxTest, AContainersConfigHasNoNetworkNoCapabilitiesAndAReadOnlyRoot) {
  spec_.kind = sandbox_from("runc");
  spec_.mounts.push_back({folder_ / "work", "/env", false});
  const Json config = runc_config(spec_, {.rootfs = "/bundle/rootfs"});
  EXPECT_EQ(config["root"], (Json{{"path", "/bundle/rootfs"}, {"readonly", true}}));
  EXPECT_EQ(config["process"]["user"]["uid"], kSubjectUid);
  EXPECT_EQ(config["process"]["noNewPrivileges"], true);
  for (const auto& [set, held] : config["process"]["capabilities"].items())
    EXPECT_TRUE(held.empty()) << set;
  std::vector<std::string> fresh;
  for (const Json& one : config["linux"]["namespaces"]) {
    EXPECT_FALSE(one.contains("path"));
    fresh.push_back(one["type"]);
  }
  EXPECT_EQ(fresh, (std::vector<std::string>{"pid", "network", "ipc", "uts", "mount"}));
  EXPECT_EQ(config["linux"]["resources"]["memory"]["limit"], spec_.memory_bytes);
  EXPECT_EQ(config["linux"]["resources"]["pids"]["limit"], spec_.max_processes);
  std::map<std::string, std::string> access;
  for (const Json& mount : config["mounts"])
    if (mount["type"] == "bind") access[mount["destination"]] = mount["options"][1];
  EXPECT_EQ(access, (std::map<std::string, std::string>{{"/env", "ro"}, {"/work", "rw"}}));
}

TEST_F(SandboxTest, AContainerWithAGpuTellsTritonWhereTheDriverLies) {
  spec_.kind = SandboxKind::kRunc;
  for (const bool wants_gpu : {false, true}) {
    spec_.wants_gpu = wants_gpu;
    const Json env = runc_config(spec_, {.rootfs = "/bundle/rootfs"})["process"]["env"];
    const std::string word = fmt::format("{}={}", kDriverFolderVariable, kDriverFolder);
    EXPECT_EQ(std::count(env.begin(), env.end(), word), wants_gpu);
  }
}

TEST_F(SandboxTest, WithoutABundleRuncIsNoSandbox) {
  EXPECT_FALSE(find_bundle(folder_ / "cache"));
  const SandboxProbe probe = probe_sandbox(SandboxKind::kRunc, folder_ / "cache", PATCHBENCH_ROOT);
  EXPECT_FALSE(probe.usable);
  EXPECT_NE(probe.detail.find("stage --container"), std::string::npos) << probe.detail;
}

TEST_F(SandboxTest, AnEngineThatFailsItsProbeIsNeitherChosenNorForced) {
  const fs::path bin = folder_ / "bin";
  fs::create_directories(bin);
  for (const char* name : {"podman", "docker", "bwrap"}) {
    std::ofstream(bin / name) << "#!/bin/sh\necho broken on purpose >&2\nexit 125\n";
    fs::permissions(bin / name, fs::perms::owner_all);
  }
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (bin.string() + ":" + path).c_str(), 1);
  const SandboxProbe probe =
      probe_sandbox(SandboxKind::kPodman, folder_ / "cache", PATCHBENCH_ROOT);
  testing::internal::CaptureStderr();
  const SandboxKind chosen = choose_sandbox(std::nullopt, folder_ / "cache", PATCHBENCH_ROOT);
  const std::string announced = testing::internal::GetCapturedStderr();
  std::string refused;
  try {
    choose_sandbox(SandboxKind::kBubblewrap, folder_ / "cache", PATCHBENCH_ROOT);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotRunnable);
    refused = e.what();
  }
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_FALSE(probe.usable);
  EXPECT_NE(probe.detail.find("broken on purpose"), std::string::npos) << probe.detail;
  EXPECT_EQ(chosen, SandboxKind::kProcess);
  EXPECT_NE(announced.find("UNISOLATED"), std::string::npos) << announced;
  EXPECT_NE(refused.find("env doctor"), std::string::npos) << refused;
}

}  // namespace
}  // namespace patchbench::exec
