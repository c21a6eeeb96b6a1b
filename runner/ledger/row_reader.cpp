#include "ledger/row_reader.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "core/digest.h"
#include "core/error.h"

namespace patchbench::ledger {
namespace {

constexpr std::string_view kAnySection = "{\"patchbench_evidence\":";
constexpr std::string_view kSectionLine2 = "{\"patchbench_evidence\":2}";
constexpr std::string_view kEnvelope = "{\"payload\":";
constexpr std::string_view kReference = "{\"$\":", kValue = ",\"value\":";
constexpr std::size_t kMostRowBytes = 1 << 20, kMostDefinedBytes = 64 << 20;
constexpr int kMostLevels = 64;

[[noreturn]] void refuse(const std::string& reason) { throw Error(ErrorCode::kUsage, reason); }

/// One line's text, read from its begin to its end.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  /// '\0' at the end.
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool has(std::string_view start) const { return text_.substr(at_).starts_with(start); }
  bool is_at_end() const { return at_ == text_.size(); }
  std::string_view take(std::size_t num) {
    return text_.substr(std::exchange(at_, at_ + num), num);
  }
  void expect(std::string_view start) {
    if (!has(start)) refuse(fmt::format("column {}: {} is missing", at_ + 1, start));
    at_ += start.size();
  }
  int64_t number() {
    int64_t number = 0;
    const char* begin = text_.data() + at_;
    const auto [end, failed] = std::from_chars(begin, text_.data() + text_.size(), number);
    if (failed != std::errc()) refuse(fmt::format("column {}: a number is missing", at_ + 1));
    at_ += static_cast<std::size_t>(end - begin);
    return number;
  }
  std::string_view string() {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    if (next() != '"' || end >= text_.size())
      refuse(fmt::format("column {}: a string is missing or has no end", at_ + 1));
    return take(end + 1 - at_);
  }
  std::string_view scalar() {
    const std::size_t end = std::min(text_.find_first_of(",]}", at_), text_.size());
    if (end == at_) refuse(fmt::format("column {}: a value is missing", at_ + 1));
    return take(end - at_);
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

/// Writes a line's value with everything in place that the line refers to.
class Filler {
 public:
  using Definitions = std::unordered_map<int64_t, RowReader::Pieces>;
  Filler(std::string_view text, int format, const Definitions& definitions,
         const std::vector<std::string>& digests)
      : text_(text), format_(format), definitions_(definitions), digests_(digests) {}

  RowReader::Pieces pieces() {
    value(kMostLevels);
    if (!text_.is_at_end()) refuse("text after the value");
    return std::move(pieces_);
  }

 private:
  void put(std::string_view text) {
    num_bytes_ += text.size();
    if (num_bytes_ > kMostRowBytes) refuse("a record may have at most 1 MiB");
    pieces_.back() += text;
  }

  void value(int levels_left) {
    if (levels_left == 0) refuse(fmt::format("more than {} levels", kMostLevels));
    if (text_.next() == '"') {
      put(text_.string());
    } else if (format_ == 2 && text_.has(kReference)) {
      text_.take(kReference.size());
      filled(text_.number(), levels_left);
      text_.expect("}");
    } else if (text_.next() == '{') {
      put(text_.take(1));
      list('}', levels_left);
    } else if (format_ == 2 && text_.next() == '[') {
      put(text_.take(1));
      list(']', levels_left);
    } else if (text_.next() == '[') {
      text_.take(1);
      form(levels_left);
    } else {
      put(text_.scalar());
    }
  }

  /// The members of an object or an array, after its bracket, and its end.
  void list(char end, int levels_left) {
    for (bool is_first = true; text_.next() != end; is_first = false) {
      if (!is_first) {
        text_.expect(",");
        put(",");
      }
      if (end == '}') {
        put(text_.string());
        text_.expect(":");
        put(":");
      }
      value(levels_left - 1);
    }
    put(text_.take(1));
  }

  /// The value of an array of format 3, after its bracket.
  void form(int levels_left) {
    if (text_.next() == ']') {
      pieces_.emplace_back();
    } else if (const int64_t id = text_.number(); id == 0) {
      put("[");
      for (std::string_view comma; text_.next() == ','; comma = ",") {
        text_.take(1);
        put(comma);
        value(levels_left - 1);
      }
      put("]");
    } else if (id < 0) {
      const auto num = static_cast<int64_t>(digests_.size());
      if (id < -num || digests_[static_cast<std::size_t>(num + id)].empty())
        refuse(fmt::format("refers to the record {} rows above, which is not there", -id));
      put('"' + digests_[static_cast<std::size_t>(num + id)] + '"');
    } else {
      filled(id, levels_left);
    }
    text_.expect("]");
  }

  void filled(int64_t id, int levels_left) {
    const auto found = definitions_.find(id);
    if (found == definitions_.end())
      refuse(fmt::format("refers to {}, which nothing above defines", id));
    const RowReader::Pieces& pieces = found->second;
    put(pieces.front());
    for (std::size_t i = 1; i < pieces.size(); ++i) {
      text_.expect(",");
      value(levels_left - 1);
      put(pieces[i]);
    }
  }

  Cursor text_;
  int format_;
  const Definitions& definitions_;
  const std::vector<std::string>& digests_;
  RowReader::Pieces pieces_ = RowReader::Pieces(1);
  std::size_t num_bytes_ = 0;
};

}  // namespace

RowReader::Pieces RowReader::filled(std::string_view text) const {
  return Filler(text, format_, definitions_, digests_).pieces();
}

std::optional<std::string> RowReader::take(std::string_view line) {
  if (line.starts_with(kAnySection)) {
    if (line != kSectionLine && line != kSectionLine2)
      refuse("evidence of another format than 1, 2 and 3; a later patchbench reads it");
    *this = RowReader();
    format_ = line == kSectionLine ? 3 : 2;
    return std::nullopt;
  }
  if (format_ == 1) return std::string(line);
  if (line.starts_with(kEnvelope)) {
    digests_.emplace_back();
    return std::string(line);
  }
  if (line.starts_with(kReference)) {
    Cursor start(line.substr(kReference.size()));
    const int64_t id = start.number();
    if (id < 1 || !start.has(kValue) || !line.ends_with('}'))
      refuse("a definition is {\"$\":N,\"value\":…} with N from 1 on");
    const auto begin = line.find(kValue) + kValue.size();
    Pieces pieces = filled(line.substr(begin, line.size() - 1 - begin));
    for (const std::string& piece : pieces) defined_bytes_ += piece.size() + sizeof(std::string);
    if (defined_bytes_ > kMostDefinedBytes) refuse("the definitions of a section exceed 64 MiB");
    if (!definitions_.emplace(id, std::move(pieces)).second)
      refuse(fmt::format("defines {} twice", id));
    return std::nullopt;
  }
  Pieces pieces = filled(line);
  if (pieces.size() > 1) refuse("a row has a hole");
  if (format_ == 3) digests_.push_back(sha256_hex(pieces.front()));
  return std::move(pieces.front());
}

void each_row(std::string_view text, const std::string& where,
              const std::function<void(std::string, const std::string&)>& take) {
  RowReader reader;
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string place = fmt::format("{}:{}", where, number);
    std::optional<std::string> record;
    try {
      record = reader.take(text.substr(0, end));
    } catch (const Error& e) {
      throw e.in(place);
    }
    if (record) take(std::move(*record), place);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

}  // namespace patchbench::ledger
