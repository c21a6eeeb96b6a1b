#include "job/triage_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "job/triage_lines.h"

namespace patchbench::job {
namespace {

constexpr std::size_t kStepsKept = 31, kStepsForBaseline = 5, kMostPending = 8;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether a log record's level is below a warning.
bool is_below_warning(std::string_view message) {
  if (message.starts_with('[')) message.remove_prefix(1);
  return message.size() > 5 && (message[0] == 'V' || message[0] == 'D' || message[0] == 'I') &&
         is_digit(message[1]) && message[5] == ' ';
}

/// Whether "file.py:1" goes on as a log record's prefix does, "23] ", and its level may be a
/// warning's. Of TORCH_LOGS lines there are many: as a regex, `\d+\] `, it is slower.
bool is_record(std::string_view before, std::string_view after) {
  std::size_t end = 0;
  while (end < after.size() && is_digit(after[end])) ++end;
  if (end + 1 >= after.size() || after[end] != ']' || after[end + 1] != ' ') return false;
  std::string_view message;
  rank_of_line(before, &message);
  return !is_below_warning(message);
}

/// What marks a line as a warning, as the formats of Python, its logging, torch and NCCL have it.
const LinePattern kWarnings[] = {{"\\bWARN(ING)?\\b", true, "warning"},
                                 {"Warning: ", false, "warning"},
                                 {"\\bERROR\\b", true, "error"},
                                 {"[a-z]Error: ", true, "error"},
                                 {"Traceback (most recent", false, "error"},
                                 {"\\.(py|cpp):\\d", true, "log record", is_record}};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The text between `mark` and the next of the characters `ends`; "" without a mark.
std::string text_after(std::string_view text, std::string_view mark, std::string_view ends) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = text.substr(at + mark.size());
  return std::string(rest.substr(0, std::min(rest.find_first_of(ends), std::size_t{300})));
}

/// The text up to the next blank.
std::string word_after(std::string_view text, std::string_view mark) {
  return text_after(text, mark, " \t\r\"");
}

std::optional<double> number_at(std::string_view text) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || !(value > 0)) return std::nullopt;
  return value;
}

std::optional<double> number_after(std::string_view text, std::string_view mark) {
  const void* const at = ::memmem(text.data(), text.size(), mark.data(), mark.size());
  if (at == nullptr) return std::nullopt;
  const auto begin = static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
  return number_at(text.substr(begin + mark.size()));
}

/// Lines of one rank at the end of `text`, the last one last.
void lines_before(std::string_view text, const std::string& rank, const std::string& file_rank,
                  std::vector<std::string>& out) {
  std::string_view rest = text.substr(text.size() - std::min(text.size(), kContextBytes));
  while (!rest.empty() && out.size() < kContextLines) {
    rest.remove_suffix(1);
    const std::size_t begin = rest.rfind('\n') + 1;
    const std::string_view line = rest.substr(begin);
    const std::string_view named = rank_of_line(line, nullptr);
    if ((named.empty() ? file_rank : named) == rank) out.insert(out.begin(), clean(line));
    rest = rest.substr(0, begin);
  }
}

}  // namespace

Triage::State::State(TriageRules given, Budgets bounds, TriageOptions how)
    : rules(std::move(given)), budgets(bounds), options(std::move(how)) {
  std::vector<LinePattern> patterns;
  for (std::size_t i = 0; i < rules.rules.size(); ++i) {
    const TriageRule& rule = rules.rules[i];
    const bool is_expired = !rule.expires.empty() && rule.expires <= options.today;
    const bool is_other = !rule.versions.empty() && !options.torch_version.empty() &&
                          !in_range(options.torch_version, rule.versions);
    if (is_expired || is_other) continue;
    acting.push_back(i);
    patterns.push_back(rule.pattern);
  }
  const auto add = [&](Sign sign, const LinePattern& pattern) {
    signs.push_back(sign);
    patterns.push_back(pattern);
  };
  for (const StepTime& time : rules.step_times) {
    add(Sign::kStep, {time.after, false, "step_time"});
    step_units.push_back(time.unit_s);
  }
  add(Sign::kBreak, {"Graph break .*in user code at |Graph break in user code at ", true, "break"});
  add(Sign::kRecompile, {"Recompiling function ", false, "recompile"});
  add(Sign::kMetrics, {"{\"compilation_metrics\": ", false, "metrics"});
  add(Sign::kAutotune, {"AUTOTUNE ", false, "autotune"});
  for (const LinePattern& pattern : kWarnings) add(Sign::kWarning, pattern);
  counts.resize(rules.rules.size());
  num_alerts.resize(rules.rules.size());
  matcher = std::make_unique<LineMatcher>(patterns);
}

RankState& Triage::State::rank(std::string_view name) {
  const auto found = ranks.find(name);
  if (found != ranks.end()) return found->second;
  RankState& made = ranks[std::string(name)];
  made.name = name;
  return made;
}

