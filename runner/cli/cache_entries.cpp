#include "cli/cache_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "exec/process.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

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

int days_since(const fs::path& path) {
  std::error_code failed;
  const auto written = fs::last_write_time(path, failed);
  if (failed) return 0;
  const auto age = fs::file_time_type::clock::now() - written;
  return static_cast<int>(std::chrono::duration_cast<std::chrono::hours>(age).count() / 24);
}

/// SHA-256 -> the release whose file has it, or the lock that names it.
std::map<std::string, std::string> named_files(const Pins& pins,
                                               const std::vector<fs::path>& locks) {
  std::map<std::string, std::string> named;
  for (const fs::path& lock : locks) {
    const std::string text = read_file(lock), mark = "sha256:";
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1))
      named[text.substr(at + mark.size(), 64)] = "lock " + lock.stem().string();
  }
  for (const auto& [name, upstream] : pins.all()) {
    for (const Pin& pin : upstream.releases) named[pin.sha256] = name;
  }
  return named;
}

/// Folder name of an environment -> its lock.
std::map<std::string, std::string> named_environments(const Context& context,
                                                      const std::vector<fs::path>& locks) {
  exec::Command command{.argv = {"python3", context.root / "env/fetch.py", "names"}};
  for (const fs::path& lock : locks) command.argv.push_back(lock);
  const exec::Exit exit = exec::run(command);
  if (!exit.ok())
    throw Error(ErrorCode::kInternal, "env/fetch.py names: " + shown(exit.error + exit.err));
  std::map<std::string, std::string> named;
  std::istringstream lines(exit.out);
  for (std::string line; std::getline(lines, line);) {
    for (const fs::path& lock : locks) {
      if (line.starts_with(lock.stem().string() + "-cp"))
        named[line] = "lock " + lock.stem().string();
    }
  }
  return named;
}

std::string found_in(const std::map<std::string, std::string>& named, const std::string& name) {
  const auto it = named.find(name);
  return it == named.end() ? "" : it->second;
}

}  // namespace

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> list;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed))
    list.push_back(it->path());
  std::sort(list.begin(), list.end());
  return list;
}

std::vector<CacheEntry> cache_entries(const Context& context) {
  const std::vector<fs::path> locks = entries_of(context.root / "env/locks");
  const Pins pins = context.pins();
  const auto files = named_files(pins, locks), environments = named_environments(context, locks);
  // Folder of the cache -> kind, and what needs an entry of a name.
  using NeededBy = std::function<std::string(const std::string&)>;
  const NeededBy nothing = [](const std::string&) { return ""; };
  const NeededBy machine = [](const std::string&) { return "this machine"; };
  const NeededBy upstream = [&](const std::string& name) {
    const std::string known = name.substr(0, name.find('.'));
    return pins.all().contains(known) ? known : "";
  };
  const std::vector<std::tuple<std::string, std::string, NeededBy>> parts = {
      {"files", "file", [&](const std::string& name) { return found_in(files, name); }},
      {"env", "environment", [&](const std::string& name) { return found_in(environments, name); }},
      {"checkouts", "checkout", upstream},
      {"git", "git", upstream},
      {"images", "image",
       [](const std::string& name) { return name.ends_with(".json") ? "sandboxes" : ""; }},
      {"probe", "probe", machine},
      {"bootstrap", "bootstrap", machine},
      {"headers", "headers", machine},
      {"debian", "Debian root", [](const std::string&) { return "env/try_debian.sh"; }},
      {"compile", "compile cache", [](const std::string&) { return "jobs of yours"; }},
      {"runs", "run", nothing},
      {"selftest", "self-test", nothing}};
  std::vector<CacheEntry> entries;
  for (const auto& [folder, kind, needed_by] : parts) {
    for (const fs::path& path : entries_of(context.cache / folder)) {
      if (path.extension() == ".lock") continue;  // a few bytes that a process may hold
      const std::string name = path.filename();
      entries.push_back({path, kind, needed_by(name), size_of(path), days_since(path)});
    }
  }
  return entries;
}

void print_damage(Context& context, const std::vector<Damage>& damaged, int checked, bool removes,
                  const std::string& command) {
  Json list = Json::array();
  for (const Damage& damage : damaged) {
    if (removes) fs::remove_all(damage.entry);
    list.push_back(
        {{"entry", damage.entry.string()}, {"reason", damage.reason}, {"removed", removes}});
    if (!context.json)
      context.out() << fmt::format("damaged{}: {}: {}\n", removes ? ", removed" : "",
                                   damage.entry.string(), damage.reason);
  }
  if (context.json) {
    print_json(context, {{"checked", checked}, {"damaged", list}});
  } else {
    context.out() << fmt::format("{} entries checked, {} damaged{}\n", checked, damaged.size(),
                                 damaged.empty() || removes ? "" : "; " + command + " removes it");
  }
  context.exit_code = damaged.empty() ? kExitYes : kExitNo;
}

}  // namespace patchbench::cli
