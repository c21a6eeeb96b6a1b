#include "run/window_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/exit_status.h"
#include "core/looked_at.h"
#include "core/window.h"
#include "exec/progress.h"
#include "ledger/ledger.h"
#include "report/table.h"
#include "run/checkouts.h"
#include "run/questions.h"
#include "status/agreement.h"
#include "status/cost_history.h"
#include "status/pack_records.h"
#include "status/table_style.h"

namespace patchbench {
namespace {

struct MeasuredRelease {
  ReleaseState state;
  Outcome outcome;
  std::optional<NotRun> not_run;
};

std::set<std::string> arguments_in(const std::vector<Observation>& observations) {
  std::set<std::string> names;
  for (const auto& [name, values] : looked_at(observations).arguments) names.insert(name);
  return names;
}

MeasuredRelease measure(const Context& context, RunRequest request, const std::string& version) {
  request.version = version;
  try {
    const Setup setup = prepare(context, request);
    const Answer answer = reproduce(context, setup, request);
    const std::vector<Observation> observations = observations_of(answer.trials);
    BugState state = state_of(answer.outcome);
    if (state == BugStatus::kUnresolved && has_no_such_code(observations))
      state = BugStatus::kUnsupported;
    return {{version, std::move(state), answer.digest, arguments_in(observations)},
            answer.outcome,
            std::nullopt};
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kIntegrity || e.code() == ErrorCode::kUsage) throw;
    const NotRun part = not_run(
        fmt::format("{} on {} {}", request.slug, request.upstream.value_or(""), version), e);
    return {{version, BugStatus::kNotMeasured, ""},
            {Sentinel::kNotRun, reason_name(part.reason), part.why, ""},
            part};
  }
}

/// What the records say already: version -> state.
struct Known {
  std::map<std::string, ReleaseState> states;  ///< judged on the cases as they are now
  std::set<std::string> outdated;              ///< judged, but on other cases
};

using Roles = std::map<std::string, CaseRole>;

/// Whether a case is part of the answer of a reproduction.
bool is_asked(CaseRole role) {
  return role != CaseRole::kSurvey && role != CaseRole::kCode && role != CaseRole::kDrawn;
}

/// The cases of a reproduction of a release, as the manifest has them.
Roles cases_of(const Setup& setup) {
  Roles roles;
  const std::string_view kind = setup.target.device.kind_name();
  for (const Case& c : setup.target.manifest.cases) {
    if (is_asked(c.role) && c.runs_on(setup.target.upstream) && c.is_for("upstream") &&
        c.counts_on(kind))
      roles[c.name] = c.role;
  }
  return roles;
}

Roles cases_among(const std::vector<Observation>& observations) {
  Roles roles;
  for (const Observation& o : observations) {
    if (is_asked(o.role) && o.counts) roles[o.case_name] = o.role;
  }
  return roles;
}

/// The newest reproduction of each release on this kind of device counts if it judged the cases of
/// today by name and role. A manifest changes with every claim that cites a record, so its digest
/// would let nothing count; that a case got other axes under its old name is not seen.
Known known_states(const Context& context, const RunRequest& request, const Setup& setup) {
  Known known;
  const PackRecords verdicts = read_pack_records(context, {.slug = request.slug, .before = {}});
  const Json companions = setup.target.companions_json();
  const std::string unusual_companions =
      companions.is_null() ? "" : unusual(canonical_json(companions), setup.target.manifest);
  const Roles today = cases_of(setup);
  for (const auto& [key, devices] : verdicts.verdict_index.by_key()) {
    const auto cell = devices.find(setup.machine.value("device", ""));
    const bool is_same = key.question.is(Question::kReproduce) &&
                         key.upstream == setup.target.upstream.name &&
                         key.companions == unusual_companions && cell != devices.end();
    const Finding* finding = is_same ? cell->second.newest() : nullptr;
    if (finding == nullptr) continue;
    const std::vector<Observation> observations =
        cited_observations(verdicts.records, finding->digest);
    BugState state = state_of(finding->outcome());
    if (state == BugStatus::kUnresolved && has_no_such_code(observations))
      state = BugStatus::kUnsupported;
    if (state == BugStatus::kUnresolved) continue;
    if (cases_among(observations) == today) {
      known.states[key.version] = {key.version, state, finding->digest, arguments_in(observations)};
    } else {
      known.outdated.insert(key.version);
    }
  }
  return known;
}

/// The first commit after `left` that is in `right.state`, by bisection inside one measured edge.
Json bisect_edge(const Context& context, const RunRequest& request, const Upstream& upstream,
                 const std::vector<std::string>& files, const ReleaseState& left,
                 const ReleaseState& right) {
  Json found = {{"from", left.version},
                {"from_state", left.state.text()},
                {"to", right.version},
                {"to_state", right.state.text()}};
  Checkouts& checkouts = checkouts_of(context);
  const auto good = checkouts.tagged(context, upstream, left.version),
             bad = checkouts.tagged(context, upstream, right.version);
  if (!good || !bad) {
    found["result"] = "no tag for " + (good ? right.version : left.version);
    return found;
  }
  const std::vector<Pin> commits = checkouts.commits_between(context, *good, *bad, files);
  std::size_t low = 0, high = commits.size();  // commits[high-1] has right.state; before
                                               // commits[low] it is left.state
  std::vector<std::string> skipped;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    const exec::Step step(fmt::format("{} -> {}: commit {}, {} left", left.version, right.version,
                                      commits[middle].commit.substr(0, 10), high - low));
    const BugState state = measure(context, request, commits[middle].version).state.state;
    if (state == right.state) {
      high = middle;
    } else if (state == left.state) {
      low = middle + 1;
    } else {
      skipped.push_back(commits[middle].commit + " " + state.text());
      break;
    }
  }
  if (!skipped.empty()) {
    found["result"] = "not one change: " + skipped.front();
  } else if (low < commits.size()) {
    found["result"] = commits[low].commit;
    found["date"] = commits[low].date;
  } else {
    found["result"] = "no commit between the tags touches the named files";
  }
  return found;
}

