#include "cli/lifecycle.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>

#include "cli/page_data.h"
#include "core/error.h"
#include "core/file_text.h"
#include "report/bench.h"
#include "report/table.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kGrowth = 1.05;

/// Trigger -> whether it was present, in the upstream observations behind a verdict.
std::map<std::string, bool> triggers_of(const Standing& standing, const std::string& verdict) {
  std::map<std::string, bool> out;
  const std::optional<Record> record = standing.archive.find(verdict);
  if (!record) return out;
  for (const std::string& digest : cited_by(*record)) {
    const std::optional<Record> cited = standing.archive.find(digest);
    if (!cited) continue;
    const Observation o = observation_of(*cited);
    if (o.subject == "upstream" && o.role == CaseRole::kTrigger && o.counts)
      out[o.case_name] = o.seen == Seen::kPresent;
  }
  return out;
}

/// Whether the newest release has answered every trigger that was red at the red pin.
bool covers(const Standing& standing, const TierWindow& window, const std::string& red_pin) {
  const auto red = std::find_if(window.states.begin(), window.states.end(),
                                [&](const ReleaseState& s) { return s.version == red_pin; });
  if (red == window.states.end() || red->record.empty()) return false;
  const auto now = triggers_of(standing, window.states.back().record);
  bool is_any = false;
  for (const auto& [name, was_present] : triggers_of(standing, red->record)) {
    if (!was_present) continue;
    is_any = true;
    if (!now.contains(name)) return false;
  }
  return is_any;
}

void add_retirement(const Standing& standing, const Manifest& pack, std::vector<Due>& due) {
  const std::vector<TierWindow> windows = windows_of(standing, pack);
  for (const UpstreamUse& use : pack.upstreams) {
    std::string tiers, newest, since;
    std::vector<std::string> records;
    bool is_red = false;
    for (const TierWindow& window : windows) {
      if (window.upstream != use.name || window.states.empty()) continue;
      const ReleaseState& last = window.states.back();
      if (last.state == "unresolved" || last.state == "not_measured") continue;
      if (last.state != "absent" || !covers(standing, window, use.red_pin)) {
        is_red = true;
        continue;
      }
      newest = last.version;
      since = window.intervals.empty() ? "" : window.intervals.back().first_good_after;
      tiers += (tiers.empty() ? "" : ", ") + short_device(window.device);
      records.push_back(last.record);
    }
    if (tiers.empty() || is_red) continue;
    due.push_back({"retirement",
                   fmt::format("{} {} is green on every trigger of {} ({}; green since {}): turn "
                               "the mitigation off by default for one review cycle, then delete",
                               use.name, newest, use.red_pin, tiers, since.empty() ? "?" : since),
                   records});
  }
}

/// The runs of the op by device, oldest first.
std::map<std::string, std::vector<Finding>> op_runs(const Standing& standing,
                                                    const Manifest& pack) {
  std::map<std::string, std::vector<Finding>> runs;
  standing.archive.each_finding({.slug = pack.slug.str(), .before = {}}, [&](const Finding& f) {
    if (f.asked == "op" && f.is_counted) runs[f.device].push_back(f);
  });
  for (auto& [device, list] : runs) {
    std::sort(list.begin(), list.end(), [](const Finding& a, const Finding& b) {
      return std::tie(a.started, a.digest) < std::tie(b.started, b.digest);
    });
  }
  return runs;
}

void add_parity(const Context& context, const Standing& standing, const Manifest& pack,
                std::vector<Due>& due) {
  for (const auto& [device, runs] : op_runs(standing, pack)) {
    if (runs.size() < 3) continue;
    const auto last = runs.end() - 3;
    const auto is_good = [](const Finding& f) { return f.sentinel == "OP_VALIDATED"; };
    const std::vector<std::string> records = {last[1].digest, last[2].digest};
    if (!is_good(last[1]) && !is_good(last[2]) && std::any_of(runs.begin(), last + 1, is_good)) {
      due.push_back(
          {"demotion", "the op was not validated in its last two runs on " + device, records});
      continue;
    }
    double share[3];
    for (int i = 0; i < 3; ++i) share[i] = behind(context, standing, pack, last[i]).worst_share;
    if (share[0] > 0 && share[1] > share[0] * kGrowth && share[2] > share[1] * kGrowth) {
      due.push_back({"demotion",
                     fmt::format("the op's worst error grew over two runs on {}: {:.3g}, {:.3g}, "
                                 "{:.3g} of its limit",
                                 device, share[0], share[1], share[2]),
                     records});
    }
  }
}

