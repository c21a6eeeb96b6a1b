#include "status/due.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/file_text.h"
#include "report/bench.h"
#include "report/table.h"
#include "status/behind.h"
#include "status/windows.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr double kGrowth = 1.05;
constexpr const char* kNote = "note";

/// Trigger -> whether it was present, in the upstream observations behind a verdict.
std::map<std::string, bool> triggers_of(const PackRecords& verdicts, const std::string& verdict) {
  std::map<std::string, bool> out;
  for (const Observation& o : cited_observations(verdicts.records, verdict)) {
    if (o.subject == SubjectKind::kUpstream && o.role == CaseRole::kTrigger && o.counts)
      out[o.case_name] = o.status == CaseStatus::kPresent;
  }
  return out;
}

/// Whether the newest release has answered every trigger that was red at the red pin.
bool covers(const PackRecords& verdicts, const DeviceClassWindow& window,
            const std::string& red_pin) {
  const auto red = std::find_if(window.states.begin(), window.states.end(),
                                [&](const ReleaseState& s) { return s.version == red_pin; });
  if (red == window.states.end() || red->record.empty()) return false;
  const auto now = triggers_of(verdicts, window.states.back().record);
  bool is_any = false;
  for (const auto& [name, was_present] : triggers_of(verdicts, red->record)) {
    if (!was_present) continue;
    is_any = true;
    if (!now.contains(name)) return false;
  }
  return is_any;
}

/// "megatron-core 0.19.2 (cpu, H200)": where the newest locked release of an upstream is red.
std::string red_text(const std::vector<DeviceClassWindow>& windows, const std::string& upstream) {
  std::map<std::string, std::string> tiers_of;
  for (const DeviceClassWindow& window : windows) {
    if (window.upstream != upstream || !window.is_open()) continue;
    std::string& tiers = tiers_of[window.states.back().version];
    tiers += (tiers.empty() ? "" : ", ") + short_device(window.device);
  }
  std::string text;
  for (const auto& [version, tiers] : tiers_of)
    text += fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", upstream, version, tiers);
  return text;
}

/// What follows from a green upstream: only the one that the mitigation acts on retires it.
Due retirement_of(const Manifest& pack, const UpstreamUse& use,
                  const std::vector<DeviceClassWindow>& windows, const std::string& green) {
  const std::string acts_on = pack.mitigated();
  if (acts_on.empty())
    return {"retirement", green + "; the pack has no mitigation to turn off", {}};
  if (use.name == acts_on) {
    return {"retirement",
            green + ": turn the mitigation off by default for one review cycle, then delete",
            {}};
  }
  const std::string red = red_text(windows, acts_on);
  return {kNote,
          fmt::format("{}; the mitigation acts on {} and stays{}", green, acts_on,
                      red.empty() ? "" : ", red is " + red),
          {}};
}

void add_retirement(const PackRecords& verdicts, const Manifest& pack, std::vector<Due>& due) {
  const std::vector<DeviceClassWindow> windows = windows_of(verdicts, pack);
  for (const UpstreamUse& use : pack.upstreams) {
    std::string tiers, newest, since;
    std::vector<std::string> records;
    bool is_red = false;
    for (const DeviceClassWindow& window : windows) {
      if (window.upstream != use.name || window.states.empty()) continue;
      const ReleaseState& last = window.states.back();
      if (last.state.is_open()) continue;
      if (last.state != BugStatus::kAbsent || !covers(verdicts, window, use.red_pin)) {
        is_red = true;
        continue;
      }
      newest = last.version;
      since = window.intervals.empty() ? "" : window.intervals.back().first_good_after;
      tiers += (tiers.empty() ? "" : ", ") + short_device(window.device);
      records.push_back(last.record);
    }
    if (tiers.empty() || is_red) continue;
    due.push_back(retirement_of(
        pack, use, windows,
        fmt::format("{} {} is green on every trigger of {} ({}; green since {})", use.name, newest,
                    use.red_pin, tiers, since.empty() ? "?" : since)));
    due.back().records = records;
  }
}

/// The runs of the op by device, oldest first.
std::map<std::string, std::vector<Finding>> op_runs(const PackRecords& verdicts,
                                                    const Manifest& pack) {
  std::map<std::string, std::vector<Finding>> runs;
  verdicts.records.each_finding({.slug = pack.slug.str(), .before = {}}, [&](const Finding& f) {
    if (f.question.is(Question::kOp) && f.is_counted) runs[f.device].push_back(f);
  });
  for (auto& [device, list] : runs) {
    std::sort(list.begin(), list.end(),
              [](const Finding& a, const Finding& b) { return a.made < b.made; });
  }
  return runs;
}

