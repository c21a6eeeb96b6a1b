#include <fmt/format.h>
#include <fmt/ostream.h>

#include <chrono>
#include <iostream>
#include <memory>

#include "cli/context.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "env/cache_sync.h"
#include "exec/process.h"

namespace patchbench::cli {
void add_cache_command(CLI::App& app, Context& context);

namespace {

namespace fs = std::filesystem;

/// The entries of a folder; none if it is not there.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> list;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed))
    list.push_back(it->path());
  return list;
}

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
    progress("verifying " + folder.filename().string());
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
    for (const env::BadPick& pick : env::bad_picks(folder, num_checked))
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
      fmt::print(std::cout, "damaged{}: {}: {}\n", remove ? ", removed" : "", damage.entry.string(),
                 damage.reason);
  }
  if (context.json) {
    print_json({{"checked", checked}, {"damaged", list}});
  } else {
    fmt::print(std::cout, "{} entries checked, {} damaged{}\n", checked, damaged.size(),
               damaged.empty() || remove
                   ? ""
                   : "; patchbench cache verify --remove lets the next run fetch them again");
  }
  context.exit_code = damaged.empty() ? 0 : 1;
}

uintmax_t size_of(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(fs::symlink_status(path, ignored))) return fs::file_size(path, ignored);
  uintmax_t total = 0;
  for (fs::recursive_directory_iterator it(path, ignored), end; it != end; it.increment(ignored)) {
    std::error_code failed;
    if (fs::is_regular_file(it->symlink_status(failed))) total += it->file_size(failed);
  }
  return total;
}

/// Work folders of ended runs, and what an interrupted fetch or build left; a later command makes
/// anew whatever it needs.
void prune_cache(const Context& context, int days) {
  const auto cut = fs::file_time_type::clock::now() - std::chrono::hours(24) * days;
  std::vector<fs::path> old;
  for (const char* part : {"runs", "selftest"}) {
    for (const fs::path& entry : entries_of(context.cache / part)) {
      if (fs::last_write_time(entry) < cut) old.push_back(entry);
    }
  }
  for (const char* part : {"env", "images"}) {
    for (const fs::path& entry : entries_of(context.cache / part)) {
      const std::string kind = entry.extension();
      if ((kind == ".tmp" || kind == ".tree" || kind == ".part") &&
          fs::last_write_time(entry) < cut)
        old.push_back(entry);
    }
  }
  uintmax_t bytes = 0;
  for (const fs::path& entry : old) {
    bytes += size_of(entry);
    fs::remove_all(entry);
  }
  if (context.json) {
    print_json({{"removed", old.size()}, {"bytes", bytes}});
  } else {
    fmt::print(std::cout, "{} entries removed, {} MiB freed\n", old.size(), bytes >> 20);
  }
}

struct SyncWords {
  std::string source, destination;
  bool or_private = false;
};

/// Where the copy goes: the folder asked for, or one of this user's own if that one is unfit.
fs::path destination_of(const Context& context, const SyncWords& words) {
  const std::string unfit = env::unfit_destination(words.destination);
  if (unfit.empty()) return words.destination;
  if (!words.or_private)
    throw Error(ErrorCode::kNotRunnable,
                unfit + "; chmod go-w it, or --or-private copies to a folder of your own");
  const fs::path own = context.cache / "compile" /
                       sha256_hex(fs::absolute(words.destination).string()).substr(0, 16);
  fmt::print(std::cerr, "patchbench: {}; goes to {} instead\n", unfit, own.string());
  return own;
}

void sync(const Context& context, const SyncWords& words) {
  const fs::path destination = destination_of(context, words);
  const env::SyncReport report = env::sync_cache(words.source, destination);
  if (context.json) {
    print_json(Json{{"destination", fs::absolute(destination).string()},
                    {"copied", report.num_copied},
                    {"matched", report.num_matched},
                    {"bytes", report.bytes},
                    {"left_out", report.left_out}});
    return;
  }
  for (const std::string& line : report.left_out) fmt::print(std::cout, "left out: {}\n", line);
  fmt::print(std::cout, "{}: {} files copied ({} MiB), {} there already, {} left out\n",
             destination.string(), report.num_copied, report.bytes >> 20, report.num_matched,
             report.left_out.size());
}

}  // namespace

void add_cache_command(CLI::App& app, Context& context) {
  CLI::App* cache = app.add_subcommand("cache", "the folder of fetched and unpacked things");
  cache->require_subcommand(1);
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
  auto words = std::make_shared<SyncWords>();
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
  CLI::App* prune = cache->add_subcommand(
      "prune", "remove the work folders of old runs and what was interrupted");
  auto days = std::make_shared<int>(7);
  prune->add_option("--days", *days, "keep what is younger")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  prune->callback([&context, days] { prune_cache(context, *days); });
}

}  // namespace patchbench::cli
