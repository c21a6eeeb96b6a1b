#include "run/programs.h"

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
  // Its libraries know no Python; the lock's rows for one interpreter serve all.
  const exec::Environment own =
      exec::locked_environment({"judge"}, "cp311", context.cache, context.root);
  return own.sites.front() / "torch/lib";
}

}  // namespace patchbench
