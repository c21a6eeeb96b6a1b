#include <algorithm>
#include <utility>

#include "job/triage_state.h"

namespace patchbench::job {
namespace {

Json place_json(const LinePlace& place) { return {{"file", place.file}, {"line", place.line}}; }

Json alert_json(const Alert& alert) {
  return {{"rule", alert.rule},       {"rank", alert.rank},       {"text", alert.text},
          {"file", alert.place.file}, {"line", alert.place.line}, {"before", alert.before},
          {"after", alert.after}};
}

int64_t sum(const std::map<std::string, int64_t>& by_rank) {
  int64_t total = 0;
  for (const auto& [rank, count] : by_rank) total += count;
  return total;
}

Json sites_json(const SiteCounts& sites, int budget) {
  Json list = Json::array();
  for (const auto& [site, by_rank] : sites) {
    int64_t most = 0;
    for (const auto& [rank, count] : by_rank) most = std::max(most, count);
    list.push_back({{"site", clean(site)},
                    {"count", sum(by_rank)},
                    {"ranks", by_rank},
                    {"budget", budget},
                    {"over", most > budget}});
  }
  return list;
}

Json totals_json(const std::map<std::string, std::set<std::string>>& by_rank, int budget) {
  Json list = Json::array();
  for (const auto& [rank, breaks] : by_rank) {
    list.push_back({{"rank", rank},
                    {"count", breaks.size()},
                    {"budget", budget},
                    {"over", std::cmp_greater(breaks.size(), budget)}});
  }
  return list;
}

Json unknown_json(const std::map<std::string, Cluster>& unknown) {
  std::vector<std::pair<std::string, const Cluster*>> order;
  for (const auto& [shape, cluster] : unknown) order.emplace_back(shape, &cluster);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second->count > b.second->count; });
  Json list = Json::array();
  for (const auto& [shape, cluster] : order) {
    list.push_back({{"shape", shape},
                    {"count", cluster->count},
                    {"ranks", cluster->ranks},
                    {"first", place_json(cluster->first)},
                    {"example", cluster->example}});
  }
  return list;
}

std::string action_name(Action action) {
  return action == Action::kIgnore ? "ignore" : action == Action::kAlert ? "alert" : "count";
}

}  // namespace

Json Triage::State::stale() const {
  Json list = Json::array();
  for (std::size_t i = 0; i < rules.rules.size(); ++i) {
    const TriageRule& rule = rules.rules[i];
    const bool is_acting = std::find(acting.begin(), acting.end(), i) != acting.end();
    const bool is_expired = !rule.expires.empty() && rule.expires <= options.today;
    // That nothing alarming happened is no reason to question a rule that would tell.
    const bool is_idle =
        is_acting && counts[i].empty() && (!rule.is_built_in && rule.action != Action::kAlert);
    if (is_expired) list.push_back({{"rule", rule.name}, {"why", "expired " + rule.expires}});
    if (is_idle) list.push_back({{"rule", rule.name}, {"why", "matched nothing"}});
    if (!is_acting && !is_expired)
      list.push_back({{"rule", rule.name}, {"why", "is for torch " + rule.versions}});
  }
  return list;
}

Json Triage::State::hang_json() const {
  // A rank that waits for a lock or a candidate makes the others time out: theirs is the echo.
  for (const std::string& cause : hang_order) {
    if (cause != "ranks") return {{"cause", cause}, {"evidence", alert_json(hang.at(cause))}};
  }
  if (!hang_order.empty()) return {{"cause", "ranks"}, {"evidence", alert_json(hang.at("ranks"))}};
  if (!options.is_hung) return nullptr;
  Json by_rank = Json::object();
  bool is_any_tuning = false, is_any_compiling = false, is_any_past = false;
  for (const auto& [name, rank] : ranks) {
    is_any_tuning |= rank.activity == "autotune";
    is_any_compiling |= !rank.activity.empty();
    is_any_past |= rank.activity.empty();
    if (!rank.activity.empty())
      by_rank[name] = {{"activity", rank.activity}, {"last", place_json(rank.activity_place)}};
  }
  const std::string cause = is_any_tuning                     ? "autotune"
                            : is_any_compiling && is_any_past ? "ranks"
                                                              : "unknown";
  return {{"cause", cause}, {"last_activity", by_rank}};
}

Json Triage::finish() {
  State& state = *state_;
  Json rules = Json::array();
  for (std::size_t i = 0; i < state.rules.rules.size(); ++i) {
    const TriageRule& rule = state.rules.rules[i];
    rules.push_back({{"rule", rule.name},
                     {"action", action_name(rule.action)},
                     {"count", sum(state.counts[i])},
                     {"ranks", state.counts[i]},
                     {"built_in", rule.is_built_in},
                     {"reason", rule.reason}});
  }
  Json alerts = Json::array();
  for (const Alert& alert : state.alerts) alerts.push_back(alert_json(alert));
  int64_t num_lines = state.num_replaced_lines;
  for (const auto& [name, file] : state.files) num_lines += file.line;
  int64_t num_alerts = state.num_raised;
  for (const int64_t count : state.num_alerts)
    num_alerts += std::max<int64_t>(0, count - kMostAlerts);
  return {
      {"lines", num_lines},
      {"bytes", state.num_bytes},
      {"rules", rules},
      {"num_alerts", num_alerts},
      {"alerts", alerts},
      {"unknown", unknown_json(state.unknown)},
      {"num_unknown", state.num_unknown},
      {"num_of_other_shapes", state.num_other_shapes},
      {"graph_breaks", sites_json(state.breaks, state.budgets.graph_breaks_per_site)},
      {"graph_break_totals", totals_json(state.frame_breaks, state.budgets.graph_breaks_per_rank)},
      {"recompiles", sites_json(state.recompiles, state.budgets.recompiles_per_site)},
      {"stale", state.stale()},
      {"hang", state.hang_json()}};
}

}  // namespace patchbench::job
