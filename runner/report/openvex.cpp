#include "report/openvex.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "core/bug_state.h"
#include "core/digest.h"

namespace patchbench::report {
namespace {

enum class Judged { kNothing, kAbsent, kPresent };

Judged judged(const AdvisoryRelease& release) {
  Judged all = Judged::kNothing;
  for (const DeviceState& s : release.states) {
    if (s.state == BugStatus::kUnresolved) continue;
    if (s.state != BugStatus::kAbsent) return Judged::kPresent;
    all = Judged::kAbsent;
  }
  return all;
}

std::string notes_of(const AdvisoryRelease& release) {
  if (release.states.empty()) return "not measured";
  std::vector<std::string> parts;
  for (const DeviceState& s : release.states) {
    const std::string status = s.state == BugStatus::kAbsent ? "BUG_ABSENT"
                               : s.state == BugStatus::kUnresolved
                                   ? "no sentinel"
                                   : "BUG_REPRODUCED(" + s.state.text() + ")";
    parts.push_back(fmt::format("{} on {}, record {}", status, s.device, s.digest.substr(0, 16)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// What a user of an affected release can do. `fixed` is the next release measured right, or "".
std::string action_of(const Advisory& advisory, const std::string& fixed) {
  std::string action;
  if (advisory.mitigation.contains("modes")) {
    action = fmt::format(
        "Set PATCHBENCH_MITIGATE={} (needs {}; {}).", advisory.slug,
        fmt::join(advisory.mitigation.at("needs").get<std::vector<std::string>>(), ", "),
        advisory.mitigation.at("exactness").get<std::string>());
  }
  if (!fixed.empty())
    action +=
        fmt::format("{}Upgrade to {} {}.", action.empty() ? "" : " ", advisory.project, fixed);
  if (action.empty()) {
    action = fmt::format("No mitigation is needed: {}.",
                         advisory.mitigation.at("not_needed").at("why").get<std::string>());
  }
  return action;
}

Json statement_of(const Advisory& advisory, const AdvisoryRelease& release, bool has_older_bad,
                  const std::string& fixed) {
  Json statement = {
      {"vulnerability",
       {{"name", fmt::format("PATCHBENCH-{:02}-{}", advisory.number, advisory.upstream)},
        {"description", advisory.title}}},
      {"products", {{{"@id", fmt::format("pkg:pypi/{}@{}", advisory.project, release.version)}}}},
      {"status_notes", notes_of(release)}};
  switch (judged(release)) {
    case Judged::kPresent:
      statement["status"] = "affected";
      statement["action_statement"] = action_of(advisory, fixed);
      break;
    case Judged::kAbsent:
      statement["status"] = has_older_bad ? "fixed" : "not_affected";
      if (!has_older_bad) statement["impact_statement"] = "Measured: the release does not show it.";
      break;
    case Judged::kNothing:
      statement["status"] = "under_investigation";
      break;
  }
  return statement;
}

}  // namespace

Json openvex_document(const std::vector<Advisory>& advisories) {
  Json statements = Json::array();
  std::string latest = "1970-01-01T00:00:00Z";
  for (const Advisory& advisory : advisories) {
    bool has_older_bad = false;
    for (std::size_t i = 0; i < advisory.releases.size(); ++i) {
      const AdvisoryRelease& release = advisory.releases[i];
      for (const DeviceState& s : release.states) latest = std::max(latest, s.started);
      std::string fixed;
      for (std::size_t k = i + 1; k < advisory.releases.size() && fixed.empty(); ++k) {
        if (judged(advisory.releases[k]) == Judged::kAbsent) fixed = advisory.releases[k].version;
      }
      statements.push_back(statement_of(advisory, release, has_older_bad, fixed));
      has_older_bad |= judged(release) == Judged::kPresent;
    }
  }
  Json document = {{"@context", "https://openvex.dev/ns/v0.2.0"},
                   {"author", "patchbench"},
                   {"timestamp", latest},
                   {"version", 1},
                   {"tooling", "patchbench export --format openvex"},
                   {"statements", statements}};
  document["@id"] = "https://patchbench.invalid/vex/" + sha256_hex(canonical_json(document));
  return document;
}

}  // namespace patchbench::report