Json interval_json(const Interval& i) {
  return {{"class", i.failure_class},
          {"first_bad", i.first_bad},
          {"last_bad", i.last_bad},
          {"last_good_before", i.last_good_before},
          {"first_good_after", i.first_good_after},
          {"has_gap", i.has_gap}};
}

/// Each edge between two judged releases of different states, bisected over the commits between
/// them; what cannot be run here goes to `missing`.
Json commits_of_edges(const Context& context, const RunRequest& named, const Upstream& upstream,
                      const Setup& setup, const std::vector<ReleaseState>& states,
                      std::vector<NotRun>& missing) {
  Json commits = Json::array();
  for (std::size_t i = 0; i + 1 < states.size(); ++i) {
    const bool both = states[i].state != BugStatus::kUnresolved &&
                      states[i + 1].state != BugStatus::kUnresolved && !states[i].record.empty() &&
                      !states[i + 1].record.empty();
    if (!both || states[i].state == states[i + 1].state) continue;
    try {
      commits.push_back(bisect_edge(context, named, upstream, setup.target.upstream.files,
                                    states[i], states[i + 1]));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kNotRunnable) throw;
      missing.push_back(not_run(fmt::format("commits of {} from {} to {}", upstream.name,
                                            states[i].version, states[i + 1].version),
                                e));
    }
  }
  return commits;
}

/// What the window's own record says of its run.
RunContext window_context(const Setup& setup, const RunRequest& request, const Upstream& upstream) {
  RunContext run;
  run.run_id = setup.run_id;
  run.started = setup.started;
  run.tool = std::string("patchbench ") + PATCHBENCH_VERSION;
  run.slug = request.slug;
  run.manifest_sha256 = setup.target.manifest.sha256;
  run.pin = RunPin::all_of(upstream.name);
  run.files = Json::object();
  run.environment = setup.environment.address;
  run.sandbox = {exec::sandbox_name(setup.sandbox), setup.sandbox != exec::SandboxKind::kProcess};
  run.machine = setup.machine;
  return run;
}

}  // namespace

