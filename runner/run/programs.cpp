#include "run/programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/process.h"
#include "exec/progress.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// The release that the judge of the wheel is compiled for, as its distribution is named.
constexpr const char* kTorch = "torch-2.11.0.dist-info";

/// A program of a build, else what the judge of the wheel has under a word.
Program of_build_or_wheel(const Context& context, const std::string& name,
                          const std::string& word) {
  const fs::path own = context.bin / name, wheel = context.bin / "patchbench-judge";
  if (fs::exists(own)) return {own, {own.string()}};
  if (fs::exists(wheel)) return {wheel, {wheel.string(), word}, true};
  return {};
}

}  // namespace

Program judge_program(const Context& context, const std::string& slug) {
  return of_build_or_wheel(context, "repro_" + slug, slug);
}

Program search_program(const Context& context) {
  return of_build_or_wheel(context, "explore_function", "explore_function");
}

Program sandbox_program(const Context& context) {
  const fs::path own = context.bin / "patchbench-sandbox", of_all = context.bin / "patchbench";
  if (fs::exists(own)) return {own, {own.string()}};
  return {of_all, {of_all.string(), "sandbox"}};
}

fs::path libtorch_for(const Context& context, const exec::Environment& environment) {
  for (const fs::path& site : environment.sites) {
    if (fs::exists(site / kTorch)) return site / "torch/lib";
  }
  fs::path installed = exec::host_folder(environment, "torch/lib");
  if (!installed.empty() && is_locked_libtorch(installed, context.root / "env/locks/judge.txt"))
    return installed;
  // Its libraries know no Python; the lock's rows for one interpreter serve all.
  const exec::Environment own =
      exec::locked_environment({"judge"}, "cp311", context.cache, context.root);
  return own.sites.front() / "torch/lib";
}

bool is_locked_libtorch(const fs::path& folder, const fs::path& lock) {
  std::map<std::string, std::string> digests;  // of the folder's files, each read once
  std::map<std::string, bool> is_equal;        // by tag
  std::istringstream rows(file_text(lock).value_or(""));
  for (std::string row; std::getline(rows, row);) {
    std::istringstream fields(row);
    std::string mark, what, tag, name, sha256;
    if (!(fields >> mark >> what >> tag >> name >> sha256) || mark + what != "#libtorch") continue;
    bool& equal = is_equal.try_emplace(tag, true).first->second;
    if (equal && !digests.contains(name)) digests[name] = file_sha256(folder / name);
    equal = equal && digests[name] == sha256;
  }
  return std::any_of(is_equal.begin(), is_equal.end(), [](const auto& one) { return one.second; });
}

JudgeDevice judge_device(const Program& judge, const fs::path& libtorch, const Device& device) {
  if (!device.is_gpu()) return {};
  exec::Command command{.argv = judge.argv};
  command.argv.insert(command.argv.end(), {"--probe", device.text()});
  if (!libtorch.empty()) command.env["LD_LIBRARY_PATH"] = libtorch.string();
  const exec::Exit exit = exec::run(command);
  const Json said = Json::parse(exit.out, nullptr, false);
  if (!exit.ok() || !said.is_object())
    throw Error(ErrorCode::kInternal,
                fmt::format("{} --probe {}: {}", judge.file.string(), device.text(),
                            shown(exit.error.empty() ? exit.err : exit.error)));
  const auto on = Device::parse(said.at("device").get<std::string>()).value_or(Device{});
  exec::progress(on == device ? "oracle on the CPU, plain computation on " + device.text()
                              : fmt::format("oracle and plain computation on the CPU: {}",
                                            said.at("why").get<std::string>()));
  return {on, said.at("has_ops").get<bool>()};
}

}  // namespace patchbench
