#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "cli/pack_arguments.h"
#include "cli/patch_together.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "exec/progress.h"
#include "git/rebase.h"
#include "report/table.h"
#include "run/next_step.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

struct PatchRebaseOptions {
  std::shared_ptr<PackArguments> pack;
  std::string out;
  bool is_together = false;
};

/// What carrying a series to one version gave.
struct RebaseRow {
  std::string version;
  git::Rebase::State state = git::Rebase::State::kLanded;
  std::vector<git::Rebase> edits;
  bool is_carried() const {
    return state == git::Rebase::State::kClean || state == git::Rebase::State::kLanded;
  }
};

RebaseRow rebase_row(const PackSeries& pack, const Pin& to, git::Store& store) {
  RebaseRow row{to.version, git::Rebase::State::kLanded,
                git::rebase_series(pack.series.edits, pack.base, to, store)};
  for (const git::Rebase& rebase : row.edits) {
    if (rebase.state != git::Rebase::State::kLanded) row.state = rebase.state;
  }
  return row;
}

void write_row(const RebaseRow& row, const fs::path& folder) {
  for (const git::Rebase& rebase : row.edits) {
    if (rebase.edit && row.is_carried())
      write_whole(folder / row.version / rebase.edit->name, format_edit(*rebase.edit));
  }
}

Json row_json(const RebaseRow& row, const PackSeries& pack) {
  Json edits = Json::array();
  for (size_t i = 0; i < row.edits.size(); ++i) {
    edits.push_back({{"name", pack.series.edits[i].name},
                     {"state", git::rebase_state_name(row.edits[i].state)},
                     {"conflicts", conflicts_json(row.edits[i].conflicts)}});
  }
  return {{"version", row.version}, {"state", git::rebase_state_name(row.state)}, {"edits", edits}};
}

/// The first version, going away from the base, to which the series cannot be carried.
struct Breaks {
  std::string earlier, later;
};

Breaks breaks_of(const std::vector<RebaseRow>& rows, const std::string& base) {
  Breaks breaks;
  bool is_later = false;
  for (const RebaseRow& row : rows) {
    if (row.version == base) {
      is_later = true;
    } else if (!row.is_carried() && is_later && breaks.later.empty()) {
      breaks.later = row.version;
    } else if (!row.is_carried() && !is_later) {
      breaks.earlier = row.version;  // the last one before the base is the first on the way back
    }
  }
  return breaks;
}

void print_sides(const Context& context, const RebaseRow& row) {
  for (const git::Rebase& rebase : row.edits) {
    for (const git::Conflict& conflict : rebase.conflicts) {
      context.out() << fmt::format("\n{}\n--- ours\n{}--- {}\n{}", conflict_place(conflict),
                                   conflict.ours, row.version, conflict.theirs);
    }
  }
}

report::Table table_of(const std::vector<RebaseRow>& rows, const PackSeries& pack) {
  report::Table table({"version", "state", "edit", "where"});
  for (const RebaseRow& row : rows) {
    bool is_first = true;
    for (size_t i = 0; i < row.edits.size(); ++i) {
      for (const git::Conflict& conflict : row.edits[i].conflicts) {
        table.add({is_first ? row.version : "", is_first ? git::rebase_state_name(row.state) : "",
                   pack.series.edits[i].name, conflict_place(conflict)});
        is_first = false;
      }
    }
    if (is_first)
      table.add({row.version, git::rebase_state_name(row.state), "",
                 row.version == pack.base.version ? "the base" : ""});
  }
  return table;
}

void run_rebase(Context& context, const PatchRebaseOptions& options) {
  const std::string slug = options.pack->slug;
  const NamedPins pins = options.pack->pins(context);
  const PackSeries pack = find_series(context, slug, pins.upstream, "");
  if (pack.series.edits.empty())
    throw Error(ErrorCode::kUsage,
                slug + ": no edits for " + pack.upstream.name + " in patches/" + slug);
  const bool is_all = pins.versions.empty();
  git::Store store(context.cache, context.root);
  std::vector<RebaseRow> rows;
  for (const Pin& to :
       is_all ? pack.upstream.releases
              : std::vector{resolve_version(context, pack.upstream.name, pins.version())}) {
    if (is_all) exec::progress("carrying " + slug + " to " + to.version);
    rows.push_back(rebase_row(pack, to, store));
    if (!options.out.empty()) write_row(rows.back(), options.out);
  }
  const Breaks breaks = is_all ? breaks_of(rows, pack.base.version) : Breaks{};
  if (!is_all && !rows.front().is_carried()) context.exit_code = kExitNo;
  Json list = Json::array();
  for (const RebaseRow& row : rows) list.push_back(row_json(row, pack));
  const Json document = {
      {"slug", slug}, {"upstream", pack.upstream.name},        {"base", pack.base.version},
      {"rows", list}, {"first_break_earlier", breaks.earlier}, {"first_break_later", breaks.later}};
  if (context.json) return print_json(context, document);
  context.out() << table_of(rows, pack).render(table_style(context));
  if (!breaks.earlier.empty())
    context.out() << "going back, breaks first at " << breaks.earlier << "\n";
  if (!breaks.later.empty()) context.out() << "going on, breaks first at " << breaks.later << "\n";
  if (!is_all) print_sides(context, rows.front());
  context.out() << next_step_of_rebase(document);
}

