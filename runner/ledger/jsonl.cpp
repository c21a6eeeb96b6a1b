#include "ledger/jsonl.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "ledger/appender.h"
#include "ledger/dsse.h"
#include "ledger/read_ahead.h"
#include "ledger/row_reader.h"
#include "ledger/row_writer.h"
#include "ledger/verify.h"

namespace patchbench::ledger {
namespace {

/// A line is an envelope or a bare record; what it holds is checked by whoever takes it.
Opened read_line(const std::string& text, const TrustedKeys& trusted) {
  if (text.empty()) throw Error(ErrorCode::kUsage, "an empty line; one record a line");
  constexpr std::string_view kEnvelopeStart = "{\"payload\":";
  if (!text.starts_with(kEnvelopeStart)) return {.text = text, .signature = {}};
  return open_envelope(parse_json(text, "envelope"), trusted, "envelope");
}

/// Takes the first line off a text.
std::string_view next_line(std::string_view& left) {
  const auto end = left.find('\n');
  const std::string_view line = left.substr(0, end);
  left = end == std::string_view::npos ? std::string_view() : left.substr(end + 1);
  return line;
}

/// The records of one exported text, one at a time. Errors begin with `<where>:<line>: `, unless
/// `where` is empty.
class LineSource {
 private:
  template <class Call>
  auto at_line(const Call& call) const {
    try {
      return call();
    } catch (const Error& e) {
      if (where_.empty()) throw;
      throw e.in(fmt::format("{}:{}", where_, number_));
    }
  }

 public:
  LineSource(std::string_view text, std::string where, const TrustedKeys& trusted)
      : left_(text), where_(std::move(where)), trusted_(trusted) {}

  /// Whether there is a record yet. Throws Error(kUsage) if there was none at all.
  bool has_record() {
    while (!row_ && !left_.empty()) {
      const std::string_view line = next_line(left_);
      ++number_;
      row_ = at_line([&] { return rows_.take(line); });
    }
    if (!row_ && !had_record_) throw Error(ErrorCode::kUsage, where_ + ": holds no record");
    return row_.has_value();
  }
  void skip() {
    row_.reset();
    had_record_ = true;
  }
  /// The line that `has_record` found, from 1 on.
  int line_number() const { return number_; }
  /// The next record's text and signature; only after `has_record`. Throws as `read_line`.
  Opened line() {
    const std::string row = std::move(*row_);
    skip();
    return at_line([&] { return read_line(row, trusted_); });
  }
  /// The next one; nullopt at the end, as above.
  std::optional<Incoming> record() {
    if (!has_record()) return std::nullopt;
    Opened read = line();
    const std::string where = fmt::format("{}:{}", where_, number_);
    Incoming incoming{.record = parse_record(read.text, where),
                      .origin = "import",
                      .signature = std::move(read.signature),
                      .where = where,
                      .text = std::move(read.text)};
    complete(incoming);
    return incoming;
  }

 private:
  std::string_view left_;
  std::optional<std::string> row_;  ///< the next record, where `has_record` found one
  std::string where_;
  const TrustedKeys& trusted_;
  RowReader rows_;
  int number_ = 0;
  bool had_record_ = false;
};

/// Every second part of kPart records of all files: two of these, each in a thread of its own, give
/// all of them.
class HalfOfRecords {
 public:
  static constexpr int64_t kPart = 64;
  HalfOfRecords(std::vector<LineSource> sources, int64_t half)
      : sources_(std::move(sources)), half_(half) {}

