#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/observation.h"
#include "core/release_index.h"
#include "exec/process.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// {project: PEP 691 page}, from a file or from the index. Throws Error(kNotRunnable) without a
/// network.
Json index_pages(const Context& context, const std::string& offline,
                 const std::vector<std::string>& projects) {
  if (!offline.empty()) return parse_json(read_file(offline), offline);
  std::vector<std::string> argv = {"python3", (context.root / "env/fetch.py").string(), "index"};
  argv.insert(argv.end(), projects.begin(), projects.end());
  const exec::Exit done = exec::run({.argv = argv});
  if (!done.ok()) {
    std::string why = one_line(done.err, 300);
    throw Error(ErrorCode::kNotRunnable, "pins update: the package index is out of reach (" + why +
                                             "); --offline FILE reads its pages from a file");
  }
  return parse_json(done.out, "the package index");
}

/// The packs whose windows get a cell that is not measured, with each proposed release.
std::vector<std::string> packs_on(const Context& context, const std::string& upstream) {
  std::vector<std::string> packs;
  for (const std::string& slug : context.slugs()) {
    for (const UpstreamUse& use : context.manifest(slug).upstreams) {
      if (use.name == upstream && !use.from_environment) packs.push_back(slug);
    }
  }
  return packs;
}

struct PinsOptions {
  std::string upstream, offline;
  bool is_written = false;
};

/// What the index says of one upstream.
struct Looked {
  const Upstream* upstream = nullptr;
  IndexComparison found;
  std::vector<std::string> packs;  ///< whose windows get a cell that is not measured
};

/// The result of one command.
struct Result {
  std::vector<Looked> looked;
  std::vector<std::string> not_compared;  ///< upstreams without a locked release or without a page
  bool is_written = false;
};

/// "liger-kernel: the locks hold every final release of the index from 0.3.0 on".
std::string complete_sentence(const Looked& one) {
  std::vector<std::string> left_out;
  for (const LeftOut& l : one.upstream->left_out)
    left_out.push_back(fmt::format("{} ({})", l.version, l.reason));
  return fmt::format("{}: the locks hold every final release of the index from {} on{}{}\n",
                     one.upstream->name, one.found.from,
                     left_out.empty() ? "" : ", but those left out: ", fmt::join(left_out, ", "));
}

Json json_of(const Result& result) {
  Json releases = Json::array(), unlockable = Json::array(), yanked = Json::array(),
       complete = Json::array();
  for (const Looked& one : result.looked) {
    const std::string& name = one.upstream->name;
    for (const LockableRelease& r : one.found.lockable) {
      releases.push_back({{"upstream", name},
                          {"version", r.version},
                          {"date", r.date},
                          {"file", r.file},
                          {"sha256", r.sha256},
                          {"is_hole", r.is_hole},
                          {"unmeasured", one.packs}});
    }
    for (const UnlockableRelease& r : one.found.unlockable) {
      unlockable.push_back(
          {{"upstream", name}, {"version", r.version}, {"date", r.date}, {"reason", r.reason}});
    }
    for (const YankedLock& r : one.found.yanked)
      yanked.push_back({{"upstream", name}, {"version", r.version}, {"reason", r.reason}});
    const bool is_complete =
        one.found.unlockable.empty() && (result.is_written || one.found.lockable.empty());
    if (!is_complete) continue;
    Json left_out = Json::array();
    for (const LeftOut& l : one.upstream->left_out)
      left_out.push_back({{"version", l.version}, {"reason", l.reason}});
    complete.push_back({{"upstream", name}, {"from", one.found.from}, {"left_out", left_out}});
  }
  return {{"releases", releases},
          {"unlockable", unlockable},
          {"yanked", yanked},
          {"complete", complete},
          {"not_compared", result.not_compared},
          {"written", result.is_written}};
}