void add_parity(const Context& context, const PackRecords& verdicts, const Manifest& pack,
                std::vector<Due>& due) {
  for (const auto& [device, runs] : op_runs(verdicts, pack)) {
    if (runs.size() < 3) continue;
    const auto last = runs.end() - 3;
    const auto is_good = [](const Finding& f) { return f.sentinel == "OP_VALIDATED"; };
    const std::vector<std::string> records = {last[1].digest, last[2].digest};
    if (!is_good(last[1]) && !is_good(last[2]) && std::any_of(runs.begin(), last + 1, is_good)) {
      due.push_back(
          {"demotion", "the op was not validated in its last two runs on " + device, records});
      continue;
    }
    // The cases that all three runs had: a new case with a larger error is not a growth.
    std::map<std::string, double> shares[3];
    for (int i = 0; i < 3; ++i) shares[i] = behind(context, verdicts, pack, last[i]).share_by_case;
    double share[3] = {0, 0, 0};
    for (const auto& [name, first] : shares[0]) {
      if (!shares[1].contains(name) || !shares[2].contains(name)) continue;
      for (int i = 0; i < 3; ++i) share[i] = std::max(share[i], shares[i].at(name));
    }
    if (share[0] > 0 && share[1] > share[0] * kGrowth && share[2] > share[1] * kGrowth) {
      due.push_back({"demotion",
                     fmt::format("the op's worst error grew over two runs on {}: {:.3g}, {:.3g}, "
                                 "{:.3g} of its limit",
                                 device, share[0], share[1], share[2]),
                     records});
    }
  }
}

/// The bar of a role in a figure; null without.
const report::Bar* bar_of(const report::PagePack::Bars& figure, const std::string& role) {
  const auto at = std::find_if(figure.bars.begin(), figure.bars.end(),
                               [&](const report::Bar& bar) { return bar.role == role; });
  return at == figure.bars.end() ? nullptr : &*at;
}

/// The figure of the peaks of the very runs that another figure has the times of; null without.
const report::PagePack::Bars* peaks_of(const std::vector<report::PagePack::Bars>& figures,
                                       const report::PagePack::Bars& times) {
  const std::string runs = times.title.substr(std::min(times.title.find(": "), times.title.size()));
  for (const report::PagePack::Bars& figure : figures) {
    if (figure.unit == "GiB" && figure.title.ends_with(runs)) return &figure;
  }
  return nullptr;
}

/// What a figure of times says of the plain computation: nothing, a demotion, or, where it takes
/// more memory for its speed, a note.
std::optional<Due> speed_of(const std::vector<report::PagePack::Bars>& figures,
                            const report::PagePack::Bars& times) {
  const report::Bar *ours = bar_of(times, "ours"), *plain = bar_of(times, "plain");
  if (times.unit != "ms" || ours == nullptr || plain == nullptr || plain->high <= 0 ||
      plain->high >= ours->low)
    return std::nullopt;
  const std::string faster =
      fmt::format("{} is faster than the op: {:.4g} ms against {:.4g} ms ({})", plain->name,
                  plain->value, ours->value, times.title);
  const report::PagePack::Bars* peaks = peaks_of(figures, times);
  const report::Bar* our_peak = peaks == nullptr ? nullptr : bar_of(*peaks, "ours");
  const report::Bar* plain_peak = peaks == nullptr ? nullptr : bar_of(*peaks, "plain");
  if (our_peak == nullptr || plain_peak == nullptr)
    return Due{"demotion", faster + "; the bench has no peaks", {}};
  const std::string memory =
      fmt::format("a peak of {:.3g} GiB against {:.3g} GiB", plain_peak->value, our_peak->value);
  if (plain_peak->value > our_peak->value * kGrowth)
    return Due{kNote, fmt::format("{}, and takes {}: speed for memory", faster, memory), {}};
  return Due{"demotion", faster + ", at " + memory, {}};
}

void add_speed(const Context& context, const Manifest& pack, std::vector<Due>& due) {
  for (const Bench& bench : benches_of(context, pack.slug)) {
    const std::vector<report::PagePack::Bars> figures = report::bars_of(bench.document);
    for (const report::PagePack::Bars& figure : figures) {
      // An op that is not the committed one is in the bench for comparison.
      const bool is_current = figure.title.find(", op ") == std::string::npos ||
                              figure.title.find(", op as committed") != std::string::npos;
      if (const auto one = is_current ? speed_of(figures, figure) : std::nullopt)
        due.push_back(*one);
    }
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

std::vector<Due> due_of(const Context& context, const PackRecords& verdicts, const Manifest& pack,
                        const std::string& today) {
  std::vector<Due> due;
  const Json& life = pack.lifecycle;
  const std::string review = life.value("review_on", ""), admission = life.value("admission", "");
  if (!review.empty() && review < today) due.push_back({"review", "was due on " + review, {}});
  if (admission.starts_with("owed:")) due.push_back({"admission", admission, {}});
  if (life.value("keep", "") == "drop") due.push_back({"deletion", "its keep level is drop", {}});
  add_retirement(verdicts, pack, due);
  add_parity(context, verdicts, pack, due);
  add_speed(context, pack, due);
  std::stable_partition(due.begin(), due.end(), is_due);
  return due;
}

bool is_due(const Due& one) { return one.what != kNote; }

}  // namespace patchbench
