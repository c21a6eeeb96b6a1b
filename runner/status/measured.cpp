#include "status/measured.h"

#include "status/verdict_index.h"

namespace patchbench {

std::vector<report::AdvisoryRelease> measured_releases(const ledger::Book& book,
                                                       const Manifest& manifest,
                                                       const Upstream& upstream) {
  Board board;
  for (const auto& [digest, entry] : book.entries()) {
    if (entry.record.type() != "verdict" ||
        entry.record.predicate().at("context").value("slug", "") != manifest.slug.str())
      continue;
    Finding finding = finding_of(entry.record, digest);
    finding.beside = unusual(finding.beside, manifest);
    finding.is_counted = ledger::counts_for_quorum(entry);
    finding.made = entry.made;
    board.add(finding);
  }
  std::vector<report::AdvisoryRelease> releases;
  for (const Pin& pin : upstream.releases) {
    report::AdvisoryRelease release{pin.version, {}};
    const Place place{manifest.slug.str(), upstream.name, pin.version, "", "reproduce"};
    if (const auto at = board.places().find(place); at != board.places().end()) {
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