void print_window(const Context& context, const Json& window) {
  report::Table table({"release", "date", "state", "why"});
  for (const Json& r : window.at("releases")) {
    table.add({r.at("version"), r.at("date"), r.at("state"), r.at("why")});
    table.color(2, color_of(BugState(r.at("state").get<std::string>())));
  }
  context.out() << table.render(table_style(context));
  for (const Json& i : window.at("intervals")) {
    const auto or_none = [&](const char* key) {
      return i.at(key).get<std::string>().empty() ? "none measured" : i.at(key).get<std::string>();
    };
    context.out() << fmt::format(
        "{}: first bad {}, last bad {}; last good before {}, first good after {}{}\n",
        i.at("class").get<std::string>(), or_none("first_bad"), or_none("last_bad"),
        or_none("last_good_before"), or_none("first_good_after"),
        i.at("has_gap").get<bool>() ? " (a release in it was not measured)" : "");
  }
  if (window.at("intervals").empty()) context.out() << "no measured release is hit\n";
  for (const auto& [version, arguments] : window.at("gained_arguments").items())
    context.out() << fmt::format("{} gains {}\n", version,
                                 fmt::join(arguments.get<std::vector<std::string>>(), ", "));
  for (const Json& c : window.at("commits")) {
    context.out() << fmt::format(
        "{} -> {} ({} -> {}): {}\n", c.at("from").get<std::string>(), c.at("to").get<std::string>(),
        c.at("from_state").get<std::string>(), c.at("to_state").get<std::string>(),
        c.at("result").get<std::string>());
  }
}

WindowAnswer measure_window(const Context& context, const RunRequest& request,
                            const WindowOptions& window) {
  const Setup setup = prepare(context, request);
  const Upstream upstream = context.pins().upstream(setup.target.upstream.name);
  const auto known = window.resume ? known_states(context, request, setup).states
                                   : std::map<std::string, ReleaseState>{};
  std::vector<ReleaseState> states;
  Json releases = Json::array();
  std::vector<NotRun> missing;
  bool is_complete = true;
  RunRequest named = request;
  named.upstream = upstream.name;
  for (const Pin& pin : upstream.versions()) {
    const exec::Step step(fmt::format("{} {} ({}/{})", upstream.name, pin.version,
                                      states.size() + 1, upstream.versions().size()));
    MeasuredRelease one;
    if (const auto it = known.find(pin.version); it != known.end()) {
      one = {it->second, {std::nullopt, "", "from the records", ""}, std::nullopt};
    } else {
      one = measure(context, named, pin.version);
    }
    states.push_back(one.state);
    if (one.not_run) missing.push_back(*one.not_run);
    const bool is_out_of_reach = pin.kind == PinKind::kGit && one.not_run &&
                                 one.not_run->reason == NotRunReason::kUpstreamUnreachable;
    is_complete &= !one.state.state.is_open() || is_out_of_reach;
    releases.push_back({{"version", pin.version},
                        {"date", pin.date},
                        {"state", one.state.state.text()},
                        {"why", one.outcome.why},
                        {"verdict", one.state.record}});
  }
  Json intervals = Json::array();
  for (const Interval& i : intervals_of(states)) intervals.push_back(interval_json(i));
  const Json commits = window.bisect_commits
                           ? commits_of_edges(context, named, upstream, setup, states, missing)
                           : Json::array();
  Json compact = Json::object();  // the record: states and the verdicts they rest on
  for (const ReleaseState& s : states)
    compact[s.version] = {s.state.text(), s.record.substr(0, 16)};
  const Json document = {{"slug", request.slug},
                         {"upstream", upstream.name},
                         {"device", setup.target.device.text()},
                         {"releases", releases},
                         {"intervals", intervals},
                         {"commits", commits},
                         {"gained_arguments", gained_arguments(states)},
                         {"not_run", not_run_json(missing)}};
  ledger::Ledger::open(context.ledger)
      ->append(
          {make_record("window", window_context(setup, request, upstream),
                       {{"states", compact}, {"intervals", intervals}, {"commits", commits}})});
  return {document, is_complete ? kExitYes : kExitNoAnswer, missing};
}

namespace {

/// Does `work` for each upstream of each pack that has a reproducer.
void each_window(const Context& context, RunRequest request,
                 const std::function<void(const std::string& name, const RunRequest&)>& work) {
  const std::vector<std::string> slugs =
      request.slug.empty() ? context.slugs() : std::vector<std::string>{request.slug};
  for (const std::string& slug : slugs) {
    const Manifest pack = context.manifest(slug);
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.from_environment) continue;
      const std::string name = slug + " on " + use.name;
      if (const auto reason = pack.waived(Column::kRepro)) {
        exec::progress(name + ": no reproducer (" + *reason + ")");
        continue;
      }
      request.slug = slug;
      request.upstream = use.name;
      work(name, request);
    }
  }
}