void add_speed(const Context& context, const Manifest& pack, std::vector<Due>& due) {
  for (const Bench& bench : benches_of(context, pack.slug)) {
    for (const report::PagePack::Bars& figure : report::bars_of(bench.document)) {
      const auto find = [&](const std::string& role) {
        return std::find_if(figure.bars.begin(), figure.bars.end(),
                            [&](const report::Bar& bar) { return bar.role == role; });
      };
      const auto ours = find("ours"), plain = find("plain");
      // An op that is not the committed one is in the bench for comparison.
      const bool is_current = figure.title.find(", op ") == std::string::npos ||
                              figure.title.find(", op as committed") != std::string::npos;
      if (figure.unit != "ms" || !is_current || ours == figure.bars.end() ||
          plain == figure.bars.end() || plain->high <= 0 || plain->high >= ours->low)
        continue;
      due.push_back({"demotion",
                     fmt::format("{} is faster than the op: {:.4g} ms against {:.4g} ms ({})",
                                 plain->name, plain->value, ours->value, figure.title),
                     {}});
    }
  }
}

struct Words {
  std::string slug, today;
  bool use_exit_code = false;
};

void run_lifecycle(Context& context, const Words& words) {
  const std::string today = words.today.empty() ? ledger::utc_now().substr(0, 10) : words.today;
  check_since(today);
  const Standing standing = standing_of(context, {.slug = words.slug, .before = {}});
  report::Table table({"pack", "role", "keep", "review on", "due", "why"});
  Json rows = Json::array();
  for (const Manifest& pack : standing.packs) {
    const std::string keep = pack.lifecycle.value("keep", ""),
                      review = pack.lifecycle.value("review_on", ""),
                      role = pack.lifecycle.value("catalog", Json::object()).value("role", "");
    const std::vector<Due> due = due_of(context, standing, pack, today);
    Json list = Json::array();
    if (due.empty()) table.add({pack.slug.str(), role, keep, review, "nothing", ""});
    for (const Due& one : due) {
      const bool is_first = &one == &due.front();
      table.add({is_first ? pack.slug.str() : "", is_first ? role : "", is_first ? keep : "",
                 is_first ? review : "", one.what, one.why});
      list.push_back({{"what", one.what}, {"why", one.why}, {"records", one.records}});
    }
    if (words.use_exit_code && !due.empty()) context.exit_code = 1;
    rows.push_back({{"slug", pack.slug.str()},
                    {"catalog", pack.lifecycle.value("catalog", Json::object())},
                    {"admission", pack.lifecycle.value("admission", "")},
                    {"keep", keep},
                    {"review_on", review},
                    {"retire_when", pack.lifecycle.value("retire_when", "")},
                    {"due", list}});
  }
  if (context.json) {
    print_json({{"on", today}, {"packs", rows}});
  } else {
    std::cout << table.render(report::style_of(STDOUT_FILENO));
  }
}

}  // namespace

std::vector<Bench> benches_of(const Context& context, const Slug& slug) {
  std::vector<Bench> benches;
  const fs::path folder = context.root / cell_path(slug, Column::kEvidence);
  if (!fs::is_directory(folder)) return benches;
  std::set<fs::path> files;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().filename().string().starts_with("bench") && file.path().extension() == ".json")
      files.insert(file.path());
  }
  for (const fs::path& file : files)
    benches.push_back({file.string(), parse_json(read_file(file), file.string())});
  return benches;
}

std::vector<Due> due_of(const Context& context, const Standing& standing, const Manifest& pack,
                        const std::string& today) {
  std::vector<Due> due;
  const Json& life = pack.lifecycle;
  const std::string review = life.value("review_on", ""), admission = life.value("admission", "");
  if (!review.empty() && review < today) due.push_back({"review", "was due on " + review, {}});
  if (admission.starts_with("owed:")) due.push_back({"admission", admission, {}});
  if (life.value("keep", "") == "drop") due.push_back({"deletion", "its keep level is drop", {}});
  add_retirement(standing, pack, due);
  add_parity(context, standing, pack, due);
  add_speed(context, pack, due);
  return due;
}

void add_lifecycle_command(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
  CLI::App* command = app.add_subcommand(
      "lifecycle", "what the packs' lifecycle asks for now: review, retirement, demotion");
  command->add_option("slug", words->slug, "only this pack");
  command->add_option("--on", words->today, "the day that counts as today (YYYY-MM-DD)");
  command->add_flag("--exit-code", words->use_exit_code,
                    "0 nothing is due, 1 something is, 200 our failure");
  command->footer(
      "review: the day in the manifest has passed. admission: the manifest still owes it.\n"
      "deletion: its keep level is drop. retirement: the newest locked release is green on every\n"
      "trigger that was red at the red pin. demotion: the op's worst error grew by more than 5 %\n"
      "in each of its last two runs, or neither was validated, or a bench shows the plain\n"
      "computation faster beyond both spreads. All but the first three are computed from records.");
  command->callback([words, &context] { run_lifecycle(context, *words); });
}

}  // namespace patchbench::cli