/// The one word that may follow --together, with or without its version.
PinWord together_word(const Context& context, const PackArguments& options) {
  if (options.slug.empty()) return {};
  std::vector<std::string> upstreams;
  const Pins pins = context.pins();
  for (const auto& [name, upstream] : pins.all()) upstreams.push_back(name);
  const PinWord named = parse_pin_word(options.slug, upstreams, "env/pins.json");
  if (named.upstream.empty() || !options.options.empty())
    throw Error(ErrorCode::kUsage, "patch rebase --together wants UPSTREAM[@WHICH], or no word");
  return named;
}

/// Every red pin (or the one version asked for) of every upstream that packs have edits for.
std::vector<Together> all_together(const Context& context, const PatchRebaseOptions& options,
                                   git::Store& store) {
  std::vector<Together> groups;
  const PinWord named = together_word(context, *options.pack);
  for (const auto& [upstream, list] : packs_by_upstream(context, named.upstream)) {
    std::map<std::string, Pin> versions;
    for (const PackSeries& pack : list) {
      const Pin pin =
          named.which.empty() ? pack.base : resolve_version(context, upstream, named.which);
      versions.emplace(pin.version, pin);
    }
    for (const auto& [version, pin] : versions) groups.push_back(together_at(list, pin, store));
  }
  return groups;
}

void run_together(const Context& context, const PatchRebaseOptions& options) {
  git::Store store(context.cache, context.root);
  Json rows = Json::array();
  report::Table table({"upstream", "version", "packs", "result", "where"});
  for (const Together& group : all_together(context, options, store)) {
    const std::vector<git::Clash>& clashes = group.clashes;
    Json pairs = Json::array(), slugs = Json::array();
    for (const auto& [slug, edits] : group.series) slugs.push_back(slug);
    for (const git::Clash& clash : clashes) {
      pairs.push_back({{"one", clash.one},
                       {"other", clash.other},
                       {"conflicts", conflicts_json(clash.conflicts)}});
      for (const git::Conflict& conflict : clash.conflicts) {
        table.add({group.at.upstream, group.at.version, clash.one + " + " + clash.other, "conflict",
                   conflict_place(conflict)});
      }
    }
    for (const std::string& slug : group.left_out)
      table.add({group.at.upstream, group.at.version, slug, "does not reach it", ""});
    if (clashes.empty()) {
      table.add({group.at.upstream, group.at.version,
                 fmt::format("{} pack(s)", group.series.size()), "go together", ""});
    }
    rows.push_back({{"upstream", group.at.upstream},
                    {"version", group.at.version},
                    {"packs", slugs},
                    {"clashes", pairs},
                    {"left_out", group.left_out}});
  }
  if (context.json) {
    print_json(context, rows);
  } else if (rows.empty()) {
    context.out() << "no pack has edits for this\n";
  } else {
    context.out() << table.render(table_style(context)) << next_step_of_together(rows);
  }
}

}  // namespace

void add_patch_rebase(CLI::App& patch, Context& context) {
  auto options = std::make_shared<PatchRebaseOptions>();
  CLI::App* command = patch.add_subcommand(
      "rebase",
      "carry the series to other versions by three-way merge, or say exactly where it cannot be");
  options->pack = add_pack_arguments(
      *command, context, {.takes_companions = false, .instead = "one version, or none: all"},
      "[UPSTREAM@]WHICH (default: every release)", &options->is_together);
  command->add_flag("--together", options->is_together,
                    "which pairs of packs conflict; instead of the pack UPSTREAM[@WHICH] (default: "
                    "every upstream at its tested releases)");
  command->add_option("--write", options->out, "save the carried edits under DIR/<version>/")
      ->excludes("--together");
  command->footer(
      "States: clean, landed (upstream has made the same change), conflict, missing_file.\n"
      "Exit 1 where one version ends in a conflict or a missing file.\n"
      "Examples:\n  patchbench patch rebase liger_flce_none_bwd 0.8.1 --write /tmp/edits\n"
      "  patchbench patch rebase liger_flce_none_bwd\n  patchbench patch rebase --together");
  command->callback([options, &context] {
    if (options->is_together) return run_together(context, *options);
    if (options->pack->slug.empty())
      throw Error(ErrorCode::kUsage, "patch rebase wants a pack, or --together");
    run_rebase(context, *options);
  });
}

}  // namespace patchbench::cli