  std::optional<Incoming> operator()() {
    for (; at_ < sources_.size(); ++at_) {
      while (sources_[at_].has_record()) {
        if (count_++ / kPart % 2 != half_) {
          sources_[at_].skip();
          continue;
        }
        std::optional<Incoming> one = sources_[at_].record();
        // Freed by the thread that parsed it: else the two wait for each other's heap.
        if (one->witness) one->record = Record();
        return one;
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<LineSource> sources_;
  std::size_t at_ = 0;
  int64_t count_ = 0, half_;
};

}  // namespace

std::vector<Incoming> read_jsonl(std::string_view text, const std::string& where,
                                 const std::filesystem::path& trusted_keys) {
  const TrustedKeys trusted = load_trusted_keys(trusted_keys);
  LineSource source(text, where, trusted);
  std::vector<Incoming> incoming;
  while (std::optional<Incoming> one = source.record()) incoming.push_back(std::move(*one));
  return incoming;
}

std::string export_jsonl(const std::vector<Entry>& entries, const std::filesystem::path& key,
                         EvidenceFormat format) {
  std::optional<SigningKey> signing;
  if (!key.empty()) signing.emplace(SigningKey::load(key));
  std::vector<std::string> rows;
  for (const Entry& entry : entries) {
    std::string text = canonical_json(entry.record.statement);
    // To sign what others sent would make their unsigned records count for whoever trusts this key.
    if (!entry.signer.empty()) {
      text = envelope(text, entry.signer, entry.signature);
    } else if (signing && entry.origin == "local") {
      const Signature signature = signing->sign(text);
      text = envelope(text, signature.key_id, signature.signature);
    }
    rows.push_back(std::move(text));
  }
  if (format == EvidenceFormat::kShared) return pack_rows(rows);
  std::string out;
  for (const std::string& row : rows) out += row + '\n';
  return out;
}

int import_jsonl(Ledger& ledger, std::string_view text, const std::string& where,
                 const std::filesystem::path& trusted_keys) {
  return import_jsonl(ledger, {{std::string(text), where}}, trusted_keys);
}

int import_jsonl(Ledger& ledger, const std::vector<ImportFile>& files,
                 const std::filesystem::path& trusted_keys) {
  const TrustedKeys trusted = load_trusted_keys(trusted_keys);
  std::vector<LineSource> sources;
  for (const ImportFile& file : files) sources.emplace_back(file.text, file.where, trusted);
  ReadAhead even(HalfOfRecords(sources, 0)), odd(HalfOfRecords(std::move(sources), 1));
  int64_t count = 0;
  return ledger.append_each(
      [&] { return (count++ / HalfOfRecords::kPart % 2 == 0 ? even : odd).take(); });
}

VerifyReport verify_jsonl(std::string_view text, const std::string& where,
                          const std::filesystem::path& trusted_keys,
                          std::optional<int64_t> expected_count, const std::string& expected_head) {
  const TrustedKeys trusted = load_trusted_keys(trusted_keys);
  std::map<std::string, std::vector<std::string>> by_run;
  ChainWalk walk(expected_count, expected_head,
                 [&](const std::string& run, int64_t) { return by_run[run]; });
  std::set<std::string> digests;
  std::vector<int> lines;  // of each record
  int num_unchecked = 0;
  LineSource source(text, "", trusted);
  try {
    while (!text.empty() && source.has_record()) {
      lines.push_back(source.line_number());
      const Opened line = source.line();
      num_unchecked += line.signature ? 0 : line.num_unchecked;
      if (!digests.insert(sha256_hex(line.text)).second)
        throw Error(ErrorCode::kUsage, "stands in the file twice");
      const std::optional<Record> record = walk.step(line.text, "");
      if (!record) break;
      walk.note_date(*record, sha256_hex(line.text), "");
      by_run[record->run_id()].push_back(line.text);
    }
  } catch (const Error& e) {
    walk.fail("", e.what());
  }
  VerifyReport report = walk.finish();
  if (report.bad_index >= 0)
    report.where = fmt::format("{}:{}: {}", where,
                               report.bad_index < std::ssize(lines)
                                   ? lines[static_cast<std::size_t>(report.bad_index)]
                                   : source.line_number(),
                               report.where);
  if (!expected_count) {
    report.note =
        "a file holds no chain: a change that no verdict or signature speaks of, and truncation, "
        "would go unseen; pass "
        "--expect COUNT:HEAD";
  }
  if (num_unchecked > 0) {
    report.note += fmt::format("{}{} signatures by keys that are not trusted; pass --trusted FILE",
                               report.note.empty() ? "" : "; ", num_unchecked);
  }
  return report;
}

}  // namespace patchbench::ledger
