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

/// What is known of each release: a failure on one device outweighs what another device says.
std::vector<BugState> worst_states(const Advisory& advisory) {
  const auto weight = [](const BugState& state) {
    return is_bad(state) ? 3 : state == BugStatus::kAbsent ? 2 : state.is_open() ? 0 : 1;
  };
  std::vector<BugState> states;
  for (const AdvisoryRelease& release : advisory.releases) {
    BugState worst = BugStatus::kNotMeasured;
    for (const DeviceState& one : release.states) {
      if (weight(one.state) > weight(worst)) worst = one.state;
    }
    states.push_back(worst);
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

Json affected_entry(const Advisory& advisory, const std::vector<BugState>& states) {
  Json versions = Json::array(), classes = Json::object(), not_judged = Json::array();
  std::map<std::string, std::set<std::string>> records;
  std::set<std::string> devices;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const AdvisoryRelease& release = advisory.releases[i];
    if (is_bad(states[i])) versions.push_back(release.version);
    if (states[i].is_open()) not_judged.push_back(release.version);
    for (const DeviceState& one : release.states) {
      if (is_bad(one.state)) classes[one.state.failure_class()].push_back(release.version);
      records[release.version].insert(one.digest);
      devices.insert(one.device);
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
           {{"classes", classes}, {"not_judged", not_judged}, {"records", records}}}};
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
  const std::vector<BugState> states = worst_states(advisory);
  if (std::none_of(states.begin(), states.end(), is_bad)) return nullptr;
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
      {"affected", Json::array({affected_entry(advisory, states)})},
      {"database_specific",
       {{"kind", "a defect, no security advisory"},
        {"id_prefix", "not registered: OSV-shaped"},
        {"slug", advisory.slug},
        {"classes", classes}}}};
  if (!advisory.threads.empty()) record["references"] = references_of(advisory);
  return record;
}

}  // namespace patchbench::report