Json plan_document(const Context& context, const RunRequest& request) {
  const Setup setup = prepare(context, request);
  const Known known = known_states(context, request, setup);
  Json to_measure = Json::array();
  int num_known = 0, num_outdated = 0;
  const Upstream upstream = context.pins().upstream(setup.target.upstream.name);
  for (const Pin& pin : upstream.versions()) {
    const bool is_known = known.states.contains(pin.version);
    num_known += is_known;
    num_outdated += known.outdated.contains(pin.version);
    if (!is_known) to_measure.push_back(pin.version);
  }
  return {{"slug", request.slug},
          {"upstream", setup.target.upstream.name},
          {"device", setup.target.device.text()},
          {"known", num_known},
          {"to_measure", to_measure},
          {"on_other_cases", num_outdated}};
}

}  // namespace

Json plan_windows(const Context& context, const RunRequest& request) {
  Json plans = Json::array();
  each_window(context, request, [&](const std::string&, const RunRequest& one) {
    plans.push_back(plan_document(context, one));
  });
  return plans;
}

void print_plans(const Context& context, const Json& plans) {
  std::size_t num_runs = 0;
  std::string next = "patchbench status windows";
  report::Table table({"pack", "upstream", "known", "to run", "judged on other cases"});
  for (const Json& plan : plans) {
    if (num_runs == 0 && !plan.at("to_measure").empty())
      next = fmt::format("patchbench window {} {} --resume", plan.at("slug").get<std::string>(),
                         plan.at("upstream").get<std::string>());
    num_runs += plan.at("to_measure").size();
    table.add({plan.at("slug"), plan.at("upstream"), plan.at("known").dump(),
               std::to_string(plan.at("to_measure").size()), plan.at("on_other_cases").dump()});
  }
  context.out() << table.render(table_style(context));
  context.out() << report::closing(
      fmt::format("Releases that would run: {}. Nothing ran.", num_runs), next);
}

WindowAnswer measure_all_windows(const Context& context, const RunRequest& request) {
  WindowAnswer all{Json::array(), 0, {}};
  each_window(context, request, [&](const std::string& name, const RunRequest& chosen) {
    try {
      WindowAnswer one = measure_window(context, chosen, {.resume = true});
      all.status = std::max(all.status, one.status);
      if (!context.json) {
        context.out() << name << "\n";
        print_window(context, one.document);
        context.out() << "\n";
      }
      all.document.push_back(std::move(one.document));
      all.not_run.insert(all.not_run.end(), one.not_run.begin(), one.not_run.end());
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kNotRunnable) throw e.in(name);
      all.not_run.push_back(not_run(name, e));
      all.document.push_back({{"slug", chosen.slug},
                              {"upstream", chosen.upstream.value_or("")},
                              {"not_run", not_run_json({all.not_run.back()})}});
    }
  });
  return all;
}

void show_windows(const Context& context, const std::string& slug) {
  const PackRecords verdicts = read_pack_records(context, {.slug = slug, .before = {}});
  const Manifest& pack = verdicts.packs.front();
  const std::vector<DeviceClassWindow> windows = windows_of(verdicts, pack);
  Json documents = Json::array();
  for (const DeviceClassWindow& window : windows) {
    documents.push_back(window_json(window));
    documents.back()["classes"] = class_windows_json(class_windows(verdicts, pack, window));
    if (recorded_kind(window.device) == DeviceKind::kCuda)
      documents.back()["costs"] = cost_history_json(cost_history_of(verdicts, window));
  }
  if (context.json) {
    Json disagreements = Json::array();
    for (const UpstreamUse& use : pack.upstreams) {
      for (const std::string& line :
           device_class_disagreements(windows, sources_of(verdicts, pack, use), use))
        disagreements.push_back(use.name + " " + line);
    }
    print_json(context,
               {{"slug", slug}, {"windows", documents}, {"tiers_disagree", disagreements}});
    return;
  }
  for (const UpstreamUse& use : pack.upstreams) {
    if (use.from_environment) continue;
    context.out() << render_windows(verdicts, pack, use, windows, table_style(context));
    for (const DeviceClassWindow& window : windows) {
      const std::vector<ClassWindow> classes = class_windows(verdicts, pack, window);
      if (window.upstream == use.name && classes.size() > 1)
        context.out() << window.device << ", by class:\n" << class_windows_text(classes);
      if (window.upstream == use.name)
        context.out() << render_cost_history(cost_history_of(verdicts, window), window.device,
                                             table_style(context));
    }
  }
}

}  // namespace patchbench
