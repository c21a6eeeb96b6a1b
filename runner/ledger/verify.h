#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ledger/ledger.h"

namespace patchbench::ledger {

/// The records of run `run` among the first `end` of the chain, as texts.
using RunRecords = std::function<std::vector<std::string>(const std::string& run, int64_t end)>;

/// Of records of one run. Their form was checked where they are in the chain.
RunWitnesses witnesses_among(const std::vector<std::string>& texts);

/// Walks a chain record by record. The first thing that does not hold ends it.
class ChainWalk {
 public:
  ChainWalk(std::optional<int64_t> expected_count, std::string expected_head,
            RunRecords records_of_run);
  /// Checks the next record's form, its digest against `digest` (if not empty), and a verdict's
  /// outcome; moves the chain on. Returns the record, or nullopt once something failed. A verdict
  /// whose outcome no longer follows is a failure unless a later record of origin "local" evicts
  /// it: that is how a corrected predicate leaves the old verdicts standing, out of use.
  std::optional<Record> step(const std::string& text, const std::string& digest,
                             const std::string& origin = "local");
  /// Notes a failure at a row, the one that stands next unless another is named.
  void fail(const std::string& digest, const std::string& reason,
            std::optional<int64_t> index = {});
  /// Names a record that is dated ahead (ledger/made.h). It holds none the less.
  void note_date(const Record& record, const std::string& digest, const std::string& received);
  void fail_as_a_whole(const std::string& reason);
  const VerifyReport& report() const { return report_; }
  /// The report, with what was expected of count and head.
  VerifyReport finish();

 private:
  std::optional<int64_t> expected_count_;
  std::string expected_head_, head_at_expected_;
  RunRecords records_of_run_;
  VerifyReport report_;
  /// A verdict that does not follow, as long as nothing evicts it.
  struct Doubt {
    int64_t index;
    std::string head, digest, reason;
  };
  std::vector<Doubt> doubts_;
};

}  // namespace patchbench::ledger
