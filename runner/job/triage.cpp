#include "job/triage.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "job/triage_lines.h"
#include "job/triage_state.h"

namespace patchbench::job {
namespace {

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
                    {"first", location_json(cluster->first)},
                    {"example", cluster->example}});
  }
  return list;
}

std::string action_name(Action action) {
  return action == Action::kIgnore ? "ignore" : action == Action::kAlert ? "alert" : "count";
}

}  // namespace

Triage::Triage(TriageRules rules, Budgets budgets, TriageOptions options)
    : state_(std::make_unique<State>(std::move(rules), budgets, std::move(options))) {}

Triage::~Triage() = default;

void Triage::open(const std::string& file) {
  FileState& state = state_->files[file];
  if (state.name.empty()) state = {.name = file, .rank = rank_of_path(file), .tail = {}};
  state_->file = &state;
}

void Triage::restart(const std::string& file) {
  state_->num_replaced_lines += state_->files[file].line;
  state_->files.erase(file);
  open(file);
}

void Triage::feed(std::string_view block) {
  State& state = *state_;
  FileState& file = *state.file;
  // An alert near the end of the last block still wants the lines that follow it.
  for (Alert* alert : state.open) state.add_context_after(*alert, block);
  state.open.clear();
  int64_t number = file.line;
  std::size_t counted = 0;
  state.matcher->scan(block, [&](const LineMatcher::Hit& hit) {
    number += count_lines(block.substr(counted, hit.begin - counted));
    counted = hit.begin;
    const std::string_view text = block.substr(hit.begin, hit.end - hit.begin);
    std::string_view message;
    const std::string_view named = rank_of_line(text, &message);
    state.line({.text = text,
                .before = block.substr(0, hit.begin),
                .after = block.substr(std::min(block.size(), hit.end + 1)),
                .message = message,
                .rank = &state.rank(named.empty() ? std::string_view(file.rank) : named),
                .number = number + 1},
               hit.ids);
  });
  file.line = number + count_lines(block.substr(counted));
  if (!block.empty() && block.back() != '\n') ++file.line;
  file.tail = block.substr(block.size() - std::min(block.size(), kContextBytes));
  state.num_bytes += static_cast<int64_t>(block.size());
}

std::vector<Alert> Triage::take_alerts() {
  State& state = *state_;
  std::vector<Alert> fresh(state.alerts.begin() + static_cast<std::ptrdiff_t>(state.num_taken),
                           state.alerts.end());
  state.num_taken = state.alerts.size();
  return fresh;
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
