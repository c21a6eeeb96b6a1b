#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>

#include "cli/cache_entries.h"
#include "cli/commands.h"
#include "core/digest.h"
#include "core/json.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

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
    const std::string text = exit.error.empty() ? exit.err : exit.error;
    damaged.push_back({folder, shown(text.substr(0, text.find('\n')))});
  }
  return damaged;
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

}  // namespace

void add_cache_command(CLI::App& env, Context& context) {
  CLI::App* cache =
      env.add_subcommand("cache", "Patchbench's own folder of fetched and unpacked things");
  cache->require_subcommand(1);
  cache->footer("Examples:\n  patchbench env cache list\n  patchbench env cache gc --dry-run");
  CLI::App* check =
      cache->add_subcommand("verify", "re-hash every fetched file and unpacked environment");
  auto remove = std::make_shared<bool>(false);
  check->add_flag("--remove", *remove, "remove what is damaged; the next run fetches it again");
  check->callback([&context, remove] {
    int checked = 0;
    const std::vector<Damage> damaged = verify(context, checked);
    print_damage(context, damaged, checked, *remove, "patchbench env cache verify --remove");
  });
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
