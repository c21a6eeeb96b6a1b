#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "job/line_matcher.h"
#include "job/policy.h"
#include "job/triage.h"
#include "job/triage_rules.h"

namespace patchbench::job {

/// What a line can be besides a match of a rule. Patterns with these follow the rules' patterns.
enum class Sign { kWarning, kBreak, kRecompile, kMetrics, kAutotune, kStep };

/// Bounds that keep memory constant; what is over them is counted and not kept.
inline constexpr std::size_t kMostShapes = 4096, kMostSites = 4096, kMostAlertsInAll = 1000,
                             kContextLines = 3, kContextBytes = 16 << 10;
inline constexpr int64_t kMostAlerts = 100;  ///< of one rule

/// What is known of one log file.
struct FileState {
  std::string name, rank;
  int64_t line = 0;  ///< lines fed so far
  std::string tail;  ///< the end of the last block, for the context of the next block
};

/// An event that is an alert only if the steps after it are slower.
struct Pending {
  Alert alert;
  double baseline_s = 0;
  int steps_left = 0, num_slow = 0;
};

/// What is known of one rank.
struct RankState {
  std::string name;
  std::deque<double> step_times;  ///< the last ones
  std::vector<Pending> pending;
  std::string record;        ///< prefix of the log record that the last warning belongs to
  std::string record_shape;  ///< the unknown shape it was counted under, "" if a rule decided
  std::string activity;      ///< "compile" or "autotune" since the last step, "" if none
  LogLocation activity_location;
};

/// An unknown warning.
struct Cluster {
  int64_t count = 0;
  std::map<std::string, int64_t> ranks;
  LogLocation first;
  std::string example;
};

/// The line in hand, and its block around it.
struct LineInHand {
  std::string_view text, before, after;
  std::string_view message;  ///< the text after what names the rank
  RankState* rank = nullptr;
  int64_t number = 0;
};

/// Counts of a graph break or a recompile, by rank.
using SiteCounts = std::map<std::string, std::map<std::string, int64_t>>;

/// A place and an alert as `Triage::finish` writes them.
Json location_json(const LogLocation& location);
Json alert_json(const Alert& alert);

struct Triage::State {
  TriageRules rules;
  Budgets budgets;
  TriageOptions options;
  std::vector<Sign> signs;          ///< of the patterns after the rules
  std::vector<std::size_t> acting;  ///< pattern -> rule: expired and other versions' are left out
  std::vector<double> step_units;   ///< of the kStep patterns, in order
  std::unique_ptr<LineMatcher> matcher;

  std::map<std::string, FileState> files;
  FileState* file = nullptr;
  std::map<std::string, RankState, std::less<>> ranks;
  std::vector<std::map<std::string, int64_t>> counts;  ///< by rule and rank
  std::vector<int64_t> num_alerts;                     ///< by rule, kept or not
  std::deque<Alert> alerts;                            ///< a deque: `open` points into it
  std::vector<Alert*> open;                            ///< alerts that want lines of the next block
  std::string_view before, after;  ///< what stands around the line in hand, in its block
  int64_t num_raised = 0, num_replaced_lines = 0;
  std::size_t num_taken = 0;
  std::map<std::string, Cluster> unknown;
  int64_t num_unknown = 0, num_other_shapes = 0, num_bytes = 0;
  SiteCounts breaks, recompiles;
  /// rank -> "frame site" of each graph break: a recompile of a frame breaks where it did before,
  /// and one forward runs one version of it.
  std::map<std::string, std::set<std::string>> frame_breaks;
  /// Class of a hang -> the first line that speaks of it; `hang_order` as they came.
  std::map<std::string, Alert> hang;
  std::vector<std::string> hang_order;

  State(TriageRules given, Budgets bounds, TriageOptions how);
  RankState& rank(std::string_view name);
  void line(const LineInHand& line, std::span<const unsigned> ids);
  void decide(std::size_t rule, const LineInHand& line);
  void note_sign(Sign sign, std::size_t pattern, const LineInHand& line);
  void count_site(SiteCounts& sites, const std::string& what, const std::string& site, int budget,
                  const LineInHand& line);
  void count_frame_break(const std::string& site, const LineInHand& line);
  std::string frame_of(const LineInHand& line) const;
  void step(double seconds, const LineInHand& line);
  void warning(const LineInHand& line);
  Alert alert_at(const LineInHand& line, const std::string& rule) const;
  void raise(Alert alert, const LineInHand& line);
  void add_context_after(Alert& alert, std::string_view rest) const;
  Json stale() const;
  Json hang_json() const;
};

}  // namespace patchbench::job