void print_text(const Context& context, const Result& result) {
  report::Table table({"upstream", "version", "date", "state", "file", "not measured for"});
  std::string lines, notes, complete;
  for (const Looked& one : result.looked) {
    const std::string& name = one.upstream->name;
    for (const LockableRelease& r : one.found.lockable) {
      table.add({name, r.version, r.date, r.is_hole ? "hole" : "newer", r.file,
                 fmt::format("{}", fmt::join(one.packs, " "))});
      lines += lock_line(r) + "\n";
    }
    for (const UnlockableRelease& r : one.found.unlockable) {
      notes += fmt::format(
          "{} {} is not locked ({}). Lock one of its files by hand, or list it under "
          "\"left_out\" in env/pins.json with the reason.\n",
          name, r.version, r.reason);
    }
    for (const YankedLock& r : one.found.yanked) {
      notes += fmt::format("{} {} is locked, and the index has yanked it: {}. It stays locked.\n",
                           name, r.version, r.reason);
    }
    if (one.found.unlockable.empty() && (result.is_written || one.found.lockable.empty()))
      complete += complete_sentence(one);
  }
  if (!lines.empty()) {
    context.out() << table.render(table_style(context)) << "\n"
                  << (result.is_written ? "written to env/pins.json:\n"
                                        : "lines for env/pins.json (--write puts them in):\n")
                  << lines << "they are unmeasured until: patchbench window SLUG --resume\n";
  }
  for (const std::string& name : result.not_compared)
    notes += name + ": not compared, for it has no locked release or no page of the index\n";
  context.out() << notes << complete;
}

/// The text of env/pins.json with the new lines. Throws Error(kInternal) if a release got lost.
std::string with_new_locks(std::string text, const Pins& before,
                           const std::vector<Looked>& looked) {
  for (const Looked& one : looked)
    text = with_lock_lines(std::move(text), *one.upstream, one.found.lockable);
  const Pins after = Pins::parse(text, "env/pins.json");
  for (const auto& [name, upstream] : before.all()) {
    for (const Pin& pin : upstream.releases) {
      if (after.resolve(name, pin.version).to_json() != pin.to_json())
        throw Error(ErrorCode::kInternal, "pins update: would change " + name + " " + pin.version);
    }
  }
  return text;
}

void run_update(Context& context, const PinsOptions& options) {
  const Pins pins = context.pins();
  std::vector<std::string> projects;
  std::vector<const Upstream*> upstreams;
  if (!options.upstream.empty()) {
    upstreams = {&pins.upstream(options.upstream)};
  } else {
    for (const auto& [name, upstream] : pins.all()) upstreams.push_back(&upstream);
  }
  Result result;
  std::erase_if(upstreams, [&](const Upstream* upstream) {
    if (upstream->releases.empty() && !options.upstream.empty())
      result.not_compared.push_back(upstream->name);
    return upstream->releases.empty();
  });
  for (const Upstream* upstream : upstreams) projects.push_back(upstream->releases.back().project);
  const Json pages = upstreams.empty() ? Json() : index_pages(context, options.offline, projects);
  for (const Upstream* upstream : upstreams) {
    const std::string& project = upstream->releases.back().project;
    if (!pages.is_object() || !pages.contains(project)) {
      result.not_compared.push_back(upstream->name);
      continue;
    }
    result.looked.push_back({.upstream = upstream,
                             .found = compare_with_index(*upstream, pages.at(project)),
                             .packs = packs_on(context, upstream->name)});
  }
  if (options.is_written) {
    const fs::path path = context.root / "env/pins.json";
    const std::string text = read_file(path), changed = with_new_locks(text, pins, result.looked);
    result.is_written = changed != text;
    if (result.is_written) write_whole(path, changed);
  }
  if (context.json) {
    print_json(context, json_of(result));
  } else {
    print_text(context, result);
  }
}

}  // namespace

void add_pins_command(CLI::App& env, Context& context) {
  auto options = std::make_shared<PinsOptions>();
  CLI::App* group = env.add_subcommand("pins", "the locked releases of the upstreams");
  group->require_subcommand(1);
  group->footer(
      "Examples:\n  patchbench env pins update liger-kernel\n  patchbench env pins update --write\n"
      "  patchbench env pins functions\n");
  CLI::App* command = group->add_subcommand(
      "update", "compare the locks with the package index and propose lines for what they lack");
  command->add_option("upstream", options->upstream, "only this one");
  command->add_option("--offline", options->offline,
                      "read the index from FILE: {project: its PEP 691 JSON page}");
  command->add_flag("--write", options->is_written, "put the lines into env/pins.json");
  command->footer(
      "Final and post releases count: those after the oldest locked one by version, and those\n"
      "after the newest locked one by day. A proposed release has the same kind of file as the\n"
      "newest locked one and is not yanked. A release that is yanked or has no such file is\n"
      "reported until it is locked or listed under \"left_out\". A locked release that is yanked\n"
      "is reported and stays locked. Nothing is downloaded but the index pages.\n"
      "Exit: 4 the index is out of reach.");
  command->callback([options, &context] { run_update(context, *options); });
  add_pins_functions(*group, context);
}

}  // namespace patchbench::cli
