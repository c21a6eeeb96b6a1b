#include <fmt/format.h>
#include <fmt/ostream.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>

#include "cli/context.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
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

std::string digest_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  Sha256 hash;
  std::string chunk(1 << 20, '\0');
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0) {
    hash.update(std::string_view(chunk).substr(0, static_cast<std::size_t>(in.gcount())));
  }
  return hash.hex();
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
      if (digest_of(file) != folder.filename())
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

void verify_cache(Context& context, bool remove) {
  int checked = 0;
  const std::vector<Damage> damaged = verify(context, checked);
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
    std::cout << Json{{"checked", checked}, {"damaged", list}}.dump(2) << "\n";
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
    std::cout << Json{{"removed", old.size()}, {"bytes", bytes}}.dump(2) << "\n";
  } else {
    fmt::print(std::cout, "{} entries removed, {} MiB freed\n", old.size(), bytes >> 20);
  }
}

}  // namespace

void add_cache_command(CLI::App& app, Context& context) {
  CLI::App* cache = app.add_subcommand("cache", "the folder of fetched and unpacked things");
  cache->require_subcommand(1);
  CLI::App* check =
      cache->add_subcommand("verify", "re-hash every fetched file and unpacked environment");
  auto remove = std::make_shared<bool>(false);
  check->add_flag("--remove", *remove, "remove what is damaged; the next run fetches it again");
  check->callback([&context, remove] { verify_cache(context, *remove); });
  CLI::App* prune = cache->add_subcommand(
      "prune", "remove the work folders of old runs and what was interrupted");
  auto days = std::make_shared<int>(7);
  prune->add_option("--days", *days, "keep what is younger")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  prune->callback([&context, days] { prune_cache(context, *days); });
}

}  // namespace patchbench::cli
