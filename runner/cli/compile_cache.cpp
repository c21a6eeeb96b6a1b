#include <fmt/format.h>

#include <memory>

#include "cli/cache_entries.h"
#include "cli/commands.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "job/cache_picks.h"
#include "job/cache_sync.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// The choices of autotuners in compile caches.
std::vector<Damage> verify_picks(const std::vector<std::string>& folders, int& checked) {
  std::vector<Damage> damaged;
  for (const std::string& folder : folders) {
    if (!fs::is_directory(folder))
      throw Error(ErrorCode::kUsage, folder + ": is no folder; name a compile cache");
    int64_t num_checked = 0;
    for (const job::BadPick& pick : job::bad_picks(folder, num_checked))
      damaged.push_back({pick.file, pick.reason});
    checked += static_cast<int>(num_checked);
  }
  return damaged;
}

struct SyncOptions {
  std::string source, destination;
  bool or_private = false;
};

/// Where the copy goes: the folder asked for, or one of this user's own if that one is unfit.
fs::path destination_of(const Context& context, const SyncOptions& options) {
  const std::string unfit = job::unfit_destination(options.destination);
  if (unfit.empty()) return options.destination;
  if (!options.or_private)
    throw Error(ErrorCode::kNotRunnable,
                unfit + "; chmod go-w it, or --or-private copies to a folder of your own");
  const fs::path own = context.cache / "compile" /
                       sha256_hex(fs::absolute(options.destination).string()).substr(0, 16);
  context.err() << fmt::format("patchbench: {}; goes to {} instead\n", unfit, own.string());
  return own;
}

void sync(const Context& context, const SyncOptions& options) {
  const fs::path destination = destination_of(context, options);
  const job::SyncReport report = job::sync_cache(options.source, destination);
  if (context.json) {
    print_json(context, Json{{"destination", fs::absolute(destination).string()},
                             {"copied", report.num_copied},
                             {"matched", report.num_matched},
                             {"bytes", report.bytes},
                             {"left_out", report.left_out}});
    return;
  }
  for (const std::string& line : report.left_out)
    context.out() << fmt::format("left out: {}\n", line);
  context.out() << fmt::format("{}: {} files copied ({} MiB), {} there already, {} left out\n",
                               destination.string(), report.num_copied, report.bytes >> 20,
                               report.num_matched, report.left_out.size());
}

}  // namespace

void add_compile_cache_command(CLI::App& job, Context& context) {
  CLI::App* cache = job.add_subcommand("cache", "a compile cache of inductor, Triton or TileLang");
  cache->require_subcommand(1);
  CLI::App* check = cache->add_subcommand("verify", "refuse autotuners' picks of inf ms");
  auto folders = std::make_shared<std::vector<std::string>>();
  check->add_option("dir", *folders, "compile caches")->required();
  auto remove = std::make_shared<bool>(false);
  check->add_flag("--remove", *remove, "remove what is damaged");
  check->callback([&context, folders, remove] {
    int checked = 0;
    const std::vector<Damage> damaged = verify_picks(*folders, checked);
    print_damage(context, damaged, checked, *remove, "patchbench job cache verify DIR --remove");
  });
  CLI::App* copy = cache->add_subcommand("sync", "bring a compile cache to another folder");
  auto options = std::make_shared<SyncOptions>();
  copy->add_option("src", options->source, "the cache as it is")->required();
  copy->add_option("dst", options->destination, "where only you can write")->required();
  copy->add_flag("--or-private", options->or_private,
                 "where dst is unfit, copy to a folder of your own and say so");
  copy->footer(
      "Files appear whole or not at all; what matches by SHA-256 is skipped; any number may run "
      "at\n"
      "once. A dst that another user can write to is refused (exit 4): a compile cache is code.");
  copy->callback([&context, options] { sync(context, *options); });
}

}  // namespace patchbench::cli
