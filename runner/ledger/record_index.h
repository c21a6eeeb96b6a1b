#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/finding.h"
#include "ledger/ledger.h"

namespace patchbench::ledger {

/// The ledger's records and the committed ones of some packs as one store, read only as far as is
/// asked: verdicts in short, and whole records by digest. What was evicted is left out; a record in
/// both is there once. A committed verdict that is dated ahead (ledger/made.h) is not there.
/// Committed files are checked line by line where they are read; `ledger verify FILE` checks one
/// whole.
class RecordIndex {
 public:
  /// A ledger that is not there, or "", holds nothing. Throws as Ledger::open and Error(kUsage)
  /// `<file>:<line>: <reason>`.
  RecordIndex(const std::filesystem::path& ledger, const std::filesystem::path& root,
              const std::vector<std::string>& slugs);
  /// Every verdict that passes the filter; no order is promised.
  void each_finding(const FindingFilter& filter,
                    const std::function<void(const Finding&)>& take) const;
  /// The record of exactly this digest; nullopt if it is not there.
  std::optional<Record> find(const std::string& digest) const;

 private:
  struct Line {
    std::string text, where;
  };
  void add_line(std::string line, const std::string& where);
  std::unique_ptr<Ledger> ledger_;  ///< null where there is none
  std::unordered_map<std::string, Line> committed_;
  std::vector<Finding> findings_;  ///< of the committed verdicts
  std::set<std::string> evicted_;
};

}  // namespace patchbench::ledger
