#include "run/sweep_plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "job/cache_sync.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxCells = 100'000;

/// The versions of one upstream of a pack that the words ask for; `used` receives each word that
/// named one.
std::vector<std::string> versions_of(const Pins& pins, const UpstreamUse& use,
                                     const std::vector<std::string>& arguments,
                                     std::set<std::string>& used) {
  std::vector<std::string> versions;
  const auto take = [&](const std::string& version, const std::string& word) {
    used.insert(word);
    if (std::find(versions.begin(), versions.end(), version) == versions.end())
      versions.push_back(version);
  };
  for (const std::string& word : arguments) {
    const std::size_t at = word.find('@');
    const std::string version = at == std::string::npos ? word : word.substr(at + 1);
    if (at != std::string::npos && word.substr(0, at) != use.name) continue;
    if (version == "red") {
      take(use.red_pin, word);
    } else if (version == "all") {
      for (const Pin& pin : pins.upstream(use.name).releases) take(pin.version, word);
    } else {
      try {
        take(pins.resolve(use.name, version).version, word);
      } catch (const Error&) {
        // Another upstream may have it; a word that none has is refused below.
      }
    }
  }
  return versions;
}

Json plan_json(const SweepPlan& plan) {
  Json cells = Json::array();
  for (const SweepCell& c : plan.cells) cells.push_back({c.slug, c.upstream, c.version, c.device});
  const SweepPlanOptions& w = plan.options;
  return {{"format", 1},          {"cells", cells},          {"executor", w.executor},
          {"sandbox", w.sandbox}, {"seed", w.seed},          {"workers", w.workers},
          {"retries", w.retries}, {"sbatch", Json(w.sbatch)}};
}

SweepPlan plan_from(const Json& json, const std::string& where) {
  try {
    SweepPlan plan;
    if (json.at("format") != 1) throw Error(ErrorCode::kUsage, where + ": of another format");
    for (const Json& c : json.at("cells"))
      plan.cells.push_back({c.at(0), c.at(1), c.at(2), c.at(3)});
    plan.options = {.packs = {},
                    .upstreams = {},
                    .devices = {},
                    .executor = json.at("executor"),
                    .sandbox = json.at("sandbox"),
                    .sbatch = json.at("sbatch"),
                    .seed = json.at("seed"),
                    .workers = json.at("workers"),
                    .retries = json.at("retries")};
    return plan;
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::kUsage, where + ": is no plan of a sweep: " + shown(e.what()));
  }
}

fs::path default_parent(const Context& context) { return context.ledger.parent_path() / "sweeps"; }

/// What makes two sweeps the same: the cells and the seed, not how many run at once.
std::string digest_of(const SweepPlan& plan) {
  const Json json = plan_json(plan);
  return sha256_hex(
      canonical_json({json.at("cells"), json.at("seed"), json.at("executor"), json.at("sandbox")}));
}

}  // namespace

SweepPlan plan_sweep(const Context& context, const SweepPlanOptions& options) {
  SweepPlan plan{options, {}};
  if (options.executor != "local" && options.executor != "slurm")
    throw Error(ErrorCode::kUsage,
                "sweep: no executor '" + shown(options.executor) + "'; local or slurm");
  const Pins pins = context.pins();
  const std::vector<std::string> devices =
      options.devices.empty() ? std::vector<std::string>{"cpu"} : options.devices;
  const std::vector<std::string> upstreams =
      options.upstreams.empty() ? std::vector<std::string>{"red"} : options.upstreams;
  std::set<std::string> used;
  for (const std::string& slug : options.packs.empty() ? context.slugs() : options.packs) {
    const Manifest pack = context.manifest(slug);
    if (pack.waived(Column::kRepro)) continue;
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.from_environment) continue;
      for (const std::string& version : versions_of(pins, use, upstreams, used)) {
        for (const std::string& device : devices)
          plan.cells.push_back({slug, use.name, version, device});
      }
    }
  }
  for (const std::string& word : upstreams) {
    if (!used.contains(word))
      throw Error(ErrorCode::kUsage, "sweep: no upstream of these packs has a version '" +
                                         shown(word) + "'; env/pins.json lists them");
  }
  if (plan.cells.empty())
    throw Error(ErrorCode::kUsage, "sweep: none of these packs has a reproducer");
  if (plan.cells.size() > kMaxCells)
    throw Error(ErrorCode::kUsage,
                fmt::format("sweep: {} cells are more than {}", plan.cells.size(), kMaxCells));
  return plan;
}

SweepFolder::SweepFolder(fs::path path, SweepPlan plan)
    : path_(std::move(path)), plan_(std::move(plan)) {}

