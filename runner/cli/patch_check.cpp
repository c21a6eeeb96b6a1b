#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/pack_arguments.h"
#include "cli/patch_together.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "exec/progress.h"
#include "git/rebase.h"
#include "git/series.h"
#include "report/table.h"
#include "run/next_step.h"
#include "run/not_run.h"

namespace patchbench::cli {
namespace {

struct PatchCheckOptions {
  std::shared_ptr<PackArguments> pack;
  bool is_all = false, with_sides = false, with_commits = false;
};

/// The releases, oldest first; with commits the named ones of env/pins.json stand among them by
/// date.
std::vector<Pin> versions_of(const Upstream& upstream, const PatchCheckOptions& options) {
  std::vector<Pin> versions = upstream.releases;
  if (!options.with_commits) return versions;
  versions.insert(versions.end(), upstream.commits.begin(), upstream.commits.end());
  std::stable_sort(versions.begin(), versions.end(),
                   [](const Pin& one, const Pin& other) { return one.date < other.date; });
  return versions;
}

/// Which pins cannot be had here. Each is asked for once: a fetch may take long to fail.
class Reach {
 public:
  explicit Reach(git::Store& store) : store_(store) {}
  bool has(const Pin& pin) {
    const std::string name = pin.upstream + " " + pin.version;
    const auto [at, is_new] = missing_.emplace(name, std::nullopt);
    if (!is_new) return !at->second;
    try {
      store_.list(pin);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kNotRunnable) throw;
      at->second = not_run(name, e);
    }
    return !at->second;
  }
  std::vector<NotRun> missing() const {
    std::vector<NotRun> parts;
    for (const auto& [name, part] : missing_) {
      if (part) parts.push_back(*part);
    }
    return parts;
  }

