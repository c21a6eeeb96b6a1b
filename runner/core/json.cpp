#include "core/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"

namespace patchbench {
namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxExact = int64_t{1} << 53;

/// Number of bytes of the UTF-8 sequence at the start of `text`, 0 if none is valid
/// (overlong forms and surrogates are invalid). `code` receives the code point.
size_t utf8_length(std::string_view text, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    code = lead;
    return 1;
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  code = lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = (code << 6) | (byte(i) & 0x3fu);
  }
  constexpr uint32_t kFirstOfLength[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_valid =
      code >= kFirstOfLength[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return is_valid ? length : 0;
}

/// What moves the cursor, clears the screen or turns the order of the letters: C0, DEL, C1 (U+009B
/// opens an escape sequence), line and paragraph separators, marks of direction.
bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/// How many bytes at the start of `text` need no escape in a JSON string: ASCII without
/// quotes, backslashes and control characters. Nearly all there is, so it is taken in one piece.
size_t plain_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const auto byte = static_cast<unsigned char>(text[length]);
    if (byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\') break;
    ++length;
  }
  return length;
}

/// ECMAScript's Number::toString for a finite double, which RFC 8785 takes over.
std::string number_text(double value) {
  if (value == 0) return "0";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, std::fabs(value),
                                 std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const char* first = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(first, text.data() + text.size(), exponent);
  const int point = exponent + 1;  // decimal digits in front of the point
  const int num_digits = static_cast<int>(digits.size());
  std::string out;
  if (num_digits <= point && point <= 21) {
    out = digits + std::string(static_cast<size_t>(point - num_digits), '0');
  } else if (0 < point && point <= 21) {
    out = digits.substr(0, static_cast<size_t>(point)) + "." +
          digits.substr(static_cast<size_t>(point));
  } else if (-6 < point && point <= 0) {
    out = "0." + std::string(static_cast<size_t>(-point), '0') + digits;
  } else {
    out = digits.substr(0, 1) + (num_digits > 1 ? "." + digits.substr(1) : "") + "e" +
          (exponent < 0 ? "-" : "+") + std::to_string(std::abs(exponent));
  }
  return value < 0 ? "-" + out : out;
}

std::u16string utf16(std::string_view text) {
  std::u16string out;
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t length = utf8_length(text, code);
    if (length == 0) throw Error(ErrorCode::kInternal, "canonical JSON: a string is not UTF-8");
    if (code < 0x10000) {
      out += static_cast<char16_t>(code);
    } else {
      out += static_cast<char16_t>(0xd800 + ((code - 0x10000) >> 10));
      out += static_cast<char16_t>(0xdc00 + ((code - 0x10000) & 0x3ff));
    }
    text.remove_prefix(length);
  }
  return out;
}

/// One byte of a string as RFC 8785 writes it.
void write_character(char c, std::string& out) {
  constexpr std::string_view kMeanings = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const size_t index = kMeanings.find(c);
  if (index != std::string_view::npos) {
    out += '\\';
    out += kLetters[index];
  } else if (static_cast<unsigned char>(c) < 0x20) {
    constexpr std::string_view kHex = "0123456789abcdef";
    out += "\\u00";
    out += kHex[static_cast<size_t>(c) >> 4];
    out += kHex[static_cast<size_t>(c) & 15];
  } else {
    out += c;
  }
}

/// Whether RFC 8785 puts key `a` before key `b`. Keys of ASCII follow the order of their bytes.
bool is_before(const std::string& a, const std::string& b) {
  const bool is_plain = plain_length(a) == a.size() && plain_length(b) == b.size();
  return is_plain ? a < b : utf16(a) < utf16(b);
}

/// A recursive-descent reader; depth is bounded, so the stack is too. It notes whether what it read
/// is the RFC 8785 form of it: to write the value again and compare takes as long as to read it.
class Reader {
 public:
  Reader(std::string_view text, const std::string& where, JsonLines* lines)
      : text_(text), where_(where), lines_(lines) {}

  Json document() {
    Json out = value(0);
    skip_space();
    if (at_ < text_.size()) fail("text after the end of the JSON value");
    return out;
  }

