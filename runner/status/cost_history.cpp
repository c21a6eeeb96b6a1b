#include "status/cost_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/device.h"
#include "status/table_style.h"

namespace patchbench {
namespace {

constexpr double kChange = 1.5, kMib = 1024.0 * 1024;

struct CaseCost {
  double seconds = 0;
  int64_t peak_bytes = 0;
};
using CasesOf = std::map<std::string, CaseCost>;

CasesOf cases_of(const PackRecords& verdicts, const std::string& verdict) {
  CasesOf cases;
  for (const Observation& o : cited_observations(verdicts.records, verdict)) {
    const auto is_told = [&](const char* name) {
      return o.self_reported.contains(name) && o.self_reported[name].is_number();
    };
    if (o.subject != SubjectKind::kUpstream || !is_told("wall_s") || !is_told("peak_bytes"))
      continue;
    cases[o.case_name] = {o.self_reported["wall_s"].get<double>(),
                          o.self_reported["peak_bytes"].get<int64_t>()};
  }
  return cases;
}

struct Judged {
  std::string version;
  BugState state = BugStatus::kNotMeasured;
  CasesOf cases;
};

std::vector<CostRange> ranges_of(const std::vector<Judged>& releases, const std::string& name) {
  std::vector<CostRange> ranges;
  for (const auto& [version, state, cases] : releases) {
    const int64_t peak = cases.at(name).peak_bytes;
    const double before = ranges.empty() ? 0 : static_cast<double>(ranges.back().peak_bytes);
    const auto now = static_cast<double>(peak);
    if (!ranges.empty() && now <= before * kChange && now * kChange >= before) {
      ranges.back().last = version;
    } else {
      ranges.push_back({version, version, peak});
    }
  }
  return ranges;
}

}  // namespace

DeviceClassCosts cost_history_of(const PackRecords& verdicts, const DeviceClassWindow& window) {
  DeviceClassCosts cost_history;
  if (recorded_kind(window.device) == DeviceKind::kCpu) return cost_history;
  std::vector<Judged> releases;
  for (const ReleaseState& release : window.states) {
    if (release.record.empty()) continue;
    CasesOf cases = cases_of(verdicts, release.record);
    if (!cases.empty()) releases.push_back({release.version, release.state, std::move(cases)});
  }
  if (releases.empty()) return cost_history;
  for (const auto& [name, cost] : releases.front().cases) {
    if (std::all_of(releases.begin(), releases.end(),
                    [&](const Judged& release) { return release.cases.contains(name); }))
      cost_history.cases.push_back(name);
  }
  for (const auto& [version, state, cases] : releases) {
    ReleaseCost cost{version, state};
    for (const std::string& name : cost_history.cases) {
      cost.seconds += cases.at(name).seconds;
      cost.peak_bytes = std::max(cost.peak_bytes, cases.at(name).peak_bytes);
    }
    cost_history.releases.push_back(cost);
  }
  for (const std::string& name : cost_history.cases) {
    std::vector<CostRange> ranges = ranges_of(releases, name);
    const bool is_large = std::any_of(ranges.begin(), ranges.end(), [](const CostRange& range) {
      return static_cast<double>(range.peak_bytes) >= kMib;
    });
    if (ranges.size() > 1 && is_large) cost_history.changes.emplace_back(name, std::move(ranges));
  }
  return cost_history;
}

Json cost_history_json(const DeviceClassCosts& cost_history) {
  Json releases = Json::array(), changes = Json::array();
  for (const ReleaseCost& one : cost_history.releases)
    releases.push_back(
        {{"version", one.version}, {"wall_s", one.seconds}, {"peak_bytes", one.peak_bytes}});
  for (const auto& [name, ranges] : cost_history.changes) {
    Json list = Json::array();
    for (const CostRange& range : ranges)
      list.push_back(
          {{"first", range.first}, {"last", range.last}, {"peak_bytes", range.peak_bytes}});
    changes.push_back({{"case", name}, {"ranges", list}});
  }
  return {{"cases", cost_history.cases}, {"releases", releases}, {"changes", changes}};
}

std::string render_cost_history(const DeviceClassCosts& cost_history, const std::string& device,
                                const report::Style& style) {
  if (cost_history.releases.empty() || cost_history.cases.empty()) return "";
  report::Table table({"release", "state", "s", "peak MiB"});
  for (const ReleaseCost& one : cost_history.releases) {
    table.add({one.version, one.state.text(), fmt::format("{:.1f}", one.seconds),
               fmt::format("{:.1f}", static_cast<double>(one.peak_bytes) / kMib)});
    table.color(1, color_of(one.state));
  }
  std::string out =
      "\n" +
      report::paragraph(device + ": ",
                        fmt::format("what each release said of itself in {} cases that all ran",
                                    cost_history.cases.size()));
  out += table.render(style);
  for (const auto& [name, ranges] : cost_history.changes) {
    std::string text;
    for (const CostRange& range : ranges) {
      text += fmt::format("{}{:.1f} MiB {}", text.empty() ? "" : ", ",
                          static_cast<double>(range.peak_bytes) / kMib, range.first);
      if (range.last != range.first) text += "-" + range.last;
    }
    out += report::paragraph("peak of " + name + " ", text);
  }
  return out + report::paragraph("One call each: ",
                                 "s counts compilation, the first peak the workspace of libraries");
}

}  // namespace patchbench