 private:
  git::Store& store_;
  std::map<std::string, std::optional<NotRun>> missing_;
};

/// What one edit does on one release.
struct State {
  /// name: "applies", "rebased", "landed", "conflict", "file_gone", "not_run" (out of reach)
  std::string version, name;
  std::vector<git::Conflict> conflicts;
};

/// One edit over every version that was asked for.
struct Checked {
  std::string slug, upstream, edit, base;
  std::vector<State> states;
};

State state_of(const Edit& edit, const git::Rebase& rebase, const std::string& version) {
  switch (rebase.state) {
    case git::Rebase::State::kLanded:
      return {version, "landed", {}};
    case git::Rebase::State::kConflict:
      return {version, "conflict", rebase.conflicts};
    case git::Rebase::State::kMissingFile:
      return {version, "file_gone", rebase.conflicts};
    case git::Rebase::State::kClean:
      break;
  }
  return {version, rebase.edit->files == edit.files ? "applies" : "rebased", {}};
}

/// The edits that were written for one base, each on top of those before it, over the versions.
void check_series(const std::vector<Edit>& edits, const Pin& base, const PackSeries& pack,
                  const PatchCheckOptions& options, git::Store& store, Reach& reach,
                  std::vector<Checked>& out) {
  const std::size_t first = out.size();
  for (const Edit& edit : edits)
    out.push_back({pack.manifest.slug.str(), pack.upstream.name, edit.name, base.version, {}});
  for (const Pin& release : versions_of(pack.upstream, options)) {
    std::vector<Edit> before_base, before_release;
    const bool is_here = reach.has(base) && reach.has(release);
    for (std::size_t i = 0; i < edits.size(); ++i) {
      if (!is_here) {
        out[first + i].states.push_back({release.version, "not_run", {}});
        continue;
      }
      const git::Rebase rebase =
          git::rebase_edit(edits[i], base, release, store, before_base, before_release);
      out[first + i].states.push_back(state_of(edits[i], rebase, release.version));
      before_base.push_back(edits[i]);
      // One that cannot be carried is left out: those after it are asked all the same.
      if (rebase.edit) before_release.push_back(*rebase.edit);
    }
  }
}

std::vector<Checked> check_pack(const Context& context, const PackSeries& pack,
                                const PatchCheckOptions& options, git::Store& store, Reach& reach) {
  const git::Series all = git::load_series(
      context.root / cell_path(pack.manifest.slug, Column::kPatches), pack.upstream.name);
  std::vector<std::pair<std::string, std::vector<Edit>>> by_base;
  for (const Edit& edit : all.edits) {
    const std::string base = edit.field("Base");
    if (by_base.empty() || by_base.back().first != base) by_base.push_back({base, {}});
    by_base.back().second.push_back(edit);
  }
  std::vector<Checked> out;
  for (const auto& [base, edits] : by_base)
    check_series(edits, resolve_version(context, pack.upstream.name, base), pack, options, store,
                 reach, out);
  return out;
}

/// "0.6.3-0.8.1 applies; 0.8.2-0.8.5 landed".
std::string ranges_of(const std::vector<State>& states) {
  std::string out;
  for (std::size_t first = 0; first < states.size();) {
    std::size_t last = first;
    while (last + 1 < states.size() && states[last + 1].name == states[first].name) ++last;
    out += (out.empty() ? "" : "; ") + short_version(states[first].version) +
           (last == first ? "" : "-" + short_version(states[last].version)) + " " +
           states[first].name;
    first = last + 1;
  }
  return out;
}

/// Going one way from the base: the first version where the state is another one, and the first
/// that the edit cannot be carried to.
struct Turn {
  const State* changed = nullptr;
  const State* stuck = nullptr;
};

template <typename Iterator>
Turn turn_of(Iterator base, Iterator end) {
  Turn turn;
  for (Iterator at = base; at != end; ++at) {
    if (at->name == "not_run") continue;
    const bool is_stuck = at->name == "conflict" || at->name == "file_gone";
    if (turn.changed == nullptr && at->name != base->name) turn.changed = &*at;
    if (turn.stuck == nullptr && is_stuck) turn.stuck = &*at;
  }
  return turn;
}

struct Turns {
  Turn earlier, later;
};

Turns turns_of(const Checked& checked) {
  const auto& states = checked.states;
  const auto base = std::find_if(states.begin(), states.end(),
                                 [&](const State& state) { return state.version == checked.base; });
  if (base == states.end()) return {};
  return {turn_of(std::make_reverse_iterator(base + 1), states.rend()),
          turn_of(base, states.end())};
}

std::string turn_text(const State& state) {
  std::string text = short_version(state.version) + " " + state.name;
  for (const git::Conflict& conflict : state.conflicts) text += " " + conflict_place(conflict);
  return text;
}

std::string version_of(const State* state) { return state == nullptr ? "" : state->version; }

void print_turn(const Context& context, const std::string& way, const Turn& turn) {
  if (turn.changed == nullptr) return;
  context.out() << report::paragraph("    ", way + ", first " + turn_text(*turn.changed));
  if (turn.stuck != nullptr && turn.stuck != turn.changed)
    context.out() << report::paragraph("    ", way + ", stops at " + turn_text(*turn.stuck));
}

Json checked_json(const Checked& checked) {
  Json states = Json::array();
  for (const State& state : checked.states)
    states.push_back({{"version", state.version},
                      {"state", state.name},
                      {"conflicts", conflicts_json(state.conflicts)}});
  const Turns turns = turns_of(checked);
  return {{"slug", checked.slug},
          {"upstream", checked.upstream},
          {"edit", checked.edit},
          {"base", checked.base},
          {"releases", states},
          {"changes_earlier_at", version_of(turns.earlier.changed)},
          {"changes_later_at", version_of(turns.later.changed)},
          {"stuck_earlier_at", version_of(turns.earlier.stuck)},
          {"stuck_later_at", version_of(turns.later.stuck)}};
}

void print_checked(const Context& context, const std::vector<Checked>& all, bool with_sides) {
  std::string heading;
  for (const Checked& checked : all) {
    const std::string wanted = checked.slug + " · " + checked.upstream;
    if (wanted != heading) context.out() << (heading.empty() ? "" : "\n") << wanted << "\n";
    heading = wanted;
    context.out() << report::paragraph(
                         "  ", checked.edit + ", written for " + short_version(checked.base))
                  << report::paragraph("    ", ranges_of(checked.states));
    const Turns turns = turns_of(checked);
    print_turn(context, "going back", turns.earlier);
    print_turn(context, "going on", turns.later);
    for (const State& state : checked.states) {
      for (const git::Conflict& conflict : state.conflicts) {
        if (with_sides)
          context.out() << fmt::format("\n{}, {}\n--- ours\n{}--- {}\n{}", state.version,
                                       conflict_place(conflict), conflict.ours, state.version,
                                       conflict.theirs);
      }
    }
  }
}

/// Packs that share an upstream, over its versions: which pairs conflict, and where.
Json check_together(const Context& context, const PatchCheckOptions& options, git::Store& store,
                    Reach& reach) {
  Json rows = Json::array();
  for (const auto& [upstream, packs] : packs_by_upstream(context, "")) {
    if (packs.size() < 2) continue;
    for (const Pin& release : versions_of(packs.front().upstream, options)) {
      exec::progress("together on " + upstream + " " + release.version);
      std::vector<PackSeries> there;  // with the edits that were written for this release
      Json not_tried = Json::array();
      for (const PackSeries& pack : packs) {
        PackSeries one = find_series(context, pack.manifest.slug.str(), upstream, release.version);
        if (reach.has(release) && reach.has(one.base)) {
          there.push_back(std::move(one));
        } else {
          not_tried.push_back(pack.manifest.slug.str());
        }
      }
      Together group{release, {}, {}, {}};
      if (!there.empty()) group = together_at(there, release, store);
      Json pairs = Json::array(), slugs = Json::array();
      for (const auto& [slug, edits] : group.series) slugs.push_back(slug);
      for (const git::Clash& clash : group.clashes)
        pairs.push_back({{"one", clash.one},
                         {"other", clash.other},
                         {"conflicts", conflicts_json(clash.conflicts)}});
      rows.push_back({{"upstream", upstream},
                      {"version", release.version},
                      {"packs", slugs},
                      {"left_out", group.left_out},
                      {"not_run", not_tried},
                      {"clashes", pairs}});
    }
  }
  return rows;
}

void print_together(const Context& context, const Json& rows) {
  context.out() << "\nTogether\n";
  if (rows.empty()) context.out() << "  no two packs have edits for one upstream\n";
  for (const Json& row : rows) {
    std::string text;
    for (const Json& slug : row.at("packs")) text += slug.get<std::string>() + " ";
    text += row.at("packs").size() < 2  ? "no two to test"
            : row.at("clashes").empty() ? "go together"
                                        : "do not all go together";
    for (const Json& slug : row.at("left_out"))
      text += "; " + slug.get<std::string>() + " does not reach it";
    for (const Json& slug : row.at("not_run")) text += "; " + slug.get<std::string>() + " not_run";
    for (const Json& clash : row.at("clashes"))
      text += fmt::format("; {} + {} conflict", clash.at("one").get<std::string>(),
                          clash.at("other").get<std::string>());
    context.out() << report::paragraph(
        fmt::format("  {} {}: ", row.at("upstream").get<std::string>(),
                    short_version(row.at("version"))),
        text);
  }
}

void run_check(Context& context, const PatchCheckOptions& options) {
  git::Store store(context.cache, context.root);
  Reach reach(store);
  std::vector<Checked> all;
  const std::string slug = options.pack->slug;
  const std::string only = slug.empty() ? "" : options.pack->pins(context).upstream;
  for (const auto& [upstream, packs] : packs_by_upstream(context, only)) {
    for (const PackSeries& pack : packs) {
      if (!slug.empty() && pack.manifest.slug.str() != slug) continue;
      exec::progress("checking " + pack.manifest.slug.str() + " on " + upstream);
      for (Checked& checked : check_pack(context, pack, options, store, reach))
        all.push_back(std::move(checked));
    }
  }
  for (const Checked& checked : all) {
    for (const State& state : checked.states) {
      const bool is_stale = state.name != "applies" && state.name != "not_run";
      if (state.version == checked.base && is_stale) context.exit_code = kExitNo;
    }
  }
  const Json together =
      options.is_all ? check_together(context, options, store, reach) : Json::array();
  Json edits = Json::array();
  for (const Checked& checked : all) edits.push_back(checked_json(checked));
  if (context.json) {
    print_json(
        context,
        {{"edits", edits}, {"together", together}, {"not_run", not_run_json(reach.missing())}});
    return;
  }
  if (all.empty()) context.out() << "no pack has edits for this\n";
  print_checked(context, all, options.with_sides);
  if (options.is_all) print_together(context, together);
  context.out() << not_run_text(reach.missing()) << next_step_of_check(edits);
}

}  // namespace

