#include "core/verdict_index.h"

#include <algorithm>
#include <set>

namespace patchbench {
namespace {

const Finding* newest_in(const Tallies& tallies) {
  const Finding* newest = nullptr;
  for (const auto& [what, tally] : tallies) {
    if (newest == nullptr || newest->made < tally.newest.made) newest = &tally.newest;
  }
  return newest;
}

bool is_answer(const std::string& text) {
  const Outcome outcome = Outcome::from_text(text);
  return outcome.sentinel && outcome.sentinel != Sentinel::kNotRun;
}

/// The runs of one device by sentinel.
void add_agreements(std::vector<Agreement>& agreements, const std::string& device,
                    const Tallies& said) {
  std::map<std::string, Agreement> runs;
  for (const auto& [what, tally] : said) {
    if (!is_answer(what.first)) continue;
    Agreement& one = runs.try_emplace(what.first, Agreement{what.first, device}).first->second;
    one.runs += tally.runs;
    one.unisolated += tally.unisolated;
  }
  for (const auto& [sentinel, one] : runs) agreements.push_back(one);
}

/// Whether two runs on one device under manifests that ask the same gave different answers.
bool contradicts_itself(const Cell& cell) {
  std::map<std::string, std::set<std::string>> by_manifest;
  for (const auto& [what, tally] : cell.said) {
    if (is_answer(what.first)) by_manifest[what.second].insert(what.first);
  }
  return std::any_of(by_manifest.begin(), by_manifest.end(),
                     [](const auto& entry) { return entry.second.size() > 1; });
}

}  // namespace

const Finding* Cell::newest() const { return newest_in(said); }
const Finding* Cell::newest_unsigned() const { return newest_in(unsigned_imports); }

void VerdictIndex::add(const Finding& f) {
  Cell& cell = by_key_[{f.slug, f.upstream, f.version, f.companions, f.question}][f.device];
  Tally& tally =
      (f.is_counted ? cell.said
                    : cell.unsigned_imports)[{f.sentinel, judged_.of(f.manifest_sha256)}];
  ++tally.runs;
  tally.unisolated += f.is_isolated ? 0 : 1;
  if (tally.newest.made < f.made) tally.newest = f;
}

std::vector<Agreement> quorum_of(const VerdictIndex& verdict_index, const VerdictKey& key) {
  std::vector<Agreement> agreements;
  const auto at = verdict_index.by_key().find(key);
  if (at == verdict_index.by_key().end()) return agreements;
  for (const auto& [device, cell] : at->second) add_agreements(agreements, device, cell.said);
  return agreements;
}

std::vector<Disagreement> disagreements_of(const VerdictIndex& verdict_index) {
  std::vector<Disagreement> out;
  for (const auto& [key, devices] : verdict_index.by_key()) {
    std::set<std::string> newest;
    bool is_torn = false;
    for (const auto& [device, cell] : devices) {
      const Finding* finding = cell.newest();
      if (finding != nullptr && is_answer(finding->sentinel)) newest.insert(finding->sentinel);
      is_torn |= contradicts_itself(cell);
    }
    if (newest.size() > 1 || is_torn) out.push_back({key, quorum_of(verdict_index, key)});
  }
  return out;
}

BugState state_of(const Outcome& outcome) {
  if (outcome.sentinel == Sentinel::kBugAbsent) return BugStatus::kAbsent;
  if (outcome.sentinel == Sentinel::kBugReproduced) return outcome.argument;
  return BugStatus::kUnresolved;
}

std::vector<ReleaseState> states_of(const VerdictIndex& verdict_index, const std::string& slug,
                                    const std::string& upstream, const std::string& device,
                                    const std::vector<std::string>& versions) {
  std::vector<ReleaseState> states;
  for (const std::string& version : versions) {
    ReleaseState state{version, BugStatus::kNotMeasured, ""};
    const auto at = verdict_index.by_key().find({slug, upstream, version, "", "reproduce"});
    if (at != verdict_index.by_key().end()) {
      const auto cell = at->second.find(device);
      const Finding* finding = cell == at->second.end() ? nullptr : cell->second.newest();
      if (finding != nullptr) state = {version, state_of(finding->outcome()), finding->digest};
    }
    states.push_back(std::move(state));
  }
  return states;
}

std::vector<Change> changes_between(const VerdictIndex& before, const VerdictIndex& now) {
  std::vector<Change> changes;
  for (const auto& [key, devices] : now.by_key()) {
    const auto old_key = before.by_key().find(key);
    for (const auto& [device, cell] : devices) {
      const Finding* finding = cell.newest();
      if (finding == nullptr) continue;
      std::string was;
      if (old_key != before.by_key().end()) {
        const auto old_cell = old_key->second.find(device);
        const Finding* old =
            old_cell == old_key->second.end() ? nullptr : old_cell->second.newest();
        if (old != nullptr) was = old->sentinel;
      }
      if (was != finding->sentinel)
        changes.push_back({key, device, was, finding->sentinel, finding->digest});
    }
  }
  return changes;
}

}  // namespace patchbench
