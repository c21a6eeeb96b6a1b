#include <fmt/format.h>
#include <fmt/ostream.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>

#include "cli/context.h"
#include "core/error.h"
#include "core/json.h"
#include "exec/environment.h"
#include "exec/process.h"
#include "exec/sandbox.h"
#include "report/table.h"

namespace patchbench::cli {
void add_cache_command(CLI::App& app, Context& context);
void add_env_policy_commands(CLI::App& env, Context& context);

namespace {

namespace fs = std::filesystem;

/// One line of the doctor's table.
struct Finding {
  std::string part;
  bool is_there = false;
  std::string detail;
  std::string get;  ///< the command that brings it, "" if none is needed or known
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// A program by its own account: the first line of `--version`.
Finding program(const std::string& part, const std::string& name, const std::string& package) {
  const std::string path = exec::find_program(name);
  if (path.empty()) return {part, false, name + " is not on PATH", "apt-get install -y " + package};
  const std::string version = shown(first_line(exec::run({.argv = {path, "--version"}}).out));
  return {part, true, version + " (" + path + ")", ""};
}

Finding engine(const Context& context, exec::SandboxKind kind) {
  const exec::SandboxProbe probe = exec::probe_sandbox(kind, context.cache, context.root);
  const char* package = kind == exec::SandboxKind::kPodman       ? "podman runc"
                        : kind == exec::SandboxKind::kBubblewrap ? "bubblewrap"
                                                                 : "docker.io";
  const bool is_installed =
      kind == exec::SandboxKind::kProcess || !exec::find_program(exec::sandbox_name(kind)).empty();
  return {"sandbox " + exec::sandbox_name(kind), probe.usable, probe.detail,
          is_installed ? "" : fmt::format("apt-get install -y {}", package)};
}

Finding nvcc() {
  std::string path = exec::find_program("nvcc");
  if (path.empty()) path = exec::find_program("/usr/local/cuda/bin/nvcc");
  if (path.empty()) {
    return {"nvcc", false, "not there: preset cpu is built, the ops go without their CUDA halves",
            "install the CUDA 13.0 toolkit (developer.nvidia.com/cuda-downloads)"};
  }
  const std::string words = exec::run({.argv = {path, "--version"}}).out;
  const auto release = words.find("release ");
  return {"nvcc", true, release == std::string::npos ? path : first_line(words.substr(release)),
          ""};
}

std::vector<Finding> gpus() {
  std::vector<Finding> list;
  for (const exec::Gpu& gpu : exec::find_gpus()) {
    list.push_back({fmt::format("GPU cuda:{}", gpu.index), true,
                    fmt::format("{}, capability {}, driver {}, {} MiB", gpu.name, gpu.capability,
                                gpu.driver, gpu.memory_bytes >> 20),
                    ""});
  }
  if (list.empty())
    list.push_back(
        {"GPU", false, "no NVIDIA GPU: subjects run on the CPU under Triton's interpreter", ""});
  return list;
}

/// The unpacked torch environments of the cache, by interpreter tag.
Finding torch_environment(const Context& context, const std::string& tag) {
  const std::string command =
      fmt::format("python3 {} env {} --tag {}", (context.root / "env/fetch.py").string(),
                  (context.root / "env/locks/torch-2.11.txt").string(), tag);
  std::error_code failed;
  for (fs::directory_iterator it(context.cache / "env", failed), end; !failed && it != end;
       it.increment(failed)) {
    if (it->path().filename().string().starts_with("torch-2.11-" + tag + "-") &&
        fs::exists(it->path() / "patchbench-env.json")) {
      return {"wheels " + tag, true, it->path().filename().string(), ""};
    }
  }
  return {"wheels " + tag, false, "torch 2.11 and what it needs are not in the cache", command};
}

Json policy(const Context& context) {
  const fs::path file = context.root / "env/policy.json";
  return parse_json(context.read_file(file), file.string());
}

Finding packages(const Context& context) {
  const Json wanted = policy(context).at("packages");
  std::vector<std::string> names;
  for (const auto& [purpose, list] : wanted.items()) {
    if (purpose == "tests") continue;  // run-tests brings them
    for (const Json& name : list) names.push_back(name.get<std::string>());
  }
  std::vector<std::string> argv = {"dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n"};
  argv.insert(argv.end(), names.begin(), names.end());
  const exec::Exit asked = exec::run({.argv = argv});
  if (!asked.error.empty())
    return {"packages", false, "no dpkg here: this is neither Debian nor Ubuntu", ""};
  std::set<std::string> there;
  std::istringstream lines(asked.out);
  for (std::string name, status; lines >> name >> status;) {
    if (status == "installed") there.insert(name);
  }
  std::string missing;
  for (const std::string& name : names) {
    if (!there.contains(name)) missing += (missing.empty() ? "" : " ") + name;
  }
  if (missing.empty())
    return {"packages", true, fmt::format("all {} Debian packages", names.size()), ""};
  return {"packages", false, "missing: " + missing,
          "apt-get install -y --no-install-recommends " + missing};
}

Finding disk(const Context& context) {
  const auto need = policy(context).at("disk_gib").get<uint64_t>();
  fs::path folder = context.cache;
  while (!fs::exists(folder) && folder.has_parent_path()) folder = folder.parent_path();
  struct statvfs info {};
  ::statvfs(folder.c_str(), &info);
  const uint64_t free_gib = (uint64_t{info.f_bavail} * info.f_frsize) >> 30;
  const bool is_filled = fs::exists(context.cache / "env");
  return {
      "cache", is_filled || free_gib >= need,
      fmt::format("{}, {} GiB free (a first run takes {})", context.cache.string(), free_gib, need),
      is_filled || free_gib >= need ? "" : "set XDG_CACHE_HOME to a larger disk"};
}

std::vector<Finding> examine(const Context& context) {
  // Asked anew: what this command says is what is so now.
  fs::remove_all(context.cache / "probe");
  std::vector<Finding> found;
  for (const exec::SandboxKind kind : exec::kSandboxKinds) found.push_back(engine(context, kind));
  found.push_back(program("python", "python3", "python3"));
  const exec::Exit tag =
      exec::run({.argv = {"python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"}});
  if (tag.ok()) found.push_back(torch_environment(context, first_line(tag.out)));
  // The base image has Python 3.11, whatever this machine has.
  if (first_line(tag.out) != "cp311") found.push_back(torch_environment(context, "cp311"));
  found.push_back(program("compiler", "g++", "g++"));
  found.push_back(program("cmake", "cmake", "cmake"));
  found.push_back(program("git", "git", "git"));
  found.push_back(nvcc());
  for (Finding& gpu : gpus()) found.push_back(std::move(gpu));
  found.push_back(packages(context));
  found.push_back(disk(context));
  return found;
}

void doctor(const Context& context) {
  const std::vector<Finding> found = examine(context);
  if (context.json) {
    Json list = Json::array();
    for (const Finding& f : found)
      list.push_back(
          {{"part", f.part}, {"there", f.is_there}, {"detail", f.detail}, {"get", f.get}});
    print_json({{"machine", exec::describe_machine("cpu")}, {"findings", list}});
    return;
  }
  report::Table table({"part", "here", "detail"});
  std::string commands;
  for (const Finding& f : found) {
    table.add({f.part, f.is_there ? "yes" : "no", f.detail});
    table.color(1, f.is_there ? report::Color::kGreen : report::Color::kYellow);
    if (!f.get.empty()) commands += fmt::format("  {:<16} {}\n", f.part, f.get);
  }
  report::Style style = report::style_of(STDOUT_FILENO);
  style.width = 100;
  std::cout << table.render(style);
  if (!commands.empty()) std::cout << "\nTo get what is missing:\n" << commands;
}

void images(const Context& context, bool ensure) {
  report::Table table({"engine", "image", "python", "id", "tree digest"});
  Json list = Json::array();
  for (const exec::SandboxKind kind : {exec::SandboxKind::kPodman, exec::SandboxKind::kDocker}) {
    const exec::SandboxProbe probe = exec::probe_sandbox(kind, context.cache, context.root);
    const std::string name = exec::sandbox_name(kind);
    if (!probe.usable) {
      fmt::print(std::cerr, "{}: {}\n", name, probe.detail);
      continue;
    }
    const auto image = ensure
                           ? exec::ensure_base_image(kind, "bookworm", context.cache, context.root)
                           : exec::find_base_image(kind, "bookworm", context.cache, context.root);
    if (!image) {
      fmt::print(std::cerr, "{}: no base image yet; patchbench env images --ensure builds it\n",
                 name);
      continue;
    }
    table.add(
        {name, "bookworm", image->tag, image->id.substr(0, 19), image->tree_digest.substr(0, 12)});
    list.push_back({{"engine", name},
                    {"image", "bookworm"},
                    {"python", image->python},
                    {"tag", image->tag},
                    {"id", image->id},
                    {"tree_digest", image->tree_digest}});
  }
  if (context.json) {
    print_json(list);
  } else if (table.num_rows() > 0) {
    std::cout << table.render(report::style_of(STDOUT_FILENO));
  }
}

}  // namespace

void add_env_command(CLI::App& app, Context& context) {
  CLI::App* env =
      app.add_subcommand("env", "this machine: what it can run, and the images it runs in");
  env->require_subcommand(1);
  CLI::App* look =
      env->add_subcommand("doctor", "what is here, what is missing and the command that brings it");
  look->callback([&context] { doctor(context); });
  CLI::App* list = env->add_subcommand("images", "the base images of podman and docker");
  auto ensure = std::make_shared<bool>(false);
  list->add_flag("--ensure", *ensure,
                 "build what is not there (needs root and debootstrap; about three minutes)");
  list->callback([&context, ensure] { images(context, *ensure); });
  add_env_policy_commands(*env, context);
  add_cache_command(app, context);
}

}  // namespace patchbench::cli