void add_patch_check(CLI::App& patch, Context& context) {
  auto options = std::make_shared<PatchCheckOptions>();
  CLI::App* command = patch.add_subcommand(
      "check", "which edits have gone stale: each over every locked release of its upstream");
  options->pack = add_pack_arguments(
      *command, context,
      {.max_versions = 0,
       .takes_companions = false,
       .instead = "every release is tried; patchbench patch rebase SLUG WHICH tries one"},
      "one of the pack's upstreams (default: all)");
  command->add_flag("--all", options->is_all,
                    "every pack, and those that share an upstream together");
  command->add_flag("--commits", options->with_commits,
                    "the named commits of env/pins.json, too (needs the git upstream)");
  command->add_flag("--sides", options->with_sides, "print both sides of every conflict");
  command->footer(
      "applies: the files are those the edit was written for. rebased: a three-way merge carries "
      "it.\nlanded: upstream has made the same change. conflict: file and lines of the release, "
      "with "
      "both\nsides in --json and --sides. file_gone: the release has no such file. not_run: the "
      "release, or\nwhat the edit was written for, is out of reach: named at the end, and no "
      "failure.\n"
      "Exit: 1 if an edit no longer applies to its own base.\n"
      "Examples:\n  patchbench patch check --all\n  patchbench patch check liger_flce_none_bwd "
      "--sides");
  command->callback([options, &context] {
    if (options->is_all != options->pack->slug.empty())
      throw Error(ErrorCode::kUsage, "patch check wants a pack, or --all without one");
    run_check(context, *options);
  });
}

}  // namespace patchbench::cli
