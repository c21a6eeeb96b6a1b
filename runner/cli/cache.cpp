#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>

#include "cli/cache_entries.h"
#include "cli/commands.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "job/cache_picks.h"
#include "job/cache_sync.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
void add_cache_command(CLI::App& app, Context& context);

namespace {

namespace fs = std::filesystem;

/// One entry of the cache that does not hold what its name says.
struct Damage {
  fs::path entry;
  std::string reason;
};

/// Re-hashes every fetched file (its folder is named by its digest) and every unpacked environment.
std::vector<Damage> verify(const Context& context, int& checked) {
  std::vector<Damage> damaged;
  for (const fs::path& folder : entries_of(context.cache / "files")) {
    if (!is_hex(folder.filename().string(), 64)) continue;
    for (const fs::path& file : entries_of(folder)) {
      if (file.extension() == ".part") continue;
      ++checked;
      if (file_sha256(file) != folder.filename())
        damaged.push_back(
            {folder, file.filename().string() + ": its digest is not the one it was fetched by"});
    }
  }
  for (const fs::path& folder : entries_of(context.cache / "env")) {
    if (!fs::exists(folder / "patchbench-env.json")) continue;
    ++checked;
    exec::progress("verifying " + folder.filename().string());
    const exec::Exit exit =
        exec::run({.argv = {"python3", context.root / "env/fetch.py", "verify", folder}});
    if (exit.ok()) continue;
    const std::string words = exit.error.empty() ? exit.err : exit.error;
    damaged.push_back({folder, shown(words.substr(0, words.find('\n')))});
  }
  return damaged;
}

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

void verify_cache(Context& context, const std::vector<std::string>& folders, bool remove) {
  int checked = 0;
  const std::vector<Damage> damaged =
      folders.empty() ? verify(context, checked) : verify_picks(folders, checked);
  Json list = Json::array();
  for (const Damage& damage : damaged) {
    if (remove) fs::remove_all(damage.entry);
    list.push_back(
        {{"entry", damage.entry.string()}, {"reason", damage.reason}, {"removed", remove}});
    if (!context.json)
      context.out() << fmt::format("damaged{}: {}: {}\n", remove ? ", removed" : "",
                                   damage.entry.string(), damage.reason);
  }
  if (context.json) {
    print_json(context, {{"checked", checked}, {"damaged", list}});
  } else {
    context.out() << fmt::format(
        "{} entries checked, {} damaged{}\n", checked, damaged.size(),
        damaged.empty() || remove
            ? ""
            : "; patchbench cache verify --remove lets the next run fetch them again");
  }
  context.exit_code = damaged.empty() ? 0 : 1;
}

Json entry_json(const CacheEntry& entry) {
  return {{"path", entry.path.string()},
          {"kind", entry.kind},
          {"bytes", entry.bytes},
          {"needed_by", entry.needed_by},
          {"days_old", entry.days_old}};
}

std::string mib(uintmax_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

/// What the cache holds: for people one line for each kind and reason.
void list_cache(const Context& context) {
  const std::vector<CacheEntry> entries = cache_entries(context);
  uintmax_t total = 0;
  Json list = Json::array();
  std::map<std::pair<std::string, std::string>, std::pair<int, uintmax_t>> groups;
  for (const CacheEntry& entry : entries) {
    total += entry.bytes;
    list.push_back(entry_json(entry));
    auto& [count, bytes] = groups[{entry.kind, entry.needed_by}];
    ++count;
    bytes += entry.bytes;
  }
  if (context.json) return print_json(context, {{"bytes", total}, {"entries", list}});
  report::Table table({"kind", "needed by", "entries", "MiB"});
  for (const auto& [key, sum] : groups)
    table.add({key.first, key.second.empty() ? "nothing" : key.second, std::to_string(sum.first),
               mib(sum.second)});
  context.out() << table.render(table_style(context));
  context.out() << fmt::format("{}: {} MiB\n", context.cache.string(), mib(total));
}

/// Removes what nothing needs; a later command makes or fetches anew whatever it wants.
void collect_garbage(const Context& context, int days, bool is_shown_only) {
  Json list = Json::array();
  uintmax_t bytes = 0;
  for (const CacheEntry& entry : cache_entries(context)) {
    if (!entry.needed_by.empty() || entry.days_old < days) continue;
    if (!is_shown_only) fs::remove_all(entry.path);
    bytes += entry.bytes;
    list.push_back(entry_json(entry));
    if (!context.json && is_shown_only)
      context.out() << fmt::format("{} {} MiB\n", entry.path.string(), mib(entry.bytes));
  }
  if (context.json) {
    print_json(
        context,
        {{"removed", is_shown_only ? Json::array() : list}, {"removable", list}, {"bytes", bytes}});
  } else {
    context.out() << fmt::format("{} entries {}, {} MiB\n", list.size(),
                                 is_shown_only ? "would go" : "removed", mib(bytes));
  }
}

struct SyncOptions {
  std::string source, destination;
  bool or_private = false;
};

/// Where the copy goes: the folder asked for, or one of this user's own if that one is unfit.
fs::path destination_of(const Context& context, const SyncOptions& words) {
  const std::string unfit = job::unfit_destination(words.destination);
  if (unfit.empty()) return words.destination;
  if (!words.or_private)
    throw Error(ErrorCode::kNotRunnable,
                unfit + "; chmod go-w it, or --or-private copies to a folder of your own");
  const fs::path own = context.cache / "compile" /
                       sha256_hex(fs::absolute(words.destination).string()).substr(0, 16);
  context.err() << fmt::format("patchbench: {}; goes to {} instead\n", unfit, own.string());
  return own;
}

void sync(const Context& context, const SyncOptions& words) {
  const fs::path destination = destination_of(context, words);
  const job::SyncReport report = job::sync_cache(words.source, destination);
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

void add_cache_command(CLI::App& app, Context& context) {
  CLI::App* cache = app.add_subcommand("cache", "the folder of fetched and unpacked things");
  cache->require_subcommand(1);
  cache->footer("Examples:\n  patchbench cache list\n  patchbench cache gc --dry-run");
  CLI::App* check =
      cache->add_subcommand("verify",
                            "re-hash every fetched file and unpacked environment; or, of compile "
                            "caches, refuse autotuners' picks of inf ms");
  auto folders = std::make_shared<std::vector<std::string>>();
  check->add_option("dir", *folders, "compile caches (default: Patchbench's own cache)");
  auto remove = std::make_shared<bool>(false);
  check->add_flag("--remove", *remove, "remove what is damaged; the next run fetches it again");
  check->callback([&context, folders, remove] { verify_cache(context, *folders, *remove); });
  CLI::App* copy = cache->add_subcommand("sync", "bring a compile cache to another folder");
  auto words = std::make_shared<SyncOptions>();
  copy->add_option("src", words->source, "of inductor, Triton or TileLang")->required();
  copy->add_option("dst", words->destination, "where only you can write")->required();
  copy->add_flag("--or-private", words->or_private,
                 "where dst is unfit, copy to a folder of your own and say so");
  copy->footer(
      "Files appear whole or not at all; what matches by SHA-256 is skipped; any number may run "
      "at\n"
      "once. A dst that another user can write to is refused: a compile cache is code.\n"
      "Exit: 0 done, 2 usage, 4 dst is unfit.");
  copy->callback([&context, words] { sync(context, *words); });
  cache->add_subcommand("list", "what is in it, how large, and what needs it")
      ->callback([&context] { list_cache(context); });
  CLI::App* collect = cache->add_subcommand(
      "gc", "remove what no pin and no lock names, old work folders and what was interrupted");
  auto days = std::make_shared<int>(7);
  collect->add_option("--days", *days, "keep what is younger")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  auto is_shown_only = std::make_shared<bool>(false);
  collect->add_flag("--dry-run", *is_shown_only, "say what would go");
  collect->callback(
      [&context, days, is_shown_only] { collect_garbage(context, *days, *is_shown_only); });
}

}  // namespace patchbench::cli