void Triage::State::line(const LineInHand& line, std::span<const unsigned> ids) {
  const bool is_decided = ids.front() < acting.size();
  for (const unsigned id : ids) {
    if (id >= acting.size()) note_sign(signs[id - acting.size()], id - acting.size(), line);
  }
  if (is_decided) {
    decide(acting[ids.front()], line);
  } else if (signs[ids.back() - acting.size()] == Sign::kWarning) {
    warning(line);
  }
}

void Triage::State::decide(std::size_t index, const LineInHand& line) {
  const TriageRule& rule = rules.rules[index];
  RankState& rank = *line.rank;
  const int64_t count = ++counts[index][rank.name];
  const std::string_view prefix = log_prefix(line.message);
  if (!prefix.empty() && prefix == rank.record && !rank.record_shape.empty()) {
    // The record's first lines were unknown until this one named it.
    Cluster& cluster = unknown[rank.record_shape];
    --num_unknown;
    if (--cluster.ranks[rank.name] == 0) cluster.ranks.erase(rank.name);
    if (--cluster.count == 0) unknown.erase(rank.record_shape);
  }
  if (!prefix.empty()) rank.record = prefix;
  rank.record_shape.clear();
  if (!rule.hang.empty() && !hang.contains(rule.hang)) {
    hang.emplace(rule.hang, alert_at(line, rule.name));
    hang_order.push_back(rule.hang);
  }
  if (rule.action == Action::kAlert || (rule.bound >= 0 && count == rule.bound + 1)) {
    if (++num_alerts[index] <= kMostAlerts) raise(alert_at(line, rule.name), line);
  } else if (rule.unless_step_jump && rank.step_times.size() >= kStepsForBaseline &&
             rank.pending.size() < kMostPending) {
    rank.pending.push_back({.alert = alert_at(line, rule.name),
                            .baseline_s = median({rank.step_times.begin(), rank.step_times.end()}),
                            .steps_left = budgets.jump_window_steps});
  }
}

void Triage::State::note_sign(Sign sign, std::size_t pattern, const LineInHand& line) {
  const std::string_view text = line.text;
  const auto activity = [&](const char* what) {
    line.rank->activity = what;
    line.rank->activity_location = {file->name, line.number};
  };
  if (sign == Sign::kStep) {
    const auto value = number_after(text, rules.step_times[pattern].after);
    if (value) step(*value * step_units[pattern], line);
  } else if (sign == Sign::kBreak) {
    activity("compile");
    const std::string site = word_after(text, " in user code at ");
    count_site(breaks, "graph_break_budget", site, budgets.graph_breaks_per_site, line);
    count_frame_break(site, line);
  } else if (sign == Sign::kRecompile) {
    activity("compile");
    const std::string function = word_after(text, "Recompiling function ");
    count_site(recompiles, "recompile_budget", word_after(text, function + " in "),
               budgets.recompiles_per_site, line);
  } else if (sign == Sign::kMetrics) {
    // A structured trace tells a recompile by what the cache held before it.
    if (!number_after(text, "\"cache_size\": ")) return;
    const auto first_line = number_after(text, "\"co_firstlineno\": ").value_or(0);
    count_site(recompiles, "recompile_budget",
               fmt::format("{}:{:.0f}", word_after(text, "\"co_filename\": \""), first_line),
               budgets.recompiles_per_site, line);
  } else if (sign == Sign::kAutotune) {
    activity("autotune");
  }
}

void Triage::State::count_site(SiteCounts& sites, const std::string& what, const std::string& site,
                               int budget, const LineInHand& line) {
  if (!sites.contains(site) && sites.size() >= kMostSites) return;
  if (++sites[site][line.rank->name] != budget + 1) return;
  Alert alert = alert_at(line, what);
  alert.text = fmt::format("{}: more than {} on one rank; {}", clean(site), budget, alert.text);
  raise(std::move(alert), line);
}

/// The id that dynamo gave the compiled frame of a graph break, "" if the lines do not tell it.
std::string Triage::State::frame_of(const LineInHand& line) const {
  // TORCH_LOGS: "file.py:5127] [3/0] [__graph_breaks] Graph break"; 3 is the frame, 0 its compile.
  const std::string id = text_after(line.text, "] [", "]");
  const std::size_t slash = id.rfind('/');
  if (slash != std::string::npos) return id.substr(0, slash);
  if (!line.text.starts_with('\t')) return "";
  // TORCH_TRACE: the text is the payload of the record in the line before it.
  std::string_view record = line.before.empty() ? std::string_view(file->tail) : line.before;
  if (record.ends_with('\n')) record.remove_suffix(1);
  record.remove_prefix(record.rfind('\n') + 1);
  return text_after(record, "\"frame_id\": ", ",}");
}

