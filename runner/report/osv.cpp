#include "report/osv.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/bug_state.h"

namespace patchbench::report {
namespace {

constexpr const char* kSchemaVersion = "1.6.7";

/// The newest measurement, as RFC 3339.
std::string newest(const Advisory& advisory) {
  std::string latest;
  for (const AdvisoryRelease& release : advisory.releases) {
    for (const DeviceState& state : release.states) latest = std::max(latest, state.started);
  }
  return latest;
}

bool is_bad(const BugState& state) { return state == BugStatus::kPresent; }

/// What one device saw, release by release.
std::vector<BugState> seen_by(const Advisory& advisory, const std::string& device) {
  std::vector<BugState> states;
  for (const AdvisoryRelease& release : advisory.releases) {
    BugState state = BugStatus::kNotMeasured;
    for (const DeviceState& s : release.states) {
      if (s.device == device) state = s.state;
    }
    states.push_back(state);
  }
  return states;
}

/// One range a run of releases that were all measured bad, whatever the class.
Json ranges_of(const Advisory& advisory, const std::vector<BugState>& states) {
  Json ranges = Json::array();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!is_bad(states[i])) continue;
    std::size_t last = i;
    while (last + 1 < states.size() && is_bad(states[last + 1])) ++last;
    const bool is_fixed = last + 1 < states.size() && states[last + 1] == BugStatus::kAbsent;
    const std::string end =
        is_fixed ? advisory.releases[last + 1].version : advisory.releases[last].version;
    ranges.push_back({{"type", "ECOSYSTEM"},
                      {"events",
                       {{{"introduced", advisory.releases[i].version}},
                        {{is_fixed ? "fixed" : "last_affected", end}}}}});
    i = last;
  }
  return ranges;
}

Json affected_entry(const Advisory& advisory, const std::vector<BugState>& states,
                    const std::vector<std::string>& devices) {
  Json versions = Json::array(), classes = Json::object();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!is_bad(states[i])) continue;
    versions.push_back(advisory.releases[i].version);
    classes[states[i].failure_class()].push_back(advisory.releases[i].version);
  }
  Json unmeasured = Json::array(), records = Json::object();
  for (std::size_t i = 0; i < states.size(); ++i) {
    const AdvisoryRelease& release = advisory.releases[i];
    if (states[i].is_open()) unmeasured.push_back(release.version);
    for (const DeviceState& s : release.states) {
      if (std::find(devices.begin(), devices.end(), s.device) != devices.end())
        records[release.version].push_back(s.digest);
    }
  }
  return {{"package",
           {{"ecosystem", "PyPI"},
            {"name", advisory.project},
            {"purl", "pkg:pypi/" + advisory.project}}},
          {"ranges", ranges_of(advisory, states)},
          {"versions", versions},
          {"ecosystem_specific", {{"devices", devices}}},
          {"database_specific",
           {{"classes", classes}, {"not_judged", unmeasured}, {"records", records}}}};
}

Json references_of(const Advisory& advisory) {
  Json references = Json::array();
  for (const std::string& thread : advisory.threads) {
    const auto hash = thread.find('#');
    references.push_back({{"type", "REPORT"},
                          {"url", "https://github.com/" + thread.substr(0, hash) + "/issues/" +
                                      thread.substr(hash + 1)}});
  }
  return references;
}

}  // namespace

Json osv_record(const Advisory& advisory) {
  std::set<std::string> devices;
  for (const AdvisoryRelease& release : advisory.releases) {
    for (const DeviceState& state : release.states) devices.insert(state.device);
  }
  std::map<std::vector<BugState>, std::vector<std::string>> by_states;
  for (const std::string& device : devices) by_states[seen_by(advisory, device)].push_back(device);
  Json affected = Json::array();
  for (const auto& [states, alike] : by_states) {
    if (std::any_of(states.begin(), states.end(), is_bad))
      affected.push_back(affected_entry(advisory, states, alike));
  }
  if (affected.empty()) return nullptr;
  Json classes = Json::object();
  for (const auto& [name, meaning] : advisory.classes) classes[name] = meaning;
  Json record = {
      {"schema_version", kSchemaVersion},
      {"id", fmt::format("PATCHBENCH-{:02}-{}", advisory.number, advisory.upstream)},
      {"modified", newest(advisory)},
      {"summary", advisory.title},
      {"details", fmt::format("{} ({}). Measured release by release; a release that is in no "
                              "range was measured right or was not judged.",
                              advisory.title, advisory.slug)},
      {"affected", affected},
      {"database_specific",
       {{"kind", "a defect, no security advisory"},
        {"id_prefix", "not registered: OSV-shaped"},
        {"slug", advisory.slug},
        {"classes", classes}}}};
  if (!advisory.threads.empty()) record["references"] = references_of(advisory);
  return record;
}

}  // namespace patchbench::report
