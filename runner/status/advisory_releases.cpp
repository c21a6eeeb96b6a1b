#include "status/advisory_releases.h"

#include "status/pack_records.h"

namespace patchbench {

std::vector<report::AdvisoryRelease> advisory_releases(const ledger::RecordSet& record_set,
                                                       const Manifest& manifest,
                                                       const Upstream& upstream) {
  VerdictIndex verdict_index;
  for (const auto& [digest, entry] : record_set.entries()) {
    if (entry.record.type() != "verdict" ||
        entry.record.predicate().at("context").value("slug", "") != manifest.slug.str())
      continue;
    Finding finding = finding_of(entry.record, digest);
    finding.companions = unusual(finding.companions, manifest);
    finding.is_counted = ledger::counts_for_quorum(entry);
    finding.made = entry.made;
    verdict_index.add(finding);
  }
  std::vector<report::AdvisoryRelease> releases;
  for (const Pin& pin : upstream.releases) {
    report::AdvisoryRelease release{pin.version, {}};
    const VerdictKey key{manifest.slug.str(), upstream.name, pin.version, "", "reproduce"};
    if (const auto at = verdict_index.by_key().find(key); at != verdict_index.by_key().end()) {
      for (const auto& [device, cell] : at->second) {
        if (const Finding* newest = cell.newest(); newest != nullptr)
          release.states.push_back(
              {device, state_of(newest->outcome()), newest->made.date, newest->digest});
      }
    }
    releases.push_back(std::move(release));
  }
  return releases;
}

}  // namespace patchbench