void Triage::State::count_frame_break(const std::string& site, const LineInHand& line) {
  std::set<std::string>& known = frame_breaks[line.rank->name];
  const auto budget = static_cast<std::size_t>(budgets.graph_breaks_per_rank);
  if (known.size() >= kMostSites || !known.insert(frame_of(line) + " " + site).second) return;
  if (known.size() != budget + 1) return;
  Alert alert = alert_at(line, "graph_break_total");
  alert.text =
      fmt::format("more than {} graph breaks over all sites of one rank; {}", budget, alert.text);
  raise(std::move(alert), line);
}

void Triage::State::step(double seconds, const LineInHand& line) {
  RankState& rank = *line.rank;
  rank.activity.clear();
  for (Pending& pending : rank.pending) {
    const bool is_slow = seconds > pending.baseline_s * budgets.step_time_jump;
    pending.num_slow = is_slow ? pending.num_slow + 1 : 0;
    --pending.steps_left;
    // One slow step is the compile itself; three in a row are what it left behind.
    if (pending.num_slow < std::min(3, budgets.jump_window_steps)) continue;
    pending.steps_left = 0;
    pending.alert.text += fmt::format("; then steps of {:.3g} s after {:.3g} s (line {})", seconds,
                                      pending.baseline_s, line.number);
    raise(std::move(pending.alert), line);
  }
  std::erase_if(rank.pending, [](const Pending& p) { return p.steps_left <= 0; });
  rank.step_times.push_back(seconds);
  if (rank.step_times.size() > kStepsKept) rank.step_times.pop_front();
}

void Triage::State::warning(const LineInHand& line) {
  // A structured trace's payload is indented: what it quotes did not happen here.
  if (line.text.starts_with('\t')) return;
  RankState& rank = *line.rank;
  const std::string_view prefix = log_prefix(line.message);
  if (!prefix.empty() && (is_below_warning(prefix) || prefix == rank.record)) return;
  rank.record = prefix;
  rank.record_shape = shape_of(line.text);
  ++num_unknown;
  if (!unknown.contains(rank.record_shape) && unknown.size() >= kMostShapes) {
    ++num_other_shapes;
    rank.record_shape.clear();
    return;
  }
  Cluster& cluster = unknown[rank.record_shape];
  if (cluster.count++ == 0) {
    cluster.first = {file->name, line.number};
    cluster.example = clean(line.text);
  }
  ++cluster.ranks[rank.name];
}

Alert Triage::State::alert_at(const LineInHand& line, const std::string& rule) const {
  Alert alert{.rule = rule,
              .rank = line.rank->name,
              .text = clean(line.text),
              .location = {file->name, line.number}};
  lines_before(line.before, alert.rank, file->rank, alert.before);
  std::vector<std::string> earlier;
  if (alert.before.size() < kContextLines)
    lines_before(file->tail, alert.rank, file->rank, earlier);
  while (alert.before.size() < kContextLines && !earlier.empty()) {
    alert.before.insert(alert.before.begin(), std::move(earlier.back()));
    earlier.pop_back();
  }
  return alert;
}

void Triage::State::raise(Alert alert, const LineInHand& line) {
  ++num_raised;
  if (alerts.size() >= kMostAlertsInAll) return;
  alerts.push_back(std::move(alert));
  add_context_after(alerts.back(), line.after);
  if (alerts.back().after.size() < kContextLines) open.push_back(&alerts.back());
}

void Triage::State::add_context_after(Alert& alert, std::string_view rest) const {
  if (alert.location.file != file->name) return;
  rest = rest.substr(0, kContextBytes);
  while (alert.after.size() < kContextLines) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view named = rank_of_line(rest.substr(0, end), nullptr);
    if ((named.empty() ? file->rank : named) == alert.rank)
      alert.after.push_back(clean(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
}

Json Triage::State::stale() const {
  Json list = Json::array();
  for (std::size_t i = 0; i < rules.rules.size(); ++i) {
    const TriageRule& rule = rules.rules[i];
    const bool is_acting = std::find(acting.begin(), acting.end(), i) != acting.end();
    const bool is_expired = !rule.expires.empty() && rule.expires <= options.today;
    // A quiet log does not speak against a rule that would tell.
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
      by_rank[name] = {{"activity", rank.activity},
                       {"last", location_json(rank.activity_location)}};
  }
  const std::string cause = is_any_tuning                     ? "autotune"
                            : is_any_compiling && is_any_past ? "ranks"
                                                              : "unknown";
  return {{"cause", cause}, {"last_activity", by_rank}};
}

Json location_json(const LogLocation& location) {
  return {{"file", location.file}, {"line", location.line}};
}

Json alert_json(const Alert& alert) {
  return {{"rule", alert.rule},          {"rank", alert.rank},          {"text", alert.text},
          {"file", alert.location.file}, {"line", alert.location.line}, {"before", alert.before},
          {"after", alert.after}};
}

}  // namespace patchbench::job
