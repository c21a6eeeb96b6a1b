#include "exec/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "core/digest.h"
#include "core/error.h"
#include "core/split.h"
#include "exec/process.h"
#include "exec/progress.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNamed[] = {"torch",        "triton",       "numpy",
                                  "transformers", "liger-kernel", "liger_kernel"};

/// What a host interpreter says of itself: {"tag", "named": {name: version}, "all":
/// ["name==version", …]}.
constexpr const char* kAskPackages = R"(
import importlib.metadata as m, json, sys
every = {}
for d in m.distributions():
    name = d.metadata['Name']
    if name:
        every.setdefault(name.lower().replace('_', '-'), d.version)
print(json.dumps({'tag': 'cp%d%d' % sys.version_info[:2], 'all': every}))
)";

/// SHA-256 of files found on sys.path without importing anything.
constexpr const char* kAskFiles = R"(
import hashlib, json, os, sys
found = {}
for name in sys.argv[1:]:
    found[name] = 'absent'
    for folder in sys.path:
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path):
            found[name] = hashlib.sha256(open(path, 'rb').read()).hexdigest()
            break
print(json.dumps(found))
)";

/// The first folder on sys.path that holds another of that name.
constexpr const char* kAskFolder = R"(
import os, sys
print(next((p for f in sys.path if f and os.path.isdir(p := os.path.join(f, sys.argv[1]))), ''))
)";

/// The value of a "key: value" or KEY=value file's first matching line, quotes off.
std::string value_in(const fs::path& file, const std::string& key, char separator) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    std::string value = line.substr(std::min(line.find(separator), line.size() - 1) + 1);
    std::erase(value, '"');
    const auto begin = value.find_first_not_of(" \t");
    return begin == std::string::npos ? "" : value.substr(begin);
  }
  return "";
}

/// Whether a line is the bar of env/fetch.py.
bool is_bar(const std::string& line) {
  return line.starts_with("fetch: [#") || line.starts_with("fetch: [.");
}

/// Runs a command whose stderr lines are shown as they come; `last` receives the last of them.
Exit run_showing_progress(std::vector<std::string> argv, const fs::path& cache, std::string& last) {
  Command command{.argv = {"sh", "-c", "exec \"$@\" 2>&3", "sh"}};
  command.argv.insert(command.argv.end(), argv.begin(), argv.end());
  command.env["XDG_CACHE_HOME"] = cache.parent_path();
  command.records_fd_in_child = 3;
  if (::isatty(STDERR_FILENO) == 1) command.env["PATCHBENCH_BAR_EVERY_S"] = "0.5";
  command.on_record = [&last](const std::string& line) {
    if (is_bar(line)) return progress(line);
    // The last line of a failure is for the caller's error, not to be said twice.
    if (!last.empty()) std::cerr << last << "\n";
    last = line;
  };
  progress_on_terminal("unpacks wheels");
  return run(command);
}

Json locked_packages(const fs::path& site) {
  Json packages = Json::object();
  std::error_code failed;
  for (fs::directory_iterator it(site, failed), end; !failed && it != end; it.increment(failed)) {
    const std::string name = it->path().filename().string();
    const auto dash = name.find('-');
    if (!name.ends_with(".dist-info") || dash == std::string::npos) continue;
    const std::string package = name.substr(0, dash);
    if (std::find(std::begin(kNamed), std::end(kNamed), package) == std::end(kNamed)) continue;
    packages[package] =
        name.substr(dash + 1, name.size() - dash - 1 - std::string(".dist-info").size());
  }
  return packages;
}

std::vector<Gpu> ask_nvidia_smi() {
  const Exit exit =
      run({.argv = {"nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap,memory.total",
                    "--format=csv,noheader,nounits"},
           .timeout = std::chrono::seconds(30)});
  return exit.ok() ? gpus_from_csv(exit.out) : std::vector<Gpu>{};
}

std::vector<Gpu> ask_proc() {
  std::vector<Gpu> gpus;
  std::error_code failed;
  for (fs::directory_iterator it("/proc/driver/nvidia/gpus", failed), end; !failed && it != end;
       it.increment(failed)) {
    gpus.push_back({static_cast<int>(gpus.size()),
                    value_in(it->path() / "information", "Model", ':'), "", "", 0});
  }
  return gpus;
}

}  // namespace

std::vector<std::string> with_base_locks(std::vector<std::string> locks, const fs::path& root) {
  for (std::size_t i = 0; i < locks.size(); ++i) {
    const fs::path file = root / "env/locks" / (locks[i] + ".txt");
    if (!fs::exists(file)) throw Error(ErrorCode::kUsage, file.string() + ": no such lock");
    const std::string base = fs::path(value_in(file, "-r ", ' ')).stem().string();
    if (!base.empty() && std::find(locks.begin(), locks.end(), base) == locks.end())
      locks.push_back(base);
  }
  return locks;
}

