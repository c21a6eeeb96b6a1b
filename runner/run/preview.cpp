#include "run/preview.h"

#include <fmt/format.h>

#include <numeric>
#include <set>

#include "core/error.h"
#include "core/file_text.h"
#include "exec/environment.h"
#include "exec/process.h"
#include "git/series.h"
#include "status/pack_records.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

std::string mib(double bytes) {
  return bytes < 1048576.0 ? fmt::format("{:.0f} KiB", bytes / 1024)
                           : fmt::format("{:.0f} MiB", bytes / 1048576.0);
}

/// Bytes of an upstream file on the index; 0 where it does not answer.
double size_on_index(const Context& context, const Pin& pin) {
  const exec::Exit exit = exec::run({.argv = {"python3", (context.root / "env/fetch.py").string(),
                                              "size", pin.project, pin.filename}});
  return exit.ok() ? std::atof(exit.out.c_str()) : 0;
}

/// The two numbers of a lock's "# Size: F bytes to fetch, U bytes unpacked" line; zeros without
/// one.
std::pair<double, double> sizes_of_lock(const Context& context, const std::string& name) {
  const std::string text = read_file(context.root / "env/locks" / (name + ".txt"));
  const auto line = text.find("# Size: ");
  double fetch = 0, unpacked = 0;
  if (line != std::string::npos &&
      std::sscanf(text.c_str() + line, "# Size: %lf bytes to fetch, %lf bytes unpacked", &fetch,
                  &unpacked) == 2)
    return {fetch, unpacked};
  return {0, 0};
}

bool has_environment(const Context& context, const std::string& name) {
  if (!fs::exists(context.cache / "env")) return false;
  for (const auto& entry : fs::directory_iterator(context.cache / "env")) {
    if (entry.is_directory() && entry.path().filename().string().starts_with(name + "-cp") &&
        fs::exists(entry.path() / "patchbench-env.json"))
      return true;
  }
  return false;
}

/// What the subject took in the newest verdict on this release and such a device that ran it.
struct Taken {
  Made made;
  double wall_s = 0, gpu_bytes = 0;
};
Taken newest_run(const Context& context, const RunRequest& request, const RunTarget& target) {
  const bool is_gpu = target.device.is_gpu();
  const PackRecords verdicts = read_pack_records(context, {.slug = request.slug, .before = {}});
  Taken taken;
  for (const auto& [key, devices] : verdicts.verdict_index.by_key()) {
    if (key.version != target.pin->version && key.version != "-") continue;
    for (const auto& [device, cell] : devices) {
      const Finding* newest = cell.newest();
      if (newest == nullptr || recorded_kind(newest->device) != target.device.kind ||
          newest->made <= taken.made)
        continue;
      std::set<double> walls;  // all cases of one process carry that process's time
      double gpu_bytes = 0;
      for (const Observation& o : cited_observations(verdicts.records, newest->digest)) {
        if (o.subject != request.subject) continue;
        if (o.outside.is_object()) walls.insert(o.outside.value("wall_s", 0.0));
        if (is_gpu && o.self_reported.is_object())
          gpu_bytes = std::max(gpu_bytes, o.self_reported.value("peak_bytes", 0.0));
      }
      if (!walls.empty())
        taken = {newest->made, std::accumulate(walls.begin(), walls.end(), 0.0), gpu_bytes};
    }
  }
  return taken;
}

}  // namespace

Json preview_of(const Context& context, const RunRequest& request) {
  RunRequest of_release = request;
  of_release.needs_pin = true;
  const RunTarget target = target_of(context, of_release);
  const Pin& pin = *target.pin;
  const Series series =
      git::load_series(context.root / "patches" / request.slug, target.upstream.name);
  double fetch = 0, disk = 0;
  std::string file = "cached";
  if (pin.kind == PinKind::kFile &&
      !fs::exists(context.cache / "files" / pin.sha256 / pin.filename)) {
    const double size = size_on_index(context, pin);
    fetch += size;
    disk += size;
    file = size > 0 ? "to fetch, " + mib(size) : "to fetch, size unknown: the index did not answer";
  } else if (pin.kind == PinKind::kGit) {
    file = "one commit, fetched by git where it is not cached";
  }
  std::string environment = pin.environment + ": cached";
  if (request.python) {
    environment = "the installed stack of " + request.python->string();
  } else {
    double to_fetch = 0, unpacked = 0;
    for (const std::string& lock : exec::with_base_locks({pin.environment}, context.root)) {
      if (has_environment(context, lock)) continue;
      const auto [files, folder] = sizes_of_lock(context, lock);
      to_fetch += files;
      unpacked += folder;
    }
    fetch += to_fetch;
    disk += unpacked;
    if (unpacked > 0)
      environment = fmt::format("{}: to fetch, {}; {} unpacked", pin.environment, mib(to_fetch),
                                mib(unpacked));
  }
  const bool is_gpu = target.device.is_gpu();
  const Taken taken = newest_run(context, request, target);
  const std::string when = taken.made.date.substr(0, 10);
  return {
      {"slug", request.slug},
      {"upstream", pin.to_json()},
      {"device", target.device.text()},
      {"plan", plan_reproduction(target, request.subject, series, request.choice).to_json()},
      {"upstream_file", file},
      {"environment", environment},
      {"fetch_bytes", fetch},
      {"disk_bytes", disk},
      {"gpu_memory",
       !is_gpu ? "none"
       : taken.gpu_bytes == 0
           ? "not measured yet"
           : mib(taken.gpu_bytes) + " in the largest case of the newest record, " + when},
      {"time", taken.wall_s == 0 ? "not measured yet"
                                 : fmt::format("{:.0f} s in the subject in the newest record, {}",
                                               taken.wall_s, when)}};
}

std::string preview_text(const Json& preview) {
  std::string text;
  const auto add = [&](const std::string& key, const std::string& value) {
    text += fmt::format("{:14} {}\n", key, value);
  };
  const Json& pin = preview.at("upstream");
  add("slug", preview.at("slug"));
  add("upstream", pin.value("upstream", "") + " " + pin.value("version", ""));
  for (const char* key : {"device", "upstream_file", "environment", "gpu_memory", "time"})
    add(key, preview.at(key));
  for (const Json& step : preview.at("plan").at("steps")) {
    std::string line = fmt::format("{}: {} cases", step.at("subject").get<std::string>(),
                                   step.at("cases").size() + step.value("given", Json()).size());
    if (const Json draws = step.value("draws", Json()); !draws.is_null())
      line += fmt::format(", {} drawn", draws.at("count").get<int>());
    if (step.value("is_spoiled", false)) line += ", their outputs spoiled";
    add("step", line);
  }
  add("total", fmt::format("{} to fetch, {} more on disk", mib(preview.at("fetch_bytes")),
                           mib(preview.at("disk_bytes"))));
  return text;
}

}  // namespace patchbench
