#include "ledger/record_index.h"

#include <fmt/format.h>

#include "core/digest.h"
#include "ledger/evidence.h"
#include "ledger/jsonl.h"
#include "ledger/made.h"
#include "ledger/row_reader.h"

namespace patchbench::ledger {
namespace {

/// Whether a line in RFC 8785 form may hold a record of a type. Inside a string value the quotes
/// would be escaped, so no record of that type is missed.
bool may_be(const std::string& line, std::string_view type) {
  return line.find(fmt::format("\"predicateType\":\"urn:patchbench:{}:v1\"", type)) !=
         std::string::npos;
}

}  // namespace

RecordIndex::RecordIndex(const std::filesystem::path& ledger, const std::filesystem::path& root,
                         const std::vector<std::string>& slugs) {
  if (std::filesystem::exists(ledger)) {
    ledger_ = Ledger::open(ledger);
    evicted_ = ledger_->evicted();
  }
  each_evidence_file(root, slugs, [&](const std::string& text, const std::string& file) {
    each_row(text, file, [&](std::string record, const std::string& where) {
      add_line(std::move(record), where);
    });
  });
}

void RecordIndex::add_line(std::string line, const std::string& where) {
  // A signed line holds its record in an envelope.
  if (line.starts_with("{\"payload\":"))
    line = canonical_json(read_jsonl(line, where).front().record.statement);
  const std::string digest = sha256_hex(line);
  if (may_be(line, "verdict") || may_be(line, "evict")) {
    const Record record = parse_record(line, where);
    const bool counts = !is_dated_ahead(record.started(), "");
    if (record.type() == "verdict" && counts) findings_.push_back(finding_of(record, digest));
    if (record.type() == "evict")
      evicted_.insert(record.predicate().at("digest").get<std::string>());
  }
  committed_.insert({digest, {std::move(line), where}});
}

void RecordIndex::each_finding(const FindingFilter& filter,
                               const std::function<void(const Finding&)>& take) const {
  std::set<std::string> taken;
  const auto take_once = [&](const Finding& finding) {
    if (!evicted_.contains(finding.digest) && taken.insert(finding.digest).second) take(finding);
  };
  if (ledger_) {
    // Of a record that was made here the ledger knows the order; any other one is as committed.
    ledger_->each_finding(filter, [&](const Finding& finding) {
      if (finding.made.order > 0 || !committed_.contains(finding.digest)) take_once(finding);
    });
  }
  for (const Finding& finding : findings_) {
    if ((filter.slug.empty() || finding.slug == filter.slug) &&
        (filter.before.empty() || finding.made.date < filter.before))
      take_once(finding);
  }
}

std::optional<Record> RecordIndex::find(const std::string& digest) const {
  if (evicted_.contains(digest)) return std::nullopt;
  if (const auto line = committed_.find(digest); line != committed_.end())
    return parse_record(line->second.text, line->second.where);
  if (!ledger_) return std::nullopt;
  const std::optional<Entry> entry = ledger_->find(digest);
  return entry ? std::optional<Record>(entry->record) : std::nullopt;
}

}  // namespace patchbench::ledger
