#include "exec/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// A folder that is gone after the test.
class ProcessTest : public testing::Test {
 protected:
  ProcessTest() {
    std::string pattern = (fs::temp_directory_path() / "patchbench-process-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ProcessTest() override { fs::remove_all(folder_); }
  std::string text_of(const fs::path& file) const {
    std::ifstream in(file);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  fs::path folder_;
};

Command shell(const std::string& script) { return {.argv = {"sh", "-c", script}}; }

/// Whether a process of this id is there and not a zombie.
bool is_alive(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto paren = text.rfind(')');
  return paren != std::string::npos && text.at(paren + 2) != 'Z';
}

/// Waits until a process is gone, at most five seconds.
bool has_gone(const std::string& pid) {
  for (int i = 0; i < 500 && is_alive(pid); ++i) std::this_thread::sleep_for(milliseconds(10));
  return !is_alive(pid);
}

TEST_F(ProcessTest, GivesOutputAndStatusOfAChild) {
  const Exit exit = run(shell("echo words; echo trouble >&2; exit 7"));
  EXPECT_EQ(exit.out, "words\n");
  EXPECT_EQ(exit.err, "trouble\n");
  EXPECT_EQ(exit.exit_code, 7);
  EXPECT_FALSE(exit.ok());
  EXPECT_GT(exit.wall_s, 0);
}

TEST_F(ProcessTest, NamesTheSignalThatKilledAChild) {
  const Exit exit = run(shell("kill -SEGV $$"));
  EXPECT_EQ(exit.signal, SIGSEGV);
  EXPECT_FALSE(exit.ok());
}

TEST_F(ProcessTest, SaysWhyAChildCannotBeStarted) {
  const Exit absent = run({.argv = {"no-such-program-here"}});
  EXPECT_EQ(absent.exit_code, 127);
  EXPECT_EQ(absent.error, "no-such-program-here: not found on PATH");
  EXPECT_FALSE(absent.ok());

  const fs::path bad = folder_ / "bad";
  std::ofstream(bad) << "#!/no/such/interpreter\n";
  fs::permissions(bad, fs::perms::owner_all);
  EXPECT_NE(run({.argv = {bad.string()}}).error.find("cannot be started: No such file"),
            std::string::npos);

  Command lost = shell("true");
  lost.cwd = folder_ / "nowhere";
  EXPECT_NE(run(lost).error.find("nowhere: No such file"), std::string::npos);
}

TEST_F(ProcessTest, KillsTheWholeGroupOnTimeOut) {
  Command command = shell("trap '' TERM; (trap '' TERM; echo $BASHPID; sleep 100) & sleep 100");
  command.argv[0] = "bash";
  command.timeout = milliseconds(200);
  const Exit exit = run(command);
  EXPECT_TRUE(exit.timed_out);
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_LT(exit.wall_s, 20);
  ASSERT_GT(exit.out.size(), 1u);
  EXPECT_TRUE(has_gone(exit.out.substr(0, exit.out.size() - 1)));
}

TEST_F(ProcessTest, LetsAChildCleanUpOnTimeOut) {
  Command command = shell("trap 'echo cleaned; exit 3' TERM; sleep 100 & wait");
  command.timeout = milliseconds(200);
  const Exit exit = run(command);
  EXPECT_TRUE(exit.timed_out);
  EXPECT_EQ(exit.out, "cleaned\n");
}

TEST_F(ProcessTest, DoesNotWaitForWhatADescendantHoldsOpen) {
  const Exit exit = run(shell("sleep 100 & echo $!"));
  EXPECT_TRUE(exit.ok());
  EXPECT_LT(exit.wall_s, 20);
  ::kill(static_cast<pid_t>(std::stol(exit.out)), SIGKILL);
}

TEST_F(ProcessTest, AddsToTheEnvironmentOrReplacesIt) {
  ::setenv("PATCHBENCH_TEST_INHERITED", "yes", 1);
  Command command = shell("echo \"$PATCHBENCH_TEST_INHERITED,$ADDED\"");
  command.env["ADDED"] = "too";
  EXPECT_EQ(run(command).out, "yes,too\n");
  command.clear_env = true;
  EXPECT_EQ(run(command).out, ",too\n");
  ::unsetenv("PATCHBENCH_TEST_INHERITED");
}

TEST_F(ProcessTest, WritesOutputToFiles) {
  Command command = shell("echo a; echo b >&2");
  command.stdout_file = command.stderr_file = folder_ / "log";
  const Exit both = run(command);
  EXPECT_EQ(text_of(folder_ / "log"), "a\nb\n");
  EXPECT_EQ(both.out + both.err, "");

  command.stdout_file = folder_ / "no" / "folder";
  EXPECT_NE(run(command).error.find("cannot be written"), std::string::npos);
}

TEST_F(ProcessTest, CapsWhatItCaptures) {
  const Exit exit = run(shell("head -c 20000000 /dev/zero"));
  EXPECT_TRUE(exit.ok());
  EXPECT_EQ(exit.out.size(), std::size_t{16} << 20);
}

TEST_F(ProcessTest, ReadsCompleteRecordsFromTheirOwnDescriptor) {
  std::vector<std::string> records;
  Command command = shell("echo one >&7; echo decoy; printf 'two\\nhalf' >&7");
  command.records_fd_in_child = 7;
  command.on_record = [&](const std::string& line) { records.push_back(line); };
  const Exit exit = run(command);
  EXPECT_EQ(exit.out, "decoy\n");
  EXPECT_EQ(records, (std::vector<std::string>{"one", "two"}));
}

TEST_F(ProcessTest, ReadsRecordsLargerThanAPipe) {
  std::size_t bytes = 0;
  Command command = shell("head -c 3000000 /dev/zero | tr '\\0' x >&3; echo >&3");
  command.records_fd_in_child = 3;
  command.on_record = [&](const std::string& line) { bytes += line.size(); };
  EXPECT_TRUE(run(command).ok());
  EXPECT_EQ(bytes, 3000000u);
}

TEST_F(ProcessTest, PassesOnWhatARecordCallbackThrowsAndLeavesNoChild) {
  std::string pid;
  Command command = shell("echo $$ >&3; sleep 100");
  command.records_fd_in_child = 3;
  command.on_record = [&](const std::string& line) {
    pid = line;
    throw std::runtime_error("no good");
  };
  EXPECT_THROW(static_cast<void>(run(command)), std::runtime_error);
  ASSERT_NE(pid, "");
  EXPECT_TRUE(has_gone(pid));
}

TEST_F(ProcessTest, HandsNoOtherDescriptorToTheChild) {
  const int leaky = ::open("/dev/null", O_RDONLY);
  ASSERT_GE(leaky, 3);
  // `ls` itself holds one descriptor on the folder that it lists.
  const Exit exit = run({.argv = {"ls", "/proc/self/fd"}});
  ::close(leaky);
  EXPECT_EQ(exit.out, "0\n1\n2\n3\n");
}

TEST_F(ProcessTest, GivesTheChildAnEmptyStdinAndDefaultSignals) {
  ::signal(SIGPIPE, SIG_IGN);
  const Exit exit = run(shell("cat; grep SigIgn /proc/self/status"));
  ::signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(exit.out, "SigIgn:\t0000000000000000\n");
}

TEST_F(ProcessTest, FindsProgramsOnThePath) {
  EXPECT_TRUE(find_program("sh").ends_with("/sh"));
  EXPECT_EQ(find_program("/bin/sh"), "/bin/sh");
  EXPECT_EQ(find_program("no-such-program-here"), "");
  EXPECT_EQ(find_program("/tmp"), "");
  EXPECT_EQ(find_program(""), "");
}

}  // namespace
}  // namespace patchbench::exec
