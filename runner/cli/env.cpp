#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/doctor.h"
#include "core/json.h"
#include "exec/choice.h"
#include "exec/image.h"
#include "exec/sandbox.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

void images(const Context& context, bool ensure) {
  report::Table table({"engine", "image", "python", "id", "tree digest"});
  Json list = Json::array();
  for (const exec::SandboxKind kind : {exec::SandboxKind::kPodman, exec::SandboxKind::kDocker}) {
    const exec::SandboxProbe probe = exec::probe_sandbox(kind, context.cache, context.root);
    const std::string name = exec::sandbox_name(kind);
    if (!probe.usable) {
      context.err() << fmt::format("{}: {}\n", name, probe.detail);
      continue;
    }
    const auto image = ensure
                           ? exec::ensure_base_image(kind, "bookworm", context.cache, context.root)
                           : exec::find_base_image(kind, "bookworm", context.cache, context.root);
    if (!image) {
      context.err() << fmt::format(
          "{}: no base image yet; patchbench env images --ensure builds it\n", name);
      continue;
    }
    table.add(
        {name, "bookworm", image->tag, image->id.substr(0, 19), image->tree_digest.substr(0, 12)});
    list.push_back({{"engine", name},
                    {"image", "bookworm"},
                    {"python", image->python},
                    {"tag", image->tag},
                    {"id", image->id},
                    {"tree_digest", image->tree_digest}});
  }
  if (context.json) {
    print_json(context, list);
  } else if (table.num_rows() > 0) {
    context.out() << table.render(table_style(context));
  }
}

}  // namespace

void add_env_command(CLI::App& app, Context& context) {
  CLI::App* env =
      app.add_subcommand("env", "Patchbench's own machine: sandboxes, cache, locks, the judge");
  env->require_subcommand(1);
  env->footer(
      "What a training job has: patchbench job env.\n"
      "Examples:\n  patchbench env doctor\n  patchbench env cache list");
  CLI::App* look =
      env->add_subcommand("doctor", "what is here, what is missing and the command that brings it");
  look->callback([&context] { doctor(context); });
  CLI::App* list = env->add_subcommand("images", "the base images of podman and docker");
  auto ensure = std::make_shared<bool>(false);
  list->add_flag("--ensure", *ensure,
                 "build what is not there (needs root and debootstrap; about three minutes)");
  list->callback([&context, ensure] { images(context, *ensure); });
  add_selftest_command(*env, context);
  add_pins_command(*env, context);
  add_cache_command(*env, context);
  add_completion_command(app, *env, context);
}

}  // namespace patchbench::cli