fs::path SweepFolder::path_for(const Context& context, const SweepPlan& plan,
                               const std::string& named) {
  return fs::absolute(named.empty() ? default_parent(context) / digest_of(plan).substr(0, 12)
                                    : fs::path(named));
}

SweepFolder SweepFolder::open(const Context& context, const std::string& named) {
  fs::path path = named;
  if (named.empty()) {
    std::error_code none;
    fs::file_time_type newest = fs::file_time_type::min();
    for (const auto& entry : fs::directory_iterator(default_parent(context), none)) {
      const fs::file_time_type time = fs::last_write_time(entry.path(), none);
      if (fs::exists(entry.path() / "plan.json") && time > newest) {
        newest = time;
        path = entry.path();
      }
    }
  }
  if (path.empty() || !fs::exists(path / "plan.json"))
    throw Error(ErrorCode::kUsage, (named.empty() ? "sweep: none was started here"
                                                  : shown(named) + ": holds no sweep") +
                                       "; patchbench sweep --help");
  path = fs::absolute(path);
  const std::string where = (path / "plan.json").string();
  return {path, plan_from(parse_json(file_text(path / "plan.json").value_or(""), where), where)};
}

SweepFolder SweepFolder::create(const fs::path& path, const SweepPlan& plan) {
  if (const std::string unfit = job::unfit_destination(path); !unfit.empty())
    throw Error(ErrorCode::kNotRunnable, unfit + "; what lies there becomes records of yours");
  for (const char* part : {"cells", "jobs", "logs"}) {
    fs::create_directories(path / part);
    fs::permissions(path / part, fs::perms::owner_all);
  }
  const fs::path file = path / "plan.json";
  if (fs::exists(file)) {
    const SweepPlan there = plan_from(parse_json(file_text(file).value_or(""), file), file);
    if (digest_of(there) != digest_of(plan))
      throw Error(ErrorCode::kUsage, path.string() + ": holds another sweep; name another --dir");
  }
  write_whole(file, canonical_json(plan_json(plan)) + "\n");
  return {path, plan};
}

std::optional<Json> SweepFolder::result(std::size_t cell) const {
  const fs::path file = path_ / "cells" / std::to_string(cell) / "result.json";
  if (!fs::exists(file)) return std::nullopt;
  return parse_json(file_text(file).value_or(""), file);
}

std::string SweepFolder::records(std::size_t cell) const {
  return file_text(path_ / "cells" / std::to_string(cell) / "records.jsonl").value_or("");
}

bool SweepFolder::publish(std::size_t cell, const Json& result, const std::string& records) const {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const fs::path made = path_ / "cells" / fmt::format(".{}-{}-{}", cell, host, ::getpid());
  write_whole(made / "records.jsonl", records);
  write_whole(made / "result.json", canonical_json(result) + "\n");
  std::error_code failed;  // a folder that is there and not empty is never replaced
  fs::rename(made, path_ / "cells" / std::to_string(cell), failed);
  if (!failed) return true;
  fs::remove_all(made);
  if (this->result(cell)) return false;
  throw Error(ErrorCode::kInternal, made.string() + ": " + failed.message());
}

std::vector<std::vector<std::size_t>> SweepFolder::jobs() const {
  std::vector<std::vector<std::size_t>> jobs;
  for (;;) {
    const fs::path file = path_ / "jobs" / fmt::format("{}.cells", jobs.size());
    if (!fs::exists(file)) return jobs;
    std::ifstream lines(file);
    jobs.emplace_back();
    for (std::size_t cell = 0; lines >> cell;) jobs.back().push_back(cell);
  }
}

std::size_t SweepFolder::add_job(const std::vector<std::size_t>& cells) const {
  const std::size_t number = jobs().size();
  write_whole(path_ / "jobs" / fmt::format("{}.cells", number),
              fmt::format("{}\n", fmt::join(cells, "\n")));
  return number;
}

std::string SweepFolder::job_name(std::size_t job) const {
  return fmt::format("patchbench-{}-{}", sha256_hex(path_.string()).substr(0, 12), job);
}

std::vector<std::string> SweepFolder::job_names() const {
  std::vector<std::string> names;
  const std::size_t count = jobs().size();
  for (std::size_t job = 0; job < count; ++job) names.push_back(job_name(job));
  return names;
}

bool SweepFolder::is_cancelled() const { return fs::exists(path_ / "cancelled"); }

void SweepFolder::set_cancelled(bool is_cancelled) const {
  if (is_cancelled) {
    write_whole(path_ / "cancelled", "");
  } else {
    fs::remove(path_ / "cancelled");
  }
}

}  // namespace patchbench
