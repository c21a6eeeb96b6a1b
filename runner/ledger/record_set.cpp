#include "ledger/record_set.h"

#include <utility>

#include "core/error.h"

namespace patchbench::ledger {

RecordSet::RecordSet(std::vector<Entry> entries) {
  for (Entry& entry : entries) {
    const std::string digest = entry.digest;
    entries_[digest] = std::move(entry);
  }
}

const Entry* RecordSet::find(std::string_view prefix) const {
  constexpr std::size_t kShortest = 4;
  if (prefix.size() < kShortest) return nullptr;
  const auto first = entries_.lower_bound(prefix);
  if (first == entries_.end() || !first->first.starts_with(prefix)) return nullptr;
  const auto next = std::next(first);
  if (next != entries_.end() && next->first.starts_with(prefix)) {
    throw Error(ErrorCode::kUsage, "record " + std::string(prefix) + ": the beginning of " +
                                       first->first.substr(0, 16) + " and of " +
                                       next->first.substr(0, 16) + "; give more digits");
  }
  return &first->second;
}

std::vector<Observation> cited_observations(const RecordSet& records, const Record& verdict) {
  std::vector<Observation> observations;
  for (const std::string& digest : cited_by(verdict)) {
    const Entry* entry = records.find(digest);
    if (entry != nullptr) observations.push_back(observation_of(entry->record));
  }
  return observations;
}

}  // namespace patchbench::ledger
