#include "status/windows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace patchbench {
namespace {

DeviceClassWindow window_on(const PackRecords& verdicts, const std::string& slug,
                            const Upstream& upstream, const std::string& device) {
  DeviceClassWindow window{upstream.name, device, {}, {}};
  std::vector<std::string> versions;
  for (const Pin& pin : upstream.versions()) versions.push_back(pin.version);
  window.states = states_of(verdicts.verdict_index, slug, upstream.name, device, versions);
  for (ReleaseState& state : window.states) {
    if (state.state == BugStatus::kUnresolved &&
        has_no_such_code(cited_observations(verdicts.records, state.record)))
      state.state = BugStatus::kUnsupported;
  }
  window.intervals = intervals_of(window.states);
  return window;
}

}  // namespace

int64_t DeviceClassWindow::count(BugStatus state) const {
  return std::count_if(states.begin(), states.end(),
                       [&](const ReleaseState& release) { return release.state == state; });
}

bool DeviceClassWindow::is_open() const {
  return !intervals.empty() && !states.empty() &&
         intervals.back().last_bad == states.back().version;
}

std::vector<DeviceClassWindow> windows_of(const PackRecords& verdicts, const Manifest& pack) {
  std::vector<DeviceClassWindow> windows;
  for (const UpstreamUse& use : pack.upstreams) {
    if (use.from_environment) continue;
    const Upstream& upstream = verdicts.pins.upstream(use.name);
    std::set<std::string> devices;
    for (const auto& [key, cells] : verdicts.verdict_index.by_key()) {
      if (key.slug != pack.slug.str() || key.upstream != use.name ||
          !key.question.is(Question::kReproduce))
        continue;
      for (const auto& [device, cell] : cells) {
        if (cell.newest() != nullptr) devices.insert(device);
      }
    }
    for (const std::string& device : devices)
      windows.push_back(window_on(verdicts, pack.slug.str(), upstream, device));
  }
  return windows;
}

std::vector<SourceState> sources_of(const PackRecords& verdicts, const Manifest& pack,
                                    const UpstreamUse& use) {
  std::map<std::string, Json> files;  // version -> digests
  for (const auto& [key, cells] : verdicts.verdict_index.by_key()) {
    if (key.slug != pack.slug.str() || key.upstream != use.name ||
        !key.question.is(Question::kReproduce))
      continue;
    for (const auto& [device, cell] : cells) {
      const Finding* finding = cell.newest();
      if (finding == nullptr || files.contains(key.version)) continue;
      const std::optional<Record> record = verdicts.records.find(finding->digest);
      const Json context = record ? record->predicate().at("context") : Json::object();
      Json named = context.value("files", Json::object());
      bool has_all = true;
      for (const std::string& file : use.files) has_all &= named.contains(file);
      if (has_all && !use.files.empty()) files[key.version] = std::move(named);
    }
  }
  std::vector<SourceState> states;
  const auto red = files.find(use.red_pin);
  if (red == files.end()) return states;
  for (const Pin& pin : verdicts.pins.upstream(use.name).releases) {
    const auto at = files.find(pin.version);
    if (at == files.end()) continue;
    bool is_same = true, is_absent = true;
    for (const std::string& file : use.files) {
      is_same &= at->second.at(file) == red->second.at(file);
      is_absent &= at->second.at(file) == "absent";
    }
    states.push_back({pin.version, is_absent ? "no_such_file"
                                   : is_same ? "as_red_pin"
                                             : "differs"});
  }
  return states;
}

std::string window_text(const DeviceClassWindow& window) {
  if (window.intervals.empty()) {
    const int64_t num_absent = window.count(BugStatus::kAbsent);
    return num_absent > 0 ? fmt::format("absent from all {} judged releases", num_absent)
                          : "no release judged";
  }
  std::string text;
  for (const Interval& interval : window.intervals) {
    const std::string range = interval.first_bad == interval.last_bad
                                  ? interval.first_bad
                                  : interval.first_bad + "-" + interval.last_bad;
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", range, interval.failure_class,
                        interval.has_gap ? " (gap)" : "");
  }
  const std::string& good = window.intervals.back().first_good_after;
  return text + (window.is_open() ? "; open at the newest release"
                 : good.empty()   ? "; no good release after it measured"
                                  : "; first good " + good);
}

std::vector<ClassWindow> class_windows(const PackRecords& verdicts, const Manifest& pack,
                                       const DeviceClassWindow& window) {
  std::map<std::string, std::vector<Observation>> observations;
  for (const ReleaseState& release : window.states) {
    if (!release.record.empty())
      observations[release.version] = cited_observations(verdicts.records, release.record);
  }
  std::vector<ClassWindow> windows;
  for (const std::string& name : pack.classes_order) {
    std::vector<Interval> intervals =
        intervals_of(states_in_class(name, window.states, observations));
    if (!intervals.empty()) windows.push_back({name, std::move(intervals)});
  }
  return windows;
}

std::string class_windows_text(const std::vector<ClassWindow>& windows) {
  std::string text;
  for (const ClassWindow& window : windows) {
    std::vector<std::string> ranges;
    for (const Interval& i : window.intervals) {
      ranges.push_back((i.first_bad == i.last_bad ? i.first_bad : i.first_bad + "-" + i.last_bad) +
                       (i.has_gap ? " (gap)" : ""));
    }
    const std::string& good = window.intervals.back().first_good_after;
    text += fmt::format("{} {}; {}\n", window.failure_class, fmt::join(ranges, ", "),
                        good.empty() ? "no good release after it measured" : "first good " + good);
  }
  return text;
}

Json class_windows_json(const std::vector<ClassWindow>& windows) {
  Json classes = Json::object();
  for (const ClassWindow& window : windows) {
    for (const Interval& i : window.intervals) {
      classes[window.failure_class].push_back({{"first_bad", i.first_bad},
                                               {"last_bad", i.last_bad},
                                               {"last_good_before", i.last_good_before},
                                               {"first_good_after", i.first_good_after},
                                               {"has_gap", i.has_gap}});
    }
  }
  return classes;
}

Json window_json(const DeviceClassWindow& window) {
  Json states = Json::array(), intervals = Json::array();
  for (const ReleaseState& release : window.states)
    states.push_back({{"version", release.version},
                      {"state", release.state.text()},
                      {"verdict", release.record}});
  for (const Interval& i : window.intervals) {
    intervals.push_back({{"class", i.failure_class},
                         {"first_bad", i.first_bad},
                         {"last_bad", i.last_bad},
                         {"last_good_before", i.last_good_before},
                         {"first_good_after", i.first_good_after},
                         {"has_gap", i.has_gap}});
  }
  return {{"upstream", window.upstream},
          {"device", window.device},
          {"is_open", window.is_open()},
          {"releases", states},
          {"intervals", intervals}};
}

}  // namespace patchbench
