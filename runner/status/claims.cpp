#include "status/claims.h"

#include <fmt/format.h>

#include <algorithm>

#include "ledger/evidence.h"

namespace patchbench {
namespace {

/// Why `entry` cannot back a row with this verdict, or "".
std::string objection(const Manifest& manifest, const ScopeRow& row, const ledger::Entry& entry) {
  const RunContext run = RunContext::from_json(entry.record.predicate().at("context"));
  const std::string type = entry.record.type();
  if (run.slug != manifest.slug.str()) return "is a record of " + run.slug;
  if (type == "evict") return "only takes another record out of use";
  if (type != "verdict") return "";
  const Outcome outcome = outcome_of(entry.record);
  const QuestionContext question =
      QuestionContext::from_json(entry.record.predicate().at("question"));
  const bool is_of_this_test = row.test && question.claim == row.test->name;
  const auto contrary =
      row.verdict == "confirmed" ? Sentinel::kClaimRefuted : Sentinel::kClaimConfirmed;
  if (is_of_this_test && outcome.sentinel == contrary)
    return "says " + outcome.text() + " of the claim that is called " + row.verdict;
  return "";
}

}  // namespace

std::vector<std::string> claim_problems(const Manifest& manifest,
                                        const ledger::RecordSet& record_set) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < manifest.scope.size(); ++i) {
    const ScopeRow& row = manifest.scope[i];
    const std::string where =
        fmt::format("packs/{}/manifest.json: /scope/{}", manifest.slug.str(), i);
    for (const std::string& digest : row.records) {
      const ledger::Entry* entry = record_set.find(digest);
      const std::string reason =
          entry == nullptr ? "is neither in reports/evidence nor in the ledger, or was evicted; "
                             "export it, or cite another"
                           : objection(manifest, row, *entry);
      if (!reason.empty())
        problems.push_back(where + ": record " + digest.substr(0, kShortDigest) + " " + reason);
    }
    const bool has_outcome =
        std::any_of(row.records.begin(), row.records.end(), [&](const std::string& digest) {
          const ledger::Entry* entry = record_set.find(digest);
          return entry == nullptr || entry->record.type() != "verdict" ||
                 outcome_of(entry->record).sentinel;
        });
    if (!row.records.empty() && !has_outcome)
      problems.push_back(where + ": none of its records earned a sentinel");
  }
  return problems;
}

}  // namespace patchbench
