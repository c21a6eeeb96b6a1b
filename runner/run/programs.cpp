#include "run/programs.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// The release that the judge of the wheel is compiled for, as its distribution is named.
constexpr const char* kTorch = "torch-2.11.0.dist-info";

}  // namespace

Program judge_program(const Context& context, const std::string& slug) {
  const fs::path own = context.bin / ("repro_" + slug), of_all = context.bin / "patchbench-judge";
  if (fs::exists(own)) return {own, {own.string()}};
  if (fs::exists(of_all)) return {of_all, {of_all.string(), slug}, true};
  return {};
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
  // Its libraries know no Python; the lock's rows for one interpreter serve all.
  const exec::Environment own =
      exec::locked_environment({"judge"}, "cp311", context.cache, context.root);
  return own.sites.front() / "torch/lib";
}

}  // namespace patchbench
