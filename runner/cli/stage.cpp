#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/pin_arguments.h"
#include "exec/image.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "exec/sandbox.h"
#include "git/checkout.h"
#include "git/series.h"
#include "run/execute.h"
#include "run/names.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct StageOptions {
  std::vector<std::string> options;
  std::string device = "cuda:0";
  bool window = false, container = false;
};

/// A pack that is staged, and the further releases that are named after it.
struct StagedPack {
  Manifest manifest;
  NamedPins pins;
  /// Of an upstream of the pack.
  std::vector<std::string> versions_of(const std::string& upstream) const {
    if (upstream == upstream_use(manifest, pins.upstream).name) return pins.versions;
    std::vector<std::string> versions;
    for (const PinWord& one : pins.companions) {
      if (one.upstream == upstream) versions.push_back(one.which);
    }
    return versions;
  }
};

/// The words but the last one: SLUG [[UPSTREAM@]WHICH]… SLUG …
std::vector<StagedPack> packs_of(const Context& context,
                                 const std::vector<std::string>& arguments) {
  if (arguments.size() < 2)
    throw Error(ErrorCode::kUsage,
                "stage: want SLUG [[UPSTREAM@]WHICH] ... DIR: the folder is the last word");
  const std::vector<std::string> known = context.slugs();
  std::vector<StagedPack> packs;
  std::vector<std::string> pins;
  const auto end_pack = [&] {
    if (packs.empty()) return;
    packs.back().pins = named_pins(packs.back().manifest, pins, {.max_versions = pins.size()});
    pins.clear();
  };
  for (const std::string& word : std::vector(arguments.begin(), arguments.end() - 1)) {
    if (!packs.empty() && std::find(known.begin(), known.end(), word) == known.end()) {
      if (word.find("path:") != std::string::npos)
        throw Error(ErrorCode::kUsage,
                    "'" + shown(word) + "': a folder of this machine cannot be staged");
      pins.push_back(word);
      continue;
    }
    end_pack();
    packs.push_back({context.manifest(word), {}});
  }
  end_pack();
  return packs;
}

std::string linked_libraries(const fs::path& program) {
  return exec::run({.argv = {"ldd", program.string()}}).out;
}

/// The plan runs subjects of the judge's own process too, which a build without CUDA has on no GPU.
void require_device(const std::string& device, const fs::path& program) {
  if (recorded_kind(device) == DeviceKind::kCpu || !fs::exists(program) ||
      linked_libraries(program).find("libtorch_cuda.so") != std::string::npos)
    return;
  throw Error(ErrorCode::kNotRunnable,
              fmt::format("stage: {} was built without CUDA, so that its ops do not run on {}; "
                          "build the cuda preset (./patchbench stage does where nvcc is), or stage "
                          "for --device cpu",
                          program.filename().string(), device));
}

/// Shared objects a program needs beyond what every glibc machine and the torch wheel have.
std::set<fs::path> carried_libraries(const fs::path& program) {
  std::set<fs::path> libraries;
  std::istringstream lines(linked_libraries(program));
  for (std::string line; std::getline(lines, line);) {
    const auto arrow = line.find("=> /");
    if (arrow == std::string::npos) continue;
    const fs::path path = line.substr(arrow + 3, line.find(" (", arrow) - arrow - 3);
    const std::string name = path.filename().string();
    // glibc's own parts work with no other glibc than theirs.
    static const std::set<std::string> kEverywhere = {
        "libc.so.6",       "libm.so.6",      "libdl.so.2",    "librt.so.1",    "libutil.so.1",
        "libpthread.so.0", "libresolv.so.2", "libgcc_s.so.1", "libstdc++.so.6"};
    const bool is_torch = path.string().find("/torch/lib/") != std::string::npos ||
                          path.string().find("/nvidia/") != std::string::npos;
    if (!kEverywhere.contains(name) && !is_torch) libraries.insert(path);
  }
  return libraries;
}

void copy_into(const fs::path& from, const fs::path& to) {
  fs::create_directories(to.parent_path());
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
}

/// The base image's file system and what describes it, for runc to run there.
void carry_bundle(const Context& context, const fs::path& folder) {
  if (exec::find_program("runc").empty())
    throw Error(ErrorCode::kNotRunnable, "--container: no runc on PATH; apt-get install runc");
  constexpr exec::SandboxKind kEngine = exec::SandboxKind::kPodman;
  exec::progress("staging the base image");
  const exec::BaseImage image =
      exec::ensure_base_image(kEngine, "bookworm", context.cache, context.root);
  fs::create_directories(folder);
  exec::export_base_image(kEngine, image, folder / "rootfs.tar", context.cache);
  std::ofstream(folder / "image.json")
      << Json{{"tree_digest", image.tree_digest}, {"python", image.python}, {"tag", image.tag}}
      << "\n";
}

