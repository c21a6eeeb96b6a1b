#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ledger/ledger.h"

namespace patchbench::ledger {

/// Records looked up by digest. Of a record that is there twice the last one stands.
class RecordSet {
 public:
  explicit RecordSet(std::vector<Entry> entries);
  /// The record whose digest begins with `prefix` (4 hex digits or more), or null. Throws
  /// Error(kUsage) if several do. The record lives as long as the set.
  const Entry* find(std::string_view prefix) const;
  /// By digest.
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }

 private:
  std::map<std::string, Entry, std::less<>> entries_;
};

/// The observations that a verdict rests on, as far as they are there.
std::vector<Observation> cited_observations(const RecordSet& records, const Record& verdict);

}  // namespace patchbench::ledger
