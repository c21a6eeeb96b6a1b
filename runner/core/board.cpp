#include "core/board.h"

#include <algorithm>
#include <set>

namespace patchbench {
namespace {

const Finding* newest_in(const Sayings& sayings) {
  const Finding* newest = nullptr;
  for (const auto& [what, tally] : sayings) {
    if (newest == nullptr || newest->made < tally.newest.made) newest = &tally.newest;
  }
  return newest;
}

bool is_answer(const std::string& text) {
  const Outcome outcome = Outcome::from_text(text);
  return outcome.sentinel && outcome.sentinel != Sentinel::kNotRun;
}

/// The votes of one device: its runs by sentinel.
void add_votes(std::vector<Votes>& votes, const std::string& device, const Sayings& said) {
  std::map<std::string, Votes> runs;
  for (const auto& [what, tally] : said) {
    if (!is_answer(what.first)) continue;
    Votes& one = runs.try_emplace(what.first, Votes{what.first, device}).first->second;
    one.runs += tally.runs;
    one.unisolated += tally.unisolated;
  }
  for (const auto& [sentinel, one] : runs) votes.push_back(one);
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
const Finding* Cell::newest_apart() const { return newest_in(apart); }

void Board::add(const Finding& f) {
  Cell& cell = places_[{f.slug, f.upstream, f.version, f.beside, f.asked}][f.device];
  Tally& tally =
      (f.is_counted ? cell.said : cell.apart)[{f.sentinel, judged_.of(f.manifest_sha256)}];
  ++tally.runs;
  tally.unisolated += f.is_isolated ? 0 : 1;
  if (tally.newest.made < f.made) tally.newest = f;
}

std::vector<Votes> quorum_of(const Board& board, const Place& place) {
  std::vector<Votes> votes;
  const auto at = board.places().find(place);
  if (at == board.places().end()) return votes;
  for (const auto& [device, cell] : at->second) add_votes(votes, device, cell.said);
  return votes;
}

std::vector<Disagreement> disagreements_of(const Board& board) {
  std::vector<Disagreement> out;
  for (const auto& [place, devices] : board.places()) {
    std::set<std::string> newest;
    bool is_torn = false;
    for (const auto& [device, cell] : devices) {
      const Finding* finding = cell.newest();
      if (finding != nullptr && is_answer(finding->sentinel)) newest.insert(finding->sentinel);
      is_torn |= contradicts_itself(cell);
    }
    if (newest.size() > 1 || is_torn) out.push_back({place, quorum_of(board, place)});
  }
  return out;
}

BugState state_of(const Outcome& outcome) {
  if (outcome.sentinel == Sentinel::kBugAbsent) return BugStatus::kAbsent;
  if (outcome.sentinel == Sentinel::kBugReproduced) return outcome.argument;
  return BugStatus::kUnresolved;
}

std::vector<ReleaseState> states_of(const Board& board, const std::string& slug,
                                    const std::string& upstream, const std::string& device,
                                    const std::vector<std::string>& versions) {
  std::vector<ReleaseState> states;
  for (const std::string& version : versions) {
    ReleaseState state{version, BugStatus::kNotMeasured, ""};
    const auto at = board.places().find({slug, upstream, version, "", "reproduce"});
    if (at != board.places().end()) {
      const auto cell = at->second.find(device);
      const Finding* finding = cell == at->second.end() ? nullptr : cell->second.newest();
      if (finding != nullptr) state = {version, state_of(finding->outcome()), finding->digest};
    }
    states.push_back(std::move(state));
  }
  return states;
}

std::vector<Change> changes_between(const Board& before, const Board& now) {
  std::vector<Change> changes;
  for (const auto& [place, devices] : now.places()) {
    const auto old_place = before.places().find(place);
    for (const auto& [device, cell] : devices) {
      const Finding* finding = cell.newest();
      if (finding == nullptr) continue;
      std::string was;
      if (old_place != before.places().end()) {
        const auto old_cell = old_place->second.find(device);
        const Finding* old =
            old_cell == old_place->second.end() ? nullptr : old_cell->second.newest();
        if (old != nullptr) was = old->sentinel;
      }
      if (was != finding->sentinel)
        changes.push_back({place, device, was, finding->sentinel, finding->digest});
    }
  }
  return changes;
}

}  // namespace patchbench