/// The script that runs the plan: everything it calls is this program, carried along.
std::string run_script(const StageOptions& options, const std::vector<std::string>& commands) {
  std::string text =
      "#!/bin/sh\n"
      "# Runs the staged plan with an installed Python that has torch; leaves records.jsonl for "
      "`patchbench ledger import`.\n"
      "# Usage: ./run [PYTHON]   (needs no network, no git, no container engine)\n"
      "set -u\n"
      "here=$(cd \"$(dirname \"$0\")\" && pwd)\n"
      "python=${1:-$(command -v python3)}\n"
      "torch=$(\"$python\" -c 'import torch, os; print(os.path.dirname(torch.__file__))') || {\n"
      "  echo \"stage: $python has no torch; name an interpreter that has: ./run PYTHON\" >&2\n"
      "  exit 4\n"
      "}\n"
      "export PATCHBENCH_ROOT=\"$here/root\" XDG_CACHE_HOME=\"$here/cache\" "
      "PATCHBENCH_LEDGER=\"$here/ledger.db\"\n"
      "export LD_LIBRARY_PATH=\"$here/lib:$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\" "
      "PATH=\"$here/bin:$PATH\"\n"
      "bundle=\"$here/cache/patchbench/bundle\"\n"
      "if [ -f \"$bundle/rootfs.tar\" ] && [ \"$(id -u)\" != 0 ]; then\n"
      "  echo \"stage: only root can start the container; falling back to bwrap\" >&2\n"
      "elif [ -f \"$bundle/rootfs.tar\" ] && [ ! -d \"$bundle/rootfs\" ]; then\n"
      // It holds programs that are set-uid: no other user may reach them.
      "  chmod 700 \"$bundle\" && rm -rf \"$bundle/part\" && mkdir \"$bundle/part\" &&\n"
      "    tar -C \"$bundle/part\" -xpf \"$bundle/rootfs.tar\" && mv \"$bundle/part\" "
      "\"$bundle/rootfs\" ||\n"
      "    echo \"stage: the base image cannot be unpacked here\" >&2\n"
      "fi\n"
      "status=0\n";
  for (const std::string& command : commands) {
    text += fmt::format(
        "patchbench {} --python \"$python\" --device \"${{PATCHBENCH_DEVICE:-{}}}\" || {{ s=$?; [ "
        "$s -gt $status ] && status=$s; }}\n",
        command, options.device);
  }
  text +=
      "patchbench ledger export -o \"$here/records.jsonl\" && echo \"stage: wrote "
      "$here/records.jsonl\" >&2\nexit $status\n";
  return text;
}

/// The releases that a pack's runs need, into the staged cache; returns the commands that run them.
std::vector<std::string> carry_releases(const Context& context, const StageOptions& options,
                                        const StagedPack& pack, const fs::path& staged_cache) {
  const Pins pins = context.pins();
  const Manifest& manifest = pack.manifest;
  const std::string slug = manifest.slug.str();
  std::vector<std::string> commands;
  const std::string of = upstream_use(manifest, pack.pins.upstream).name;
  for (const UpstreamUse& use : manifest.upstreams) {
    const std::vector<std::string> versions = pack.versions_of(use.name);
    if ((use.from_environment || use.stands_alone) && use.name != of && versions.empty()) continue;
    std::vector<Pin> needed = {pins.resolve(use.name, use.red_pin)};
    if (options.window) needed = pins.upstream(use.name).releases;
    for (const std::string& version : versions) needed.push_back(pins.resolve(use.name, version));
    for (const Pin& pin : needed) {
      exec::progress("staging " + pin.upstream + " " + pin.version);
      const fs::path file = fs::path("files") / pin.sha256 / pin.filename;
      git::Store(context.cache, context.root).materialize(pin, {});  // fetches and checks it here
      if (pin.kind == PinKind::kFile) copy_into(context.cache / file, staged_cache / file);
      git::Store(staged_cache, context.root).materialize(pin, {});
    }
    // Worktrees name the folder they were made in; each run checks its own out of the repository.
    fs::remove_all(staged_cache / "checkouts");
    fs::remove_all(staged_cache / "git" / (use.name + ".git") / "worktrees");
    const std::string named = slug + " " + use.name;
    commands.push_back("reproduce " + slug + " " + pin_word(use.name, use.red_pin));
    for (const std::string& version : versions)
      commands.push_back("reproduce " + slug + " " + pin_word(use.name, version));
    const fs::path patches = context.root / cell_path(manifest.slug, Column::kPatches);
    if (!git::load_series(patches, use.name).edits.empty()) commands.push_back("validate " + named);
    if (options.window) commands.push_back("window " + named);
  }
  for (const char* subject : {"op", "mitigated"}) {
    if (!has_subject(manifest, subject)) continue;
    const UpstreamUse use = upstream_use(manifest, "", subject);
    commands.push_back(fmt::format("reproduce {} {} --subject {}", slug,
                                   pin_word(use.name, use.red_pin), subject));
  }
  return commands;
}

