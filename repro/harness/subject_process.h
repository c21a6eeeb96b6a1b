#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "harness/answer.h"
#include "harness/request.h"

namespace patchbench::harness {

/// One case as it is handed to a subject outside this process.
struct SubjectCase {
  const Case* item = nullptr;  ///< not owned, never null
  Tensors inputs;              ///< on the CPU
  int64_t output_bytes = 0;    ///< of the right outputs: bounds what is read back
  Tensors bands = {};          ///< input -> the guard bands that lie around it
};

/// Writes the inputs and the list of cases into a work folder, and removes what an earlier process
/// left there; `watched`: request.h. Throws Error(kInternal) where it cannot be written.
void write_work_folder(const std::filesystem::path& work, const std::string& device,
                       const std::vector<SubjectCase>& cases, const Json& watched = Json::object());
/// The answers as the two files of a work folder tell them, one for each case. Throws Error(kUsage)
/// if either is malformed.
std::map<std::string, Answer> read_answers(const std::filesystem::path& work,
                                           const std::vector<SubjectCase>& cases);

/// Writes the work folder, runs the command once for all cases and reads what it left, trusting
/// nothing: outputs and report are regular files of bounded size, opened without following links or
/// waiting on pipes, parsed strictly. Whatever the subject does, each case gets an answer. Throws
/// Error(kInternal) only for what is ours: the work folder cannot be written, the command not
/// started, the sandbox's engine failed.
std::map<std::string, Answer> run_subject(const SubjectCommand& command,
                                          const std::filesystem::path& work,
                                          const std::string& device,
                                          const std::vector<SubjectCase>& cases,
                                          const Json& watched = Json::object());

/// The bytes of a file an untrusted process left: a regular file with one link, of at most `limit`
/// bytes. Throws Error(kUsage)
/// `<name>: <reason>`.
std::string read_untrusted(const std::filesystem::path& file, std::size_t limit);

}  // namespace patchbench::harness
