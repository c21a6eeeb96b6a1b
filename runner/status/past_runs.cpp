#include "status/past_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "core/day.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/split.h"
#include "status/listing.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxSettingsBytes = std::size_t{4} << 20, kMaxEntries = 2'000'000;
constexpr int kMaxLevels = 24;

bool is_there(const fs::path& file) {
  std::error_code none;
  return fs::exists(fs::symlink_status(file, none));
}

/// "2026-01-31" of "run-20260131_120000-abc"; "" for the name of no run.
std::string day_of_wandb(const std::string& name) {
  const std::size_t start = name.starts_with("run-")           ? 4
                            : name.starts_with("offline-run-") ? 12
                                                               : 0;
  if (start == 0 || name.size() < start + 16 || name[start + 8] != '_' || name[start + 15] != '-')
    return "";
  const std::string day = fmt::format("{}-{}-{}", name.substr(start, 4), name.substr(start + 4, 2),
                                      name.substr(start + 6, 2));
  return is_day(day) ? day : "";
}

/// The day of a time in milliseconds since 1970; "" for another text.
std::string day_of_milliseconds(const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  constexpr int64_t kMaxCount = 253'402'300'800'000;  // the year 10000
  if (error != std::errc() || end != text.data() + text.size() || count < 0 || count >= kMaxCount)
    return "";
  const std::chrono::year_month_day day(std::chrono::floor<std::chrono::days>(
      std::chrono::sys_time<std::chrono::milliseconds>(std::chrono::milliseconds(count))));
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(day.year()),
                     static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()));
}

/// Does `read` with a file of a run; what it refuses is unread.
template <typename Read>
void read_into(PastRun& run, const fs::path& file, std::size_t max_bytes, const Read& read) {
  try {
    read(text_in_utf8(read_plain_file(file, max_bytes), file.string()));
  } catch (const Error& error) {
    run.inventory.list.leave_unread(error.what());
  }
}

void read_list_file(PastRun& run, const fs::path& file, ListKind kind) {
  read_into(run, file, kMaxInputBytes, [&](const std::string& text) {
    run.inventory.list.merge(packages_in(
        text, file.string(),
        [&](const std::string& path) -> std::string {
          throw Error(ErrorCode::kUsage, path + ": the list of a run includes no other");
        },
        kind));
  });
}

void read_settings_file(PastRun& run, const fs::path& file) {
  if (!is_there(file)) return;
  // JSON is YAML.
  read_into(run, file, kMaxSettingsBytes, [&](const std::string& text) {
    add_settings(run.settings, parse_yaml(text, file.string()));
  });
}

/// What a list that is not there, or that does not say all, leaves unknown.
void end_lists(PastRun& run, const char* without) {
  PackageList& list = run.inventory.list;
  const auto leave = [&](const std::string& why) {
    list.leave_unread(run.inventory.name + ": " + why);
  };
  if (list.num_unpinned > 0) leave(unpinned_text(list.num_unpinned));
  if (list.packages.empty() && list.unread.empty()) leave(without);
}

/// A requirements.txt, else the conda environment next to it.
bool read_lists_in(PastRun& run, const fs::path& folder) {
  if (is_there(folder / "requirements.txt")) {
    read_list_file(run, folder / "requirements.txt", ListKind::kRequirements);
    return true;
  }
  for (const char* name : {"conda-environment.yaml", "conda.yaml"}) {
    if (!is_there(folder / name)) continue;
    read_list_file(run, folder / name, ListKind::kYaml);
    return true;
  }
  return false;
}

class RunFinder {
 public:
  explicit RunFinder(fs::path root) : root_(std::move(root)) {}

  PastRuns find() {
    visit(root_, 0);
    return std::move(found_);
  }

 private:
  void visit(const fs::path& folder, int level) {
    if (take_wandb(folder) || take_mlflow(folder) || take_megatron(folder)) return;
    for (const fs::directory_entry& one : entries_in(folder)) {
      if (++num_entries_ > kMaxEntries || level >= kMaxLevels) return leave_rest(folder);
      std::error_code none;
      const bool is_hidden = one.path().filename().string().starts_with(".");
      if (one.is_directory(none) && !is_hidden) visit(one.path(), level + 1);
    }
  }

