#include "harness/subject_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "exec/process.h"
#include "harness/guard_bands.h"
#include "harness/scenario.h"
#include "harness/subject_report.h"
#include "harness/tensor_file.h"

namespace patchbench::harness {
namespace {

constexpr std::size_t kMaxReport = std::size_t{1} << 20;
/// Over the right outputs' size: room for a header, and for outputs of a wider dtype or a wrong
/// shape, which are then judged wrong rather than unread.
constexpr std::size_t kOutputSlack = std::size_t{1} << 20;
/// Past the sandbox's own limit, so that its account of a time-out is the one that is read.
constexpr double kGrace = 30;

/// Closes a descriptor at the end of a scope.
struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

void write_file(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush())
    throw Error(ErrorCode::kInternal, file.string() + ": cannot be written; is the disk full?");
}

/// Never follows a link.
void remove_entry(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::remove_all(file, error);
  if (error)
    throw Error(ErrorCode::kInternal, file.string() + ": cannot be removed: " + error.message());
}

/// The tensors of one run take up to a gigabyte, and a seed makes the inputs again.
void remove_tensors(const std::filesystem::path& work) {
  remove_entry(work / "inputs.safetensors");
  remove_entry(work / "outputs.safetensors");
}

/// The sandbox's own report, or null where the command has none. It lies out of the subject's
/// reach.
Json sandbox_report(const SubjectCommand& command) {
  if (command.report.empty() || !std::filesystem::exists(command.report)) return nullptr;
  const Json report = parse_json(read_text(command.report), command.report.string());
  if (report.value("engine_failed", false)) {
    throw Error(ErrorCode::kInternal,
                "the sandbox failed: " + printable(report.value("error", "no reason given")));
  }
  return report;
}

/// Why a process that ended this way has no answers, or "".
std::string bad_end(const exec::Exit& exit, const Json& report) {
  if (!report.is_null()) {
    if (report.value("timed_out", false)) return "timed out";
    if (report.value("out_of_memory", false)) return "over its memory limit";
    if (report.value("signal", 0) != 0)
      return fmt::format("killed by signal {}", report.value("signal", 0));
    if (report.value("exit_code", 0) != 0)
      return fmt::format("exited with {}", report.value("exit_code", 0));
  }
  if (exit.timed_out) return "timed out";
  if (exit.signal != 0) return fmt::format("killed by signal {}", exit.signal);
  return exit.exit_code == 0 ? "" : fmt::format("exited with {}", exit.exit_code);
}

Json outside_of(const exec::Exit& exit, const Json& report) {
  Json outside = {{"wall_s", exit.wall_s}, {"exit_code", exit.exit_code}, {"signal", exit.signal}};
  if (report.is_null()) return outside;
  for (const char* key : {"wall_s", "exit_code", "signal", "peak_bytes", "meter", "limits"}) {
    if (report.contains(key)) outside[key] = report[key];
  }
  return outside;
}

/// The last line on stderr, where a Python traceback names its error. For a person; nothing is
/// decided by it.
std::string last_lines(const exec::Exit& exit) {
  const std::size_t end = exit.err.find_last_not_of("\n ");
  if (end == std::string::npos) return "";
  const std::size_t begin = exit.err.rfind('\n', end);
  return ": " + printable(std::string_view(exit.err).substr(
                    begin == std::string::npos ? 0 : begin + 1, end - begin));
}

/// Splits "<case>/<tensor>"; every tensor belongs to a case that says ok.
std::map<std::string, Tensors> by_case(Tensors&& all, const SubjectReport& report) {
  std::map<std::string, Tensors> cases;
  for (auto& [name, tensor] : all) {
    const std::size_t slash = name.find('/');
    const std::string owner = name.substr(0, slash);
    const auto found = report.cases.find(owner);
    if (slash == std::string::npos || found == report.cases.end() || found->second.status != "ok") {
      throw Error(ErrorCode::kUsage, "outputs.safetensors: tensor '" + printable(name, 60) +
                                         "' belongs to no case that says ok");
    }
    cases[owner].emplace(name.substr(slash + 1), std::move(tensor));
  }
  return cases;
}

}  // namespace

void write_work_folder(const std::filesystem::path& work, const std::string& device,
                       const std::vector<SubjectCase>& cases, const Json& watched) {
  std::filesystem::create_directories(work);
  // A file of an earlier process must not count as an output of this one.
  remove_tensors(work);
  remove_entry(work / "cases.json");
  remove_entry(work / "subject.json");
  Tensors storages;
  Json list = Json::array();
  for (const SubjectCase& one : cases) {
    Json inputs = Json::object();
    for (const auto& [name, tensor] : one.inputs) {
      const std::string storage = one.item->name + "/" + name;
      inputs[name] = view_json(tensor, storage);
      if (const auto bands = one.bands.find(name); bands != one.bands.end())
        inputs[name]["guard"] = bands->second.size(1);
      storages.emplace(storage, storage_of(tensor));
    }
    list.push_back({{"name", one.item->name}, {"axes", one.item->axes}, {"inputs", inputs}});
  }
  write_file(work / "inputs.safetensors", tensors_to_bytes(storages));
  Json plan = {{"device", device}, {"cases", list}};
  plan.update(watched);
  write_file(work / "cases.json", plan.dump());
}

