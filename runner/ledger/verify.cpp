#include "ledger/verify.h"

#include <fmt/format.h>

#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "ledger/made.h"

namespace patchbench::ledger {

RunWitnesses witnesses_among(const std::vector<std::string>& texts) {
  RunWitnesses witnesses;
  for (const std::string& text : texts)
    witnesses.add({parse_json(text, "record")}, sha256_hex(text));
  return witnesses;
}

ChainWalk::ChainWalk(std::optional<int64_t> expected_count, std::string expected_head,
                     RunRecords records_of_run)
    : expected_count_(expected_count),
      expected_head_(std::move(expected_head)),
      records_of_run_(std::move(records_of_run)) {
  report_.head = std::string(64, '0');
  head_at_expected_ = report_.head;
}

std::optional<Record> ChainWalk::step(const std::string& text, const std::string& digest,
                                      const std::string& origin) {
  if (!report_.ok) return std::nullopt;
  try {
    Record record = parse_record(text, "record");
    const std::string computed = record.digest();
    if (!digest.empty() && computed != digest) {
      fail(digest, "its bytes have digest " + computed);
      return std::nullopt;
    }
    if (record.type() == "verdict") {
      try {
        check_verdict(record, witnesses_among(records_of_run_(record.run_id(), report_.count)));
      } catch (const Error& e) {
        doubts_.push_back({report_.count, report_.head, computed, e.what()});
      }
    }
    if (record.type() == "evict" && origin == "local") {
      const std::string evicted = record.predicate().at("digest").get<std::string>();
      std::erase_if(doubts_, [&](const Doubt& doubt) { return doubt.digest == evicted; });
    }
    report_.head = chain_next(report_.head, computed);
    ++report_.count;
    if (expected_count_ && report_.count == *expected_count_) head_at_expected_ = report_.head;
    return record;
  } catch (const Error& e) {
    fail(digest.empty() ? sha256_hex(text) : digest, e.what());
    return std::nullopt;
  }
}

void ChainWalk::fail(const std::string& digest, const std::string& reason,
                     std::optional<int64_t> index) {
  if (!report_.ok) return;
  report_.ok = false;
  report_.bad_index = index.value_or(report_.count);
  report_.bad_digest = is_hex(digest, 64) ? digest : "";
  report_.where = "row " + std::to_string(report_.bad_index) +
                  (report_.bad_digest.empty() ? "" : " (digest " + digest + ")") + ": " + reason;
}

void ChainWalk::note_date(const Record& record, const std::string& digest,
                          const std::string& received) {
  if (!is_dated_ahead(record.started(), received)) return;
  report_.ahead.push_back(
      fmt::format("row {} (digest {}): is dated {}, after {}", report_.count - 1, digest,
                  record.started(), received.empty() ? "today" : "it was received on " + received));
}

void ChainWalk::fail_as_a_whole(const std::string& reason) {
  if (!report_.ok) return;
  report_.ok = false;
  report_.where = reason;
}

VerifyReport ChainWalk::finish() {
  if (!doubts_.empty()) {
    // Any other failure ended the walk, so a doubt stands before it and is the first.
    const Doubt& first = doubts_.front();
    report_ = {.count = first.index, .head = first.head, .where = "", .note = "", .bad_digest = ""};
    fail(first.digest, first.reason);
  }
  if (!expected_count_) {
    report_.note = "truncation at the end would go unseen; pass --expect COUNT:HEAD";
  } else if (report_.ok && report_.count < *expected_count_) {
    fail_as_a_whole("cut off: " + std::to_string(report_.count) + " records, " +
                    std::to_string(*expected_count_) + " expected");
  } else if (report_.ok && head_at_expected_ != expected_head_) {
    fail_as_a_whole("another history: the chain after " + std::to_string(*expected_count_) +
                    " records is " + head_at_expected_ + ", expected " + expected_head_);
  }
  return report_;
}

}  // namespace patchbench::ledger