void stage(const Context& context, const StageOptions& options) {
  const std::vector<StagedPack> packs = packs_of(context, options.options);
  const fs::path folder = fs::absolute(options.options.back());
  if (fs::exists(folder) && !fs::is_empty(folder)) {
    throw Error(ErrorCode::kUsage, folder.string() + ": is not empty; name a new folder");
  }
  for (const StagedPack& pack : packs)
    require_device(options.device, context.bin / ("repro_" + pack.manifest.slug.str()));
  std::vector<std::string> commands;
  std::vector<fs::path> programs = {context.bin / "patchbench", context.bin / "patchbench-sandbox"};
  for (const char* part : {"env", "packs", "patches", "mitigations", "repro/bench", "repro/harness",
                           "repro/training"}) {
    copy_into(context.root / part, folder / "root" / part);
  }
  const fs::path staged_cache = folder / "cache/patchbench";
  for (const StagedPack& pack : packs) {
    const std::string slug = pack.manifest.slug.str();
    if (const auto waived = pack.manifest.waived(Column::kRepro)) {
      throw Error(ErrorCode::kNotRunnable,
                  fmt::format("{}: no reproducer yet ({})", slug, *waived));
    }
    copy_into(context.root / "repro" / slug, folder / "root/repro" / slug);
    programs.push_back(context.bin / ("repro_" + slug));
    if (fs::exists(context.bin / ("bench_" + slug)))
      programs.push_back(context.bin / ("bench_" + slug));
    for (std::string& command : carry_releases(context, options, pack, staged_cache))
      commands.push_back(std::move(command));
  }
  if (options.container) carry_bundle(context, staged_cache / "bundle");
  for (const char* name : {"bwrap", "runc"}) {
    const fs::path program = exec::find_program(name);
    if (!program.empty() && (options.container || program.filename() != "runc"))
      programs.push_back(program);
  }
  for (const fs::path& program : programs) {
    copy_into(program, folder / "bin" / program.filename());
    for (const fs::path& library : carried_libraries(program))
      copy_into(fs::canonical(library), folder / "lib" / library.filename());
  }
  std::ofstream(folder / "run") << run_script(options, commands);
  fs::permissions(folder / "run", fs::perms::owner_all | fs::perms::group_read |
                                      fs::perms::group_exec | fs::perms::others_read |
                                      fs::perms::others_exec);
  context.out() << fmt::format(
      "{}: {} commands; there: ./run [PYTHON]; here afterwards: patchbench ledger import "
      "records.jsonl\n",
      folder.string(), commands.size());
}

}  // namespace

void add_stage_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<StageOptions>();
  CLI::App* command = app.add_subcommand(
      "stage", "write a folder that runs on a machine without network, git or containers");
  command
      ->add_option("slugs", options->options,
                   "SLUG [[UPSTREAM@]WHICH] ...: packs, after each the releases on which it is "
                   "reproduced, too; the last word is the new folder")
      ->required();
  command->parse_complete_callback(
      [options, &context] { (void)packs_of(context, options->options); });
  command->add_flag("--window", options->window, "also measure every locked release");
  command->add_flag("--container", options->container,
                    "also carry the base image and runc: subjects there run in a container where "
                    "root runs the folder, else in bubblewrap");
  command->add_option("--device", options->device, "device there")->capture_default_str();
  command->footer(
      "Examples:\n  patchbench stage liger_flce_none_bwd te_fused_ce /tmp/stage --container\n  "
      "patchbench stage liger_flce_none_bwd 0.8.5 /tmp/stage --window\n"
      "  scp -r /tmp/stage gpu: && ssh gpu /tmp/stage/run && scp gpu:/tmp/stage/records.jsonl .\n"
      "  patchbench ledger import records.jsonl");
  command->callback([options, &context] { stage(context, *options); });
}

}  // namespace patchbench::cli
