#include "ledger/shared_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "core/error.h"

namespace patchbench::ledger {
namespace {

constexpr std::string_view kSection = "{\"patchbench_evidence\":2}";
constexpr std::string_view kAnySection = "{\"patchbench_evidence\":";
constexpr std::string_view kReference = "{\"$\":", kValue = ",\"value\":";
/// A shorter value costs less than its reference and its definition.
constexpr std::size_t kLeastShared = 24;
/// Bounds the memory of a writer and a reader.
constexpr std::size_t kRowsOfASection = 4096;
constexpr std::size_t kMostRowBytes = 1 << 20, kMostDefinedBytes = 64 << 20;

/// A value that may be shared: an object, an array or a string of at least kLeastShared bytes.
struct Span {
  std::size_t begin = 0, end = 0;
  std::size_t after = 0;  ///< the first span that is not inside this one
};

/// The spans of one text in RFC 8785 form, the outer before what it holds.
class Spans {
 public:
  static std::vector<Span> of(std::string_view text) {
    Spans scan(text);
    scan.value();
    return std::move(scan.spans_);
  }

 private:
  explicit Spans(std::string_view text) : text_(text) {}

  void value() {
    const std::size_t at = spans_.size();
    spans_.push_back({at_, 0, 0});
    if (text_[at_] == '"') {
      string();
    } else if (text_[at_] == '{' || text_[at_] == '[') {
      container();
    } else {
      at_ = std::min(text_.find_first_of(",]}", at_), text_.size());
    }
    // What is inside a short value is shorter still.
    if (at > 0 && at_ - spans_[at].begin < kLeastShared) return spans_.resize(at);
    spans_[at].end = at_;
    spans_[at].after = spans_.size();
  }
  void string() {
    for (++at_; text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    ++at_;
  }
  void container() {
    const bool is_object = text_[at_++] == '{';
    while (text_[at_] != '}' && text_[at_] != ']') {
      if (text_[at_] == ',') ++at_;
      if (is_object) {
        string();
        ++at_;  // the colon
      }
      value();
    }
    ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Span> spans_;
};

/// One section: which values of its rows are worth a definition, and the lines.
class Section {
 public:
  explicit Section(const std::vector<std::string_view>& rows) : rows_(rows) {
    for (const std::string_view row : rows_) {
      spans_.push_back(is_envelope(row) ? std::vector<Span>() : Spans::of(row));
      count(row, spans_.back());
    }
  }

  void write(std::string& out) {
    out += kSection;
    out += '\n';
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      // Definitions come before the row that is the first to need them.
      std::string definitions;
      const std::string row =
          spans_[i].empty() ? std::string(rows_[i]) : rest(rows_[i], spans_[i], 0, definitions);
      out += definitions;
      out += row;
      out += '\n';
    }
  }

 private:
  static bool is_envelope(std::string_view row) { return row.starts_with("{\"payload\":"); }

  /// Counts how often a value occurs; what is inside counts once for each different value around
  /// it.
  void count(std::string_view row, const std::vector<Span>& spans) {
    for (std::size_t i = 1; i < spans.size();) {
      const std::string_view text = row.substr(spans[i].begin, spans[i].end - spans[i].begin);
      i = ++counts_[text] == 1 ? i + 1 : spans[i].after;
    }
  }

  bool is_worth_a_definition(std::string_view text) const {
    constexpr std::size_t kDefinitionBytes = 24, kReferenceBytes = 9;
    const std::size_t num = counts_.at(text);
    return num > 1 && num * text.size() > text.size() + kDefinitionBytes + num * kReferenceBytes;
  }

  /// The text of span `at` with references in place of what is shared inside it.
  std::string rest(std::string_view row, const std::vector<Span>& spans, std::size_t at,
                   std::string& definitions) {
    std::string out;
    std::size_t from = spans[at].begin;
    for (std::size_t i = at + 1; i < spans[at].after; i = spans[i].after) {
      out += row.substr(from, spans[i].begin - from);
      out += shared_or_rest(row, spans, i, definitions);
      from = spans[i].end;
    }
    return out += row.substr(from, spans[at].end - from);
  }

  std::string shared_or_rest(std::string_view row, const std::vector<Span>& spans, std::size_t at,
                             std::string& definitions) {
    const std::string_view text = row.substr(spans[at].begin, spans[at].end - spans[at].begin);
    const auto found = ids_.find(text);
    if (found != ids_.end()) return fmt::format("{}{}}}", kReference, found->second);
    std::string body = rest(row, spans, at, definitions);
    if (!is_worth_a_definition(text)) return body;
    const std::size_t id = ids_.size() + 1;
    ids_.emplace(text, id);
    definitions += fmt::format("{}{}{}{}}}\n", kReference, id, kValue, body);
    return fmt::format("{}{}}}", kReference, id);
  }

  const std::vector<std::string_view>& rows_;
  std::vector<std::vector<Span>> spans_;
  std::unordered_map<std::string_view, std::size_t> counts_, ids_;
};

[[noreturn]] void refuse(const std::string& reason) { throw Error(ErrorCode::kUsage, reason); }

/// The number after `{"$":`, and where it ends.
std::pair<int64_t, std::size_t> id_at(std::string_view text, std::size_t at) {
  int64_t id = -1;
  const char* end = text.data() + text.size();
  const auto [after, failed] = std::from_chars(text.data() + at + kReference.size(), end, id);
  if (failed != std::errc() || id < 1) refuse("a reference is {\"$\":N} with N from 1 on");
  return {id, static_cast<std::size_t>(after - text.data())};
}

}  // namespace

std::string pack_rows(const std::vector<std::string>& rows) {
  std::string out;
  for (std::size_t first = 0; first < rows.size(); first += kRowsOfASection) {
    const std::size_t last = std::min(rows.size(), first + kRowsOfASection);
    const std::vector<std::string_view> part(rows.begin() + static_cast<std::ptrdiff_t>(first),
                                             rows.begin() + static_cast<std::ptrdiff_t>(last));
    Section(part).write(out);
  }
  return out;
}

std::string RowReader::record(std::string_view text) const {
  if (!is_packed_) return std::string(text);
  std::string out;
  std::size_t from = 0;
  // A quote inside a string is escaped, so that what is found is a reference.
  for (std::size_t at; (at = text.find(kReference, from)) != std::string_view::npos;) {
    const auto [id, end] = id_at(text, at);
    if (end >= text.size() || text[end] != '}') refuse("a reference is {\"$\":N} with N from 1 on");
    const auto value = values_.find(id);
    if (value == values_.end())
      refuse(fmt::format("refers to {}, which nothing above defines", id));
    out += text.substr(from, at - from);
    out += value->second;
    from = end + 1;
    if (out.size() > kMostRowBytes) break;
  }
  out += text.substr(from);
  if (out.size() > kMostRowBytes) refuse("a record may have at most 1 MiB");
  return out;
}

bool RowReader::is_row(std::string_view line) {
  if (line.starts_with(kAnySection)) {
    if (line != kSection) refuse("evidence of another format than 2; a later patchbench reads it");
    is_packed_ = true;
    values_.clear();
    defined_bytes_ = 0;
    return false;
  }
  if (!is_packed_ || !line.starts_with(kReference)) return true;
  const auto [id, end] = id_at(line, 0);
  if (!line.substr(end).starts_with(kValue) || !line.ends_with('}'))
    refuse("a definition is {\"$\":N,\"value\":…}");
  const std::size_t begin = end + kValue.size();
  std::string value = record(line.substr(begin, line.size() - 1 - begin));
  defined_bytes_ += value.size();
  if (defined_bytes_ > kMostDefinedBytes) refuse("the definitions of a section exceed 64 MiB");
  if (!values_.emplace(id, std::move(value)).second) refuse(fmt::format("defines {} twice", id));
  return false;
}

void each_row(std::string_view text, const std::string& where,
              const std::function<void(std::string, const std::string&)>& take) {
  RowReader reader;
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string place = fmt::format("{}:{}", where, number);
    std::optional<std::string> record;
    try {
      if (const std::string_view line = text.substr(0, end); reader.is_row(line))
        record = reader.record(line);
    } catch (const Error& e) {
      throw e.in(place);
    }
    if (record) take(std::move(*record), place);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

}  // namespace patchbench::ledger