std::map<std::string, Answer> read_answers(const std::filesystem::path& work,
                                           const std::vector<SubjectCase>& cases) {
  std::vector<std::string> wanted;
  std::size_t limit = kOutputSlack;
  for (const SubjectCase& one : cases) {
    wanted.push_back(one.item->name);
    limit += 4 * static_cast<std::size_t>(one.output_bytes);
    for (const auto& [name, bands] : one.bands) limit += bands.nbytes();
  }
  const SubjectReport report =
      parse_subject_report(read_untrusted(work / "subject.json", kMaxReport), wanted);
  std::map<std::string, Tensors> outputs =
      by_case(tensors_from_bytes(read_untrusted(work / "outputs.safetensors", limit),
                                 "outputs.safetensors"),
              report);
  std::map<std::string, Answer> answers;
  Json watched = report.watched;  // of the process, so it is said once
  for (const std::string& name : wanted) {
    const auto found = report.cases.find(name);
    if (found == report.cases.end()) {
      answers.emplace(name, Answer::unresolved("subject.json says nothing of this case"));
      continue;
    }
    const CaseReport& said = found->second;
    Answer answer;
    answer.self_reported = report.facts;
    answer.self_reported.update(std::exchange(watched, Json::object()));
    answer.self_reported.update(said.facts);
    if (said.status == "ok") {
      answer.state = Answer::State::kOutputs;
      answer.outputs = std::move(outputs[name]);
      answer.bands = take_bands(answer.outputs);
      answer.kept = take_kept(answer.outputs);
    } else if (said.status == "unsupported") {
      answer.state = Answer::State::kUnsupported;
      answer.reason = said.reason;
    } else {
      answer.reason = "raised " + said.facts["exception"]["type"].get<std::string>() +
                      (said.reason.empty() ? "" : ": " + said.reason);
    }
    answers.emplace(name, std::move(answer));
  }
  return answers;
}

std::string read_untrusted(const std::filesystem::path& file, std::size_t limit) {
  const std::string name = file.filename().string();
  // O_NONBLOCK: a FIFO must not hang us; O_NOFOLLOW: a link could show another file's bytes as an
  // output.
  const Descriptor fd{
      ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)};
  if (fd.value < 0) {
    throw Error(ErrorCode::kUsage,
                name + (errno == ENOENT  ? ": is not there"
                        : errno == ELOOP ? ": is a symbolic link"
                                         : std::string(": ") + std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(fd.value, &info) != 0 || !S_ISREG(info.st_mode))
    throw Error(ErrorCode::kUsage, name + ": is no regular file");
  if (info.st_nlink != 1) throw Error(ErrorCode::kUsage, name + ": is a hard link to another file");
  if (static_cast<uint64_t>(info.st_size) > limit) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: {} bytes are over the limit of {}", name, info.st_size, limit));
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(fd.value, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw Error(ErrorCode::kUsage, name + ": is shorter than it says");
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

std::map<std::string, Answer> run_subject(const SubjectCommand& command,
                                          const std::filesystem::path& work,
                                          const std::string& device,
                                          const std::vector<SubjectCase>& cases,
                                          const Json& watched) {
  write_work_folder(work, device, cases, watched);
  if (!command.report.empty()) std::filesystem::remove(command.report);
  exec::Command child;
  child.argv = command.argv;
  const double patience = command.timeout_s + (command.report.empty() ? 0.0 : kGrace);
  child.timeout = std::chrono::milliseconds(static_cast<int64_t>(patience * 1000));
  const exec::Exit exit = exec::run(child);
  if (!exit.error.empty())
    throw Error(ErrorCode::kInternal, "the subject's command: " + exit.error);
  const Json report = sandbox_report(command);
  std::map<std::string, Answer> answers;
  std::string why = bad_end(exit, report);
  if (why.empty()) {
    try {
      answers = read_answers(work, cases);
    } catch (const std::exception& e) {
      // Not only Error: torch refuses some shapes with its own type, and no shape of a subject's
      // may end this process.
      why = e.what();
    }
  } else {
    why = "the subject's process " + why + last_lines(exit);
  }
  remove_tensors(work);
  for (const SubjectCase& one : cases) {
    Answer& answer =
        answers.try_emplace(one.item->name, Answer::unresolved(printable(why, 300))).first->second;
    answer.outside = outside_of(exit, report);
  }
  return answers;
}

}  // namespace patchbench::harness
