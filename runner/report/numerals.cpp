#include "report/numerals.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "core/split.h"

namespace patchbench::report {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_digit(c) || is_letter(c) || c == '_'; }

struct Unit {
  std::string_view name;
  Measurand measurand;
  double scale;
  bool needs_no_space = false;  ///< a unit only where it adjoins its number
};
constexpr double kKibi = 1024.0;
constexpr std::array kUnits = {
    Unit{"B", Measurand::kBytes, 1},
    Unit{"byte", Measurand::kBytes, 1},
    Unit{"bytes", Measurand::kBytes, 1},
    Unit{"kB", Measurand::kBytes, 1e3},
    Unit{"KB", Measurand::kBytes, 1e3},
    Unit{"KiB", Measurand::kBytes, kKibi},
    Unit{"MB", Measurand::kBytes, 1e6},
    Unit{"MiB", Measurand::kBytes, kKibi* kKibi},
    Unit{"GB", Measurand::kBytes, 1e9},
    Unit{"GiB", Measurand::kBytes, kKibi* kKibi* kKibi},
    Unit{"TB", Measurand::kBytes, 1e12},
    Unit{"TiB", Measurand::kBytes, kKibi* kKibi* kKibi* kKibi},
    Unit{"s", Measurand::kSeconds, 1},
    Unit{"sec", Measurand::kSeconds, 1},
    Unit{"second", Measurand::kSeconds, 1},
    Unit{"seconds", Measurand::kSeconds, 1},
    Unit{"ms", Measurand::kSeconds, 1e-3},
    Unit{"us", Measurand::kSeconds, 1e-6},
    Unit{"\xc2\xb5s", Measurand::kSeconds, 1e-6},
    Unit{"\xce\xbcs", Measurand::kSeconds, 1e-6},
    Unit{"ns", Measurand::kSeconds, 1e-9},
    Unit{"min", Measurand::kSeconds, 60},
    Unit{"minutes", Measurand::kSeconds, 60},
    Unit{"h", Measurand::kSeconds, 3600},
    Unit{"hours", Measurand::kSeconds, 3600},
    Unit{"x", Measurand::kRatio, 1},
    Unit{"X", Measurand::kRatio, 1},
    Unit{"\xc3\x97", Measurand::kRatio, 1},
    Unit{"times", Measurand::kRatio, 1},
    Unit{"fold", Measurand::kRatio, 1},
    Unit{"%", Measurand::kPlain, 0.01},
    Unit{"percent", Measurand::kPlain, 0.01},
    Unit{"k", Measurand::kPlain, 1e3, true},
    Unit{"K", Measurand::kPlain, 1e3, true},
    Unit{"M", Measurand::kPlain, 1e6, true},
    Unit{"G", Measurand::kPlain, 1e9, true},
    Unit{"FLOPS", Measurand::kRate, 1},
    Unit{"GFLOPS", Measurand::kRate, 1e9},
    Unit{"TFLOPS", Measurand::kRate, 1e12},
    Unit{"PFLOPS", Measurand::kRate, 1e15},
};

/// Characters that show a digit without being one of ASCII's, and those that are invisible.
enum class Foreign { kNone, kDigit, kInvisible };

Foreign foreign_of(char32_t c) {
  constexpr std::array<std::pair<char32_t, char32_t>, 25> kDigits = {{
      {0xb2, 0xb3},     {0xb9, 0xb9},     {0xbc, 0xbe},     {0x660, 0x669},   {0x6f0, 0x6f9},
      {0x7c0, 0x7c9},   {0x966, 0x96f},   {0x9e6, 0x9ef},   {0xa66, 0xa6f},   {0xae6, 0xaef},
      {0xb66, 0xb6f},   {0xbe6, 0xbef},   {0xc66, 0xc6f},   {0xce6, 0xcef},   {0xd66, 0xd6f},
      {0xe50, 0xe59},   {0xed0, 0xed9},   {0xf20, 0xf33},   {0x1040, 0x1049}, {0x2070, 0x2089},
      {0x2150, 0x218b}, {0x2460, 0x249b}, {0x24ea, 0x24ff}, {0x2776, 0x2793}, {0xff10, 0xff19},
  }};
  const auto is_in = [c](const auto& range) { return c >= range.first && c <= range.second; };
  if (std::any_of(kDigits.begin(), kDigits.end(), is_in)) return Foreign::kDigit;
  if (c >= 0x1d7ce && c <= 0x1d7ff) return Foreign::kDigit;
  if (c >= 0x1f100 && c <= 0x1f10c) return Foreign::kDigit;
  if (c >= 0x3220 && c <= 0x3229) return Foreign::kDigit;
  const bool is_invisible =
      c == 0xad || (c >= 0x200b && c <= 0x200f) || (c >= 0x2060 && c <= 0x2064) || c == 0xfeff;
  return is_invisible ? Foreign::kInvisible : Foreign::kNone;
}