  /// Whether all that was read so far is in RFC 8785 form.
  bool is_canonical() const { return is_canonical_; }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorCode::kUsage, where_ + ":" + std::to_string(line_) + ": " + reason);
  }

  bool done() const { return at_ >= text_.size(); }

  void skip_space() {
    for (; !done(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
      is_canonical_ = false;
    }
  }

  bool take(char c) {
    skip_space();
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Json value(int depth) {
    skip_space();
    if (done()) fail("the text ends where a value should stand");
    if (lines_) lines_->emplace(pointer_, line_);
    switch (text_[at_]) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return string();
      case 't':
        return word("true", true);
      case 'f':
        return word("false", false);
      case 'n':
        return word("null", nullptr);
      default:
        return number();
    }
  }

  Json word(std::string_view name, Json meaning) {
    if (text_.substr(at_, name.size()) != name) fail("neither a value nor true, false or null");
    at_ += name.size();
    return meaning;
  }

  void enter(int depth) const {
    if (depth >= kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }

  Json object(int depth) {
    enter(depth);
    ++at_;
    Json out = Json::object();
    if (take('}')) return out;
    std::string last;
    do {
      skip_space();
      if (done() || text_[at_] != '"') fail("a key in double quotes should stand here");
      std::string key = string();
      const auto [member, is_first] = out.emplace(key, nullptr);
      is_canonical_ = is_canonical_ && (out.size() == 1 || is_before(last, key));
      if (!is_first) fail("key \"" + shown(key) + "\" stands twice in one object");
      if (!take(':')) fail("\":\" should follow key \"" + shown(key) + "\"");
      const size_t mark = push(key);
      *member = value(depth + 1);
      pointer_.resize(mark);
      last = std::move(key);
    } while (take(','));
    if (!take('}')) fail("\",\" or \"}\" should stand here");
    return out;
  }

  Json array(int depth) {
    enter(depth);
    ++at_;
    Json out = Json::array();
    if (take(']')) return out;
    do {
      const size_t mark = lines_ ? push(std::to_string(out.size())) : 0;
      out.push_back(value(depth + 1));
      pointer_.resize(mark);
    } while (take(','));
    if (!take(']')) fail("\",\" or \"]\" should stand here");
    return out;
  }

  size_t push(const std::string& segment) {
    const size_t mark = pointer_.size();
    if (lines_) pointer_.append("/").append(pointer_segment(segment));
    return mark;
  }

  std::string string() {
    ++at_;
    std::string out;
    while (true) {
      const size_t num_plain = plain_length(text_.substr(at_));
      out += text_.substr(at_, num_plain);
      at_ += num_plain;
      if (done()) fail("a string has no closing quote");
      const char c = text_[at_];
      if (c == '"') break;
      if (c == '\\') {
        const size_t start = at_, length = out.size();
        escape(out);
        std::string wanted;
        if (out.size() == length + 1) write_character(out.back(), wanted);
        is_canonical_ = is_canonical_ && text_.substr(start, at_ - start) == wanted;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fail("a control character inside a string; write it as \\u00XX");
      } else {
        uint32_t code = 0;
        const size_t length = utf8_length(text_.substr(at_), code);
        if (length == 0) fail("a byte sequence that is not UTF-8");
        out += text_.substr(at_, length);
        at_ += length;
      }
    }
    ++at_;
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    ++at_;
    const char c = done() ? '\0' : text_[at_++];
    if (c == 'u') {
      uint32_t code = hex4();
      if (code >= 0xdc00 && code <= 0xdfff) fail("a low surrogate without its high one");
      if (code >= 0xd800 && code <= 0xdbff) {
        if (text_.substr(at_, 2) != "\\u") fail("a high surrogate without its low one");
        at_ += 2;
        const uint32_t low = hex4();
        if (low < 0xdc00 || low > 0xdfff) fail("a high surrogate without its low one");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      }
      append_utf8(code, out);
      return;
    }
    const size_t index = c == '\0' ? std::string_view::npos : kLetters.find(c);
    if (index == std::string_view::npos) fail("an unknown escape in a string");
    out += kMeanings[index];
  }

  uint32_t hex4() {
    uint32_t code = 0;
    if (text_.size() - at_ < 4) fail("\\u needs four hex digits");
    const char* first = text_.data() + at_;
    const auto end = std::from_chars(first, first + 4, code, 16);
    if (end.ptr != first + 4) fail("\\u needs four hex digits");
    at_ += 4;
    return code;
  }

  size_t digits() {
    const size_t start = at_;
    while (!done() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ - start;
  }

  Json number() {
    const size_t start = at_;
    if (text_[at_] == '-') ++at_;
    const size_t whole = at_;
    const size_t num_whole = digits();
    if (num_whole == 0) fail("neither a value nor true, false or null");
    if (num_whole > 1 && text_[whole] == '0') fail("a number with a leading zero");
    bool is_integer = true;
    if (!done() && text_[at_] == '.') {
      is_integer = false;
      ++at_;
      if (digits() == 0) fail("a number needs digits after its point");
    }
    if (!done() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      is_integer = false;
      ++at_;
      if (!done() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (digits() == 0) fail("a number needs digits in its exponent");
    }
    return number_of(text_.substr(start, at_ - start), is_integer);
  }

  Json number_of(std::string_view literal, bool is_integer) {
    const char* end = literal.data() + literal.size();
    if (is_integer) {
      int64_t integer = 0;
      if (std::from_chars(literal.data(), end, integer).ec == std::errc() &&
          integer >= -kMaxExact && integer <= kMaxExact) {
        is_canonical_ = is_canonical_ && literal != "-0";
        return integer < 0 ? Json(integer) : Json(static_cast<uint64_t>(integer));
      }
    }
    double real = 0;
    const std::errc error = std::from_chars(literal.data(), end, real).ec;
    // from_chars gives the same error for overflow, which is refused, and underflow, which rounds
    // to the nearest double.
    if (error == std::errc::result_out_of_range) {
      real = std::strtod(std::string(literal).c_str(), nullptr);
      if (!std::isfinite(real)) fail("the number " + shown(literal) + " is out of range");
    }
    const bool is_its_text = number_text(real) == literal;
    is_canonical_ = is_canonical_ && is_its_text;
    if (is_integer && !is_its_text) {
      fail("the integer " + shown(literal) +
           " lies beyond 2^53 and would lose digits; write it as a string");
    }
    return real;
  }

  std::string_view text_;
  const std::string& where_;
  JsonLines* lines_;
  std::string pointer_;
  size_t at_ = 0;
  int line_ = 1;
  bool is_canonical_ = true;
};

void write_string(std::string_view text, std::string& out) {
  const size_t num_plain = plain_length(text);
  out += '"';
  out += text.substr(0, num_plain);
  text.remove_prefix(num_plain);
  utf16(text);  // throws if it is not UTF-8
  for (const char c : text) write_character(c, out);
  out += '"';
}

void write_number(const Json& value, std::string& out) {
  const auto beyond = [](const std::string& text) {
    return Error(ErrorCode::kInternal,
                 "canonical JSON: the integer " + text + " lies beyond 2^53; store it as a string");
  };
  if (value.is_number_unsigned()) {
    const auto integer = value.get<uint64_t>();
    if (integer > static_cast<uint64_t>(kMaxExact)) throw beyond(std::to_string(integer));
    out += std::to_string(integer);
  } else if (value.is_number_integer()) {
    const auto integer = value.get<int64_t>();
    if (integer > kMaxExact || integer < -kMaxExact) throw beyond(std::to_string(integer));
    out += std::to_string(integer);
  } else {
    const double real = value.get<double>();
    if (!std::isfinite(real)) {
      throw Error(ErrorCode::kInternal,
                  "canonical JSON: a number is not finite; wrap it in number_or_name");
    }
    out += number_text(real);
  }
}

void write(const Json& value, std::string& out);

/// Members whose keys are ASCII are in the order of their UTF-16 code units already.
bool is_sorted_by_utf16(const Json& object) {
  for (auto it = object.begin(); it != object.end(); ++it) {
    if (plain_length(it.key()) != it.key().size()) return false;
  }
  return true;
}

void write_members_in_order(const Json& value, std::string& out) {
  out += '{';
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (it != value.begin()) out += ',';
    write_string(it.key(), out);
    out += ':';
    write(it.value(), out);
  }
  out += '}';
}

void write_object(const Json& value, std::string& out) {
  if (is_sorted_by_utf16(value)) return write_members_in_order(value, out);
  std::vector<std::pair<std::u16string, Json::const_iterator>> members;
  for (auto it = value.begin(); it != value.end(); ++it) members.emplace_back(utf16(it.key()), it);
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  out += '{';
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0) out += ',';
    write_string(members[i].second.key(), out);
    out += ':';
    write(members[i].second.value(), out);
  }
  out += '}';
}