Environment locked_environment(const std::vector<std::string>& locks, const std::string& tag,
                               const fs::path& cache, const fs::path& root) {
  Environment environment;
  environment.packages = Json::object();
  for (const std::string& lock : with_base_locks(locks, root)) {
    const fs::path file = root / "env/locks" / (lock + ".txt");
    std::string last;
    const Exit fetched = run_showing_progress(
        {"python3", root / "env/fetch.py", "env", file, "--tag", tag}, cache, last);
    const fs::path site = fetched.out.substr(0, fetched.out.find('\n'));
    if (!fetched.ok() || site.empty()) {
      throw Error(ErrorCode::kNotRunnable, fmt::format("environment {} for {}: {}", lock, tag,
                                                       last.empty() ? fetched.error : shown(last)));
    }
    if (!last.empty()) std::cerr << last << "\n";
    environment.address += (environment.address.empty() ? "" : "+") + site.filename().string();
    environment.packages.update(locked_packages(site));
    environment.sites.push_back(site);
  }
  return environment;
}

Environment host_environment(const fs::path& python) {
  fs::path interpreter = fs::is_directory(python) ? python / "bin/python3" : python;
  interpreter = find_program(interpreter.string());
  if (interpreter.empty())
    throw Error(ErrorCode::kUsage,
                python.string() + ": neither an interpreter nor a virtual environment");
  interpreter = fs::absolute(interpreter);
  const Exit exit =
      run({.argv = {interpreter, "-I", "-c", kAskPackages}, .timeout = std::chrono::seconds(60)});
  const Json said = Json::parse(exit.out, nullptr, false);
  if (!exit.ok() || !said.is_object())
    throw Error(ErrorCode::kUsage,
                interpreter.string() + ": is no Python that can tell its packages");
  Environment environment{
      {}, interpreter, "host:" + sha256_hex(canonical_json(said)).substr(0, 16), Json::object()};
  for (const char* name : kNamed) {
    if (said.at("all").contains(name)) environment.packages[name] = said["all"][name];
  }
  environment.packages["python"] = said.at("tag");
  return environment;
}

fs::path host_folder(const Environment& environment, const std::string& name) {
  if (environment.python.empty()) return "";
  const Exit exit = run({.argv = {environment.python, "-I", "-c", kAskFolder, name},
                         .timeout = std::chrono::seconds(60)});
  return exit.out.substr(0, exit.out.find('\n'));
}

Json host_file_digests(const Environment& environment, const std::vector<std::string>& files) {
  std::vector<std::string> argv = {environment.python, "-I", "-c", kAskFiles};
  argv.insert(argv.end(), files.begin(), files.end());
  const Exit exit = run({.argv = argv, .timeout = std::chrono::seconds(60)});
  Json digests = Json::parse(exit.out, nullptr, false);
  if (!exit.ok() || !digests.is_object())
    throw Error(ErrorCode::kUsage, environment.python + ": cannot be asked for its files");
  return digests;
}

std::vector<Gpu> gpus_from_csv(const std::string& text) {
  std::vector<Gpu> gpus;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> cells = split(line, ",");
    if (cells.size() != 5 || cells[0].find_first_not_of("0123456789") != std::string::npos)
      continue;
    // "[N/A]" and the like are not numbers.
    const std::string capability = cells[3].starts_with("[") ? "" : cells[3];
    gpus.push_back({std::atoi(cells[0].c_str()), cells[1], cells[2], capability,
                    std::atoll(cells[4].c_str()) << 20});
  }
  return gpus;
}

std::vector<Gpu> find_gpus() {
  static const std::vector<Gpu> found = [] {
    std::vector<Gpu> gpus = ask_nvidia_smi();
    return gpus.empty() ? ask_proc() : gpus;
  }();
  return found;
}

Json describe_machine(const std::string& device) {
  const std::string model = value_in("/proc/cpuinfo", "model name", ':');
  Json machine = {{"device", device},
                  {"cpu", fmt::format("{} x{}", model.empty() ? "unknown" : model,
                                      std::thread::hardware_concurrency())},
                  {"os", value_in("/etc/os-release", "PRETTY_NAME", '=')}};
  if (!device.starts_with("cuda:")) return machine;
  const auto index = static_cast<std::size_t>(std::atoi(device.c_str() + 5));
  const std::vector<Gpu> gpus = find_gpus();
  if (index >= gpus.size()) return machine;
  std::string capability = gpus[index].capability;
  std::erase(capability, '.');
  machine["device"] = gpus[index].name + (capability.empty() ? "" : " (sm_" + capability + ")");
  if (!gpus[index].driver.empty()) machine["driver"] = gpus[index].driver;
  return machine;
}

}  // namespace patchbench::exec