struct Character {
  char32_t code = 0;
  std::size_t num_bytes = 1;
};

/// The character at `at`; a byte that begins none is one character.
Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t lead = byte(at);
  const std::size_t length = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (length == 1 || at + length > text.size()) return {lead, 1};
  char32_t code = lead & (0x7f >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(at + i) & 0x3f);
  return {code, length};
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<Numeral> read() {
    while (at_ < text_.size()) {
      if (is_letter(peek()) || peek() == '_') {
        read_word();
      } else if (is_digit(peek()) || (peek() == '.' && is_digit(peek(1)) && !is_digit(peek(-1)))) {
        read_digits();
      } else if (peek() == '#' && is_digit(peek(1))) {
        at_ = end_of_digits(at_ + 1);
      } else if (peek() == '&' && (peek(1) == '#' || slice(at_ + 1, 4) == "frac")) {
        add_unreadable(at_, at_ + 2, "a character reference: write the digits");
      } else if (static_cast<unsigned char>(peek()) >= 0x80) {
        read_foreign();
      } else {
        ++at_;
      }
    }
    return std::move(found_);
  }

 private:
  char peek(std::ptrdiff_t ahead = 0) const {
    const std::ptrdiff_t i = static_cast<std::ptrdiff_t>(at_) + ahead;
    return i >= 0 && i < static_cast<std::ptrdiff_t>(text_.size())
               ? text_[static_cast<std::size_t>(i)]
               : '\0';
  }
  char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  /// Up to `count` bytes from `from`, which may lie behind the end.
  std::string_view slice(std::size_t from, std::size_t count) const {
    return text_.substr(std::min(from, text_.size()), count);
  }
  std::size_t end_of_digits(std::size_t i) const {
    while (is_digit(at(i))) ++i;
    return i;
  }
  std::size_t end_of_word(std::size_t i) const {
    while (is_word(at(i))) ++i;
    return i;
  }

  void add_unreadable(std::size_t begin, std::size_t end, const std::string& why) {
    found_.push_back({.begin = begin, .end = std::min(end, text_.size()), .unreadable = why});
    at_ = std::max(end, at_ + 1);
  }

  void read_foreign() {
    const Character c = character_at(text_, at_);
    const Foreign kind = foreign_of(c.code);
    if (kind == Foreign::kDigit) {
      add_unreadable(at_, at_ + c.num_bytes, "no ASCII digits: write 0 to 9, and 1e-3 for a power");
    } else if (kind == Foreign::kInvisible &&
               (is_digit(peek(-1)) || is_digit(at(at_ + c.num_bytes)))) {
      add_unreadable(at_, at_ + c.num_bytes, "an invisible character beside a digit: remove it");
    } else {
      at_ += c.num_bytes;
    }
  }

  /// A word, and what it makes of the digits after it.
  void read_word() {
    const std::size_t begin = at_, end = end_of_word(at_);
    const std::string_view word = slice(begin, end - begin);
    const bool is_after_digit =
        begin > 0 && (is_digit(text_[begin - 1]) || text_[begin - 1] == '.');
    if ((word[0] == 'x' || word[0] == 'X') && word.size() > 1 && is_digit(word[1]) &&
        !is_after_digit) {
      at_ = begin + 1;  // x3
      read_number(Measurand::kRatio);
      return;
    }
    at_ = end;
    const std::string name = lower(word);
    if (name == "http" || name == "https") {
      if (slice(at_, 3) == "://")
        while (at_ < text_.size() && text_[at_] != ' ' && text_[at_] != ')' && text_[at_] != '>')
          ++at_;
      return;
    }
    static const std::set<std::string> kEndings = {"py", "cpp", "cc", "cu", "cuh", "h", "hpp"};
    const bool is_file = begin > 1 && text_[begin - 1] == '.' && is_word(text_[begin - 2]) &&
                         kEndings.contains(name);
    if (peek() == ':' && is_digit(peek(1)) && (name == "cuda" || is_file)) {
      at_ = end_of_digits(at_ + 1);
      if (is_file && peek() == '-' && is_digit(peek(1))) at_ = end_of_digits(at_ + 1);
      return;
    }
    if (peek() == '[' && is_digit(peek(1)) && at(end_of_digits(at_ + 1)) == ']')
      at_ = end_of_digits(at_ + 1) + 1;  // grad_output[0]
    skip_short_version(name);
  }

  /// "Triton 3.6", where no unit follows.
  void skip_short_version(const std::string& name) {
    static const std::set<std::string> kPrograms = {
        "version",  "release", "python", "cuda", "torch", "pytorch", "triton",
        "tilelang", "driver",  "glibc",  "gcc",  "nccl",  "cudnn",   "ubuntu"};
    if (peek() != ' ' || !kPrograms.contains(name)) return;
    const std::size_t dot = end_of_digits(at_ + 1);
    if (dot == at_ + 1 || at(dot) != '.' || !is_digit(at(dot + 1))) return;
    const std::size_t end = end_of_digits(dot + 1);
    if (is_word(at(end)) || at(end) == '.' || unit_at(end)) return;
    at_ = end;
  }

  struct FoundUnit {
    Unit unit;
    std::size_t end;
  };
  /// The unit that follows a number which ends at `i`.
  std::optional<FoundUnit> unit_at(std::size_t i) const {
    bool has_space = false;
    if (at(i) == ' ' || at(i) == '-') {
      has_space = true;
      ++i;
    } else if (slice(i, 2) == "\xc2\xa0" || slice(i, 3) == "\xe2\x80\xaf") {
      has_space = true;
      i += text_[i] == '\xc2' ? 2 : 3;
    }
    std::optional<FoundUnit> best;
    for (const Unit& unit : kUnits) {
      if (has_space && unit.needs_no_space) continue;
      if (slice(i, unit.name.size()) != unit.name) continue;
      const std::size_t end = i + unit.name.size();
      if (is_word(unit.name.back()) && is_word(at(end))) continue;
      if (!best || end > best->end) best = {unit, end};
    }
    for (const std::size_t prefix : {0, 1}) {
      if (slice(i + prefix, 6) == "FLOP/s")
        return FoundUnit{{"FLOP/s", Measurand::kRate, 1}, i + prefix + 6};
    }
    if (!best) return best;
    if (slice(best->end, 2) == "/s") best->unit.measurand = Measurand::kRate;
    // 8192 x 256 names sizes.
    const bool is_cross = best->unit.measurand == Measurand::kRatio && best->unit.name != "times";
    if (is_cross && has_space && is_digit(at(best->end + 1))) return std::nullopt;
    return best;
  }

  bool skip_day() {
    const std::string_view day = slice(at_, 10);
    const char next = at(at_ + 10);
    if (day.size() < 10 || (is_word(next) && next != 'T')) return false;
    for (std::size_t i = 0; i < day.size(); ++i) {
      const bool is_dash = i == 4 || i == 7;
      if (is_dash ? day[i] != '-' : !is_digit(day[i])) return false;
    }
    const int month = (day[5] - '0') * 10 + day[6] - '0', date = (day[8] - '0') * 10 + day[9] - '0';
    if (month < 1 || month > 12 || date < 1 || date > 31) return false;
    at_ += 10;
    if (peek() == 'T')
      while (is_digit(peek()) || peek() == ':' || peek() == 'T' || peek() == 'Z') ++at_;
    return true;
  }

  /// 0001-row-scale
  bool skip_numbered_name() {
    if (peek() != '0' || end_of_digits(at_) != at_ + 4 || at(at_ + 4) != '-' ||
        !is_letter(at(at_ + 5)))
      return false;
    at_ += 5;
    return true;
  }

  bool skip_hexadecimal_id() {
    const std::size_t end = end_of_word(at_);
    const std::string_view word = slice(at_, end - at_);
    const bool is_hex = std::all_of(word.begin(), word.end(),
                                    [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
    const auto letters = std::count_if(word.begin(), word.end(), is_letter);
    const bool is_power = letters == 1 && word.find('e') != word.npos;  // 1234567e5 is a number
    if (!is_hex || letters == 0 || is_power || word.size() < 7 || word.size() > 64) return false;
    at_ = end;
    return true;
  }

  bool skip_version() {
    std::size_t i = end_of_digits(at_);
    int num_dots = 0;
    while (at(i) == '.' && is_digit(at(i + 1))) {
      i = end_of_digits(i + 1);
      ++num_dots;
    }
    if (num_dots < 2) return false;
    if (const auto unit = unit_at(i)) {
      add_unreadable(at_, unit->end, "dots between digits before a unit: write 1234567");
      return true;
    }
    while (is_word(at(i)) || ((at(i) == '.' || at(i) == '+') && is_word(at(i + 1)))) ++i;
    at_ = i;
    return true;
  }

  void read_digits() {
    if (is_digit(peek()) &&
        (skip_day() || skip_numbered_name() || skip_hexadecimal_id() || skip_version()))
      return;
    read_number(Measurand::kPlain);
  }

  struct Scanned {
    std::string digits;  ///< with fraction and power, without commas
    std::size_t end;
  };
  Scanned scan() const {
    std::string digits;
    std::size_t i = at_;
    while (is_digit(at(i)) || (at(i) == ',' && is_digit(at(i - 1)) && is_digit(at(i + 1)) &&
                               end_of_digits(i + 1) == i + 4)) {
      if (at(i) != ',') digits += at(i);
      ++i;
    }
    if (at(i) == '.' && is_digit(at(i + 1))) {
      const std::size_t after = end_of_digits(i + 1);
      digits += slice(i, after - i);
      i = after;
    }
    const bool has_sign = at(i + 1) == '-' || at(i + 1) == '+';
    const std::size_t power = i + (has_sign ? 2 : 1);
    if ((at(i) == 'e' || at(i) == 'E') && is_digit(at(power))) {
      const std::size_t after = end_of_digits(power);
      digits += at(i + 1) == '-' ? "e-" : "e";
      digits += slice(power, after - power);
      i = after;
    }
    return {digits, i};
  }

  /// Whether markup or an invisible character joins the digits that end at `i` with further ones.
  bool is_split_at(std::size_t i) const {
    std::size_t j = i;
    while (at(j) == '*' || at(j) == '_' || at(j) == '~' || at(j) == '`' || at(j) == '\\') ++j;
    if (j > i && is_digit(at(j))) return true;
    if (at(i) != '<') return false;
    const std::size_t close = text_.find('>', i);
    return close != text_.npos && (is_digit(at(close + 1)) || at(close + 1) == '.');
  }

  static Numeral numeral_of(const std::string& digits) {
    Numeral numeral;
    const std::string number = digits[0] == '.' ? "0" + digits : digits;
    std::from_chars(number.data(), number.data() + number.size(), numeral.value);
    const std::size_t power_at = digits.find('e'), dot = digits.find('.');
    const std::string mantissa = digits.substr(0, power_at);
    int power = 0;
    if (power_at != digits.npos)
      std::from_chars(digits.data() + power_at + 1, digits.data() + digits.size(), power);
    if (dot < mantissa.size()) power -= static_cast<int>(mantissa.size() - dot - 1);
    numeral.half_unit = 0.5 * std::pow(10.0, power);
    bool has_begun = false;
    for (const char c : mantissa) {
      has_begun |= c != '0' && c != '.';
      numeral.num_digits += has_begun && c != '.' ? 1 : 0;
    }
    if (!has_begun) numeral.num_digits = static_cast<int>(mantissa.size());
    return numeral;
  }

  bool is_negative(std::size_t begin) const {
    const char before = begin >= 2 ? text_[begin - 2] : ' ';
    const bool is_free = before == ' ' || before == '(' || before == '|' || before == '[';
    const bool has_minus = begin >= 1 && text_[begin - 1] == '-';
    return (has_minus && is_free) || (begin >= 3 && slice(begin - 3, 3) == "\xe2\x88\x92");
  }

  void read_number(Measurand measurand) {
    const std::size_t begin = at_;
    const auto [digits, end] = scan();
    if (is_split_at(end)) {
      add_unreadable(begin, end + 1, "digits split by markup: write them in one piece");
      return;
    }
    const std::string_view suffix = slice(end, end_of_word(end) - end);
    const bool is_ordinal = suffix == "st" || suffix == "nd" || suffix == "rd" || suffix == "th";
    const bool is_rank = suffix == "D" || (slice(end, 2) == "-D" && !is_word(at(end + 2)));
    if ((is_ordinal && digits.find('.') == digits.npos) || (is_rank && digits.size() == 1)) {
      at_ = end_of_word(end + (at(end) == '-' ? 1 : 0));
      return;
    }
    Numeral numeral = numeral_of(digits);
    numeral.measurand = measurand;
    const auto unit = unit_at(end);
    if (unit) {
      numeral.measurand = unit->unit.measurand;
      numeral.value *= unit->unit.scale;
      numeral.half_unit *= unit->unit.scale;
    } else if (!suffix.empty()) {
      add_unreadable(begin, end + suffix.size(),
                     "a number with an unknown ending: put a space before the word");
      return;
    }
    if (is_negative(begin)) numeral.value = -numeral.value;
    numeral.begin = begin;
    numeral.end = unit ? unit->end : end;
    at_ = numeral.end;
    found_.push_back(numeral);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Numeral> found_;
};

}  // namespace

std::vector<Numeral> numerals_in(std::string_view text) { return Reader(text).read(); }

}  // namespace patchbench::report