  /// What lies in a folder, by name; links are left out.
  std::vector<fs::directory_entry> entries_in(const fs::path& folder) {
    std::vector<fs::directory_entry> entries;
    std::error_code failure, none;
    auto it = fs::directory_iterator(folder, failure);
    for (; !failure && it != fs::directory_iterator(); it.increment(failure)) {
      if (!it->is_symlink(none)) entries.push_back(*it);
    }
    if (failure && failure != std::errc::no_such_file_or_directory)
      found_.unread.push_back(folder.string() + ": " + failure.message());
    std::sort(entries.begin(), entries.end());
    return entries;
  }

  void leave_rest(const fs::path& folder) {
    if (found_.unread.empty())
      found_.unread.push_back(folder.string() +
                              ": too deep, or behind too many files; name a folder further down");
  }

  PastRun run_of(const fs::path& folder, const char* tracker) const {
    PastRun run{.name = folder.lexically_relative(root_).string(), .tracker = tracker};
    if (run.name == ".") run.name = fs::absolute(folder).lexically_normal().filename().string();
    run.inventory = {.name = folder.string(), .may_be_empty = true};
    run.inventory.list.lists_all = false;
    return run;
  }

  bool take_wandb(const fs::path& folder) {
    const std::string day = day_of_wandb(folder.filename().string());
    if (day.empty()) return false;
    PastRun run = run_of(folder, "wandb");
    run.day = day;
    read_lists_in(run, folder / "files");
    end_lists(run, "has no files/requirements.txt");
    read_settings_file(run, folder / "files/config.yaml");
    found_.runs.push_back(std::move(run));
    return true;
  }

  bool take_mlflow(const fs::path& folder) {
    if (!is_there(folder / "meta.yaml")) return false;
    PastRun run = run_of(folder, "mlflow");
    bool is_run = false;
    read_into(run, folder / "meta.yaml", kMaxSettingsBytes, [&](const std::string& text) {
      const YamlNode meta = parse_yaml(text, (folder / "meta.yaml").string());
      // An experiment has a meta.yaml, too.
      is_run = meta.find("run_id") != nullptr || meta.find("run_uuid") != nullptr;
      if (const YamlNode* start = meta.find("start_time"))
        run.day = day_of_milliseconds(start->text);
    });
    const std::vector<std::string>& refusals = run.inventory.list.unread;
    if (!is_run) {
      found_.unread.insert(found_.unread.end(), refusals.begin(), refusals.end());
      return false;
    }
    for (const fs::directory_entry& one : entries_in(folder / "params")) {
      read_into(run, one.path(), kMaxSettingsBytes, [&](const std::string& value) {
        add_setting(run.settings, one.path().filename().string(), split(value, "\n").front());
      });
    }
    read_artifacts(run, folder / "artifacts", 0);
    end_lists(run, "has no requirements.txt or conda.yaml among its artifacts");
    found_.runs.push_back(std::move(run));
    return true;
  }

  void read_artifacts(PastRun& run, const fs::path& folder, int level) {
    read_lists_in(run, folder);
    for (const fs::directory_entry& one : entries_in(folder)) {
      if (++num_entries_ > kMaxEntries || level >= kMaxLevels) return leave_rest(folder);
      std::error_code none;
      if (one.is_directory(none)) read_artifacts(run, one.path(), level + 1);
    }
  }

  bool take_megatron(const fs::path& folder) {
    if (!is_there(folder / "latest_checkpointed_iteration.txt")) return false;
    PastRun run = run_of(folder, "megatron");
    std::vector<fs::path> places = {folder};
    for (const fs::directory_entry& one : entries_in(folder)) {
      if (one.path().filename().string().starts_with("iter_")) places.push_back(one.path());
    }
    for (const fs::path& place : places) {
      read_lists_in(run, place);
      for (const char* name : {"run_config.yaml", "config.yaml", "args.yaml", "args.json"})
        read_settings_file(run, place / name);
    }
    end_lists(run, run.settings.empty()
                       ? "has no list of packages, and its arguments are in a pickle, which is "
                         "not loaded"
                       : "has no list of packages");
    found_.runs.push_back(std::move(run));
    return true;
  }

  fs::path root_;
  PastRuns found_;
  std::size_t num_entries_ = 0;
};

}  // namespace

PastRuns past_runs_below(const std::string& folder) {
  std::error_code none;
  if (!fs::is_directory(folder, none))
    throw Error(ErrorCode::kUsage,
                folder +
                    ": is not a folder; --runs takes one with wandb or MLflow runs or Megatron-LM "
                    "checkpoints below it");
  return RunFinder(folder).find();
}

}  // namespace patchbench