void write(const Json& value, std::string& out) {
  switch (value.type()) {
    case Json::value_t::object:
      return write_object(value, out);
    case Json::value_t::array: {
      out += '[';
      for (size_t i = 0; i < value.size(); ++i) {
        if (i > 0) out += ',';
        write(value[i], out);
      }
      out += ']';
      return;
    }
    case Json::value_t::string:
      return write_string(value.get_ref<const std::string&>(), out);
    case Json::value_t::boolean:
      out += value.get<bool>() ? "true" : "false";
      return;
    case Json::value_t::null:
      out += "null";
      return;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return write_number(value, out);
    default:
      throw Error(ErrorCode::kInternal, "canonical JSON: a binary or discarded value");
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, JsonLines* lines) {
  return Reader(text, where, lines).document();
}

Json parse_canonical_json(std::string_view text, const std::string& where) {
  Reader reader(text, where, nullptr);
  Json out = reader.document();
  if (!reader.is_canonical()) throw Error(ErrorCode::kUsage, where + ": not in RFC 8785 form");
  return out;
}

std::string canonical_json(const Json& value) {
  std::string out;
  write(value, out);
  return out;
}

std::string pointer_segment(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

void append_utf8(uint32_t code, std::string& out) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | (code >> 6));
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3f));
    put(0x80 | ((code >> 6) & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t length = utf8_length(text, code);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t length = utf8_length(text, code);
    out += length == 0 || is_control(code) ? "?" : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string shown(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  // A character is at most four bytes, so that the start tells whether the whole is longer.
  std::string out = printable(text.substr(0, 4 * (kMaxBytes + 1)));
  if (out.size() <= kMaxBytes) return out;
  size_t end = kMaxBytes;
  while ((static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) --end;
  return out.substr(0, end) + "…";
}

Json number_or_name(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number_from(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  throw Error(ErrorCode::kUsage,
              "a number, \"nan\", \"inf\" or \"-inf\" should stand here, got " +
                  shown(value.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

}  // namespace patchbench
