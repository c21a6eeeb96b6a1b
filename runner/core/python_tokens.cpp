#include "core/python_tokens.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/split.h"

namespace patchbench {
namespace {

// Python's own limits: of indentation, of brackets, and of f-strings within f-strings.
constexpr std::size_t kMaxIndents = 100, kMaxBrackets = 200, kMaxFormats = 150;
constexpr std::size_t kMaxCharacterName = 100;  // of `\N{NAME}`: no name is longer

bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_hexadecimal(char c) {
  return is_decimal(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
/// Bytes of other alphabets count as letters.
bool is_name_start(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_name(char c) { return is_name_start(c) || is_decimal(c); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\f'; }

/// How a string begins and how it is read.
struct Quotes {
  char quote = 0;
  bool is_triple = false, is_raw = false, is_format = false;
};

/// Whether letters in front of quotes are a prefix of strings; sets what it says.
bool is_prefix(std::string_view letters, Quotes& quotes) {
  std::string sorted = lower(letters);
  std::sort(sorted.begin(), sorted.end());
  quotes.is_raw = sorted.find('r') != std::string::npos;
  quotes.is_format = sorted.find_first_of("ft") != std::string::npos;
  constexpr std::array kPrefixes = {"", "b", "br", "f", "fr", "r", "rt", "t", "u"};
  return std::find(kPrefixes.begin(), kPrefixes.end(), sorted) != kPrefixes.end();
}

/// The operator at the start of a text; empty for none.
std::string_view operator_at(std::string_view text) {
  constexpr std::array<std::string_view, 25> kLong = {
      "**=", "//=", ">>=", "<<=", "...", "!=", "->", ":=", "==", "<=", ">=", "+=", "-=",
      "*=",  "/=",  "%=",  "&=",  "|=",  "^=", "@=", "**", "//", ">>", "<<", "<>"};
  for (const std::string_view one : kLong) {
    if (text.starts_with(one)) return text.substr(0, one.size());
  }
  constexpr std::string_view kShort = "()[]{},:.;@=+-*/%&|^~<>";
  return kShort.find(text.front()) == std::string_view::npos ? "" : text.substr(0, 1);
}

/// The source as Python's reader hands it on.
std::string with_line_feeds(std::string_view source) {
  if (source.starts_with("\xef\xbb\xbf")) source.remove_prefix(3);
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool is_pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!is_pair) text += source[i] == '\r' ? '\n' : source[i];
  }
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where)
      : where_(where), out_{.text = with_line_feeds(source), .tokens = {}}, text_(out_.text) {}

  PythonTokens read() {
    while (at_ < text_.size()) {
      if (is_line_start_ && !start_line()) continue;
      step();
    }
    if (!brackets_.empty()) fail("a bracket that does not end");
    if (!is_line_start_) emit(PythonTokenKind::kNewline, at_);
    for (; indents_.size() > 1; indents_.pop_back()) emit(PythonTokenKind::kDedent, at_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorCode::kUsage,
                where_ + ":" + std::to_string(out_.line_of(at_)) + ": " + reason);
  }

  char peek(std::size_t ahead) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void emit(PythonTokenKind kind, std::size_t begin) {
    const bool is_layout = kind == PythonTokenKind::kNewline || kind == PythonTokenKind::kIndent ||
                           kind == PythonTokenKind::kDedent;
    out_.tokens.push_back({kind, is_layout ? at_ : begin, at_});
  }

  void skip_line() { at_ = std::min(text_.find('\n', at_), text_.size()); }

  /// Takes the spaces in front of a line; false, and the line taken, where no token is in it.
  bool start_line() {
    std::size_t column = 0, joined = 0;
    for (bool is_joined = false; at_ < text_.size(); ++at_) {
      if (peek(0) == '\\' && peek(1) == '\n') {
        if (!is_joined) joined = column;
        is_joined = true, ++at_;
      } else if (is_space(peek(0))) {
        column = peek(0) == ' ' ? column + 1 : peek(0) == '\t' ? (column / 8 + 1) * 8 : 0;
      } else {
        if (is_joined) column = joined;
        break;
      }
    }
    if (peek(0) == '#') skip_line();
    if (at_ >= text_.size()) return false;
    if (peek(0) == '\n') return ++at_, false;
    if (column > indents_.back()) {
      if (indents_.size() >= kMaxIndents) fail("too many levels of indentation");
      indents_.push_back(column);
      emit(PythonTokenKind::kIndent, at_);
    }
    for (; column < indents_.back(); indents_.pop_back()) emit(PythonTokenKind::kDedent, at_);
    if (column != indents_.back()) fail("an indentation that no outer block has");
    is_line_start_ = false;
    return true;
  }

  /// One token, or one piece of white space, comment or line joining.
  void step() {
    const char c = peek(0);
    if (is_space(c)) {
      ++at_;
    } else if (c == '#') {
      skip_line();
    } else if (c == '\n') {
      if (brackets_.empty()) emit(PythonTokenKind::kNewline, at_), is_line_start_ = true;
      ++at_;
    } else if (c == '\\') {
      if (peek(1) != '\n') fail("a backslash that joins no lines");
      at_ += 2;
    } else if (is_decimal(c) || (c == '.' && is_decimal(peek(1)))) {
      number();
    } else if (is_name_start(c)) {
      name();
    } else if (c == '\'' || c == '"') {
      string(at_, {});
    } else {
      op();
    }
  }

  void op() {
    const std::string_view found = operator_at(text_.substr(at_));
    if (found.empty()) fail("a character that is not Python's");
    const std::size_t begin = at_;
    if (found.size() == 1) bracket(found.front());
    at_ += found.size();
    emit(PythonTokenKind::kOperator, begin);
  }

  void bracket(char c) {
    if (c == '(' || c == '[' || c == '{') {
      if (brackets_.size() >= kMaxBrackets) fail("too many brackets");
      brackets_ += c;
    } else if (c == ')' || c == ']' || c == '}') {
      const char opening = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets_.empty() || brackets_.back() != opening) fail("a bracket that none opens");
      brackets_.pop_back();
    }
  }

  template <typename Digit>
  void digits(Digit is_one) {
    while (is_one(peek(0)) || (peek(0) == '_' && is_one(peek(1)))) ++at_;
  }

  void number() {
    const std::size_t begin = at_;
    const char base = peek(0) == '0' ? static_cast<char>(peek(1) | 0x20) : '\0';
    const bool has_base = base == 'x' || base == 'o' || base == 'b';
    if (has_base && (is_hexadecimal(peek(2)) || peek(2) == '_')) {
      at_ += 2;
      digits([&](char c) { return base == 'x' ? is_hexadecimal(c) : is_decimal(c); });
    } else {
      digits(is_decimal);
      if (peek(0) == '.') ++at_, digits(is_decimal);
      const bool is_signed = peek(1) == '+' || peek(1) == '-';
      if ((peek(0) | 0x20) == 'e' && is_decimal(peek(is_signed ? 2 : 1)))
        at_ += is_signed ? 2 : 1, digits(is_decimal);
      if ((peek(0) | 0x20) == 'j') ++at_;
    }
    emit(PythonTokenKind::kNumber, begin);
  }

  void name() {
    const std::size_t begin = at_;
    while (is_name(peek(0))) ++at_;
    Quotes quotes;
    const bool is_quote = peek(0) == '\'' || peek(0) == '"';
    if (is_quote && is_prefix(text_.substr(begin, at_ - begin), quotes)) {
      string(begin, quotes);
    } else {
      emit(PythonTokenKind::kName, begin);
    }
  }

  /// A string whose prefix begins at `begin` and whose quotes are here.
  void string(std::size_t begin, Quotes quotes) {
    quotes.quote = peek(0);
    quotes.is_triple = peek(1) == quotes.quote && peek(2) == quotes.quote;
    at_ += quotes.is_triple ? 3 : 1;
    if (quotes.is_format) return format_string(begin, quotes);
    while (!take_end(quotes)) {
      if (at_ >= text_.size() || (peek(0) == '\n' && !quotes.is_triple))
        fail("a string that does not end");
      at_ = std::min(at_ + (peek(0) == '\\' ? 2 : 1), text_.size());
    }
    emit(PythonTokenKind::kString, begin);
  }

  bool is_end(const Quotes& quotes) const {
    return peek(0) == quotes.quote &&
           (!quotes.is_triple || (peek(1) == quotes.quote && peek(2) == quotes.quote));
  }

  bool take_end(const Quotes& quotes) {
    if (!is_end(quotes)) return false;
    at_ += quotes.is_triple ? 3 : 1;
    return true;
  }

  void format_string(std::size_t begin, const Quotes& quotes) {
    if (++num_formats_ > kMaxFormats) fail("too many f-strings within f-strings");
    emit(PythonTokenKind::kFormatBegin, begin);
    format_text(quotes, Ends::kAtQuotes);
    const std::size_t end = at_;
    take_end(quotes);
    emit(PythonTokenKind::kFormatEnd, end);
    --num_formats_;
  }

  enum class Ends { kAtQuotes, kAtBrace };

  /// Text and fields up to the closing quotes, or of a format specification up to its brace.
  void format_text(const Quotes& quotes, Ends ends) {
    std::size_t begin = at_;
    const auto emit_text = [&] {
      if (at_ > begin) emit(PythonTokenKind::kFormatText, begin);
    };
    for (;;) {
      const char c = peek(0);
      const bool is_quotes = is_end(quotes);
      if (at_ >= text_.size() || (c == '\n' && !quotes.is_triple) ||
          (is_quotes && ends == Ends::kAtBrace))
        fail("a string that does not end");
      if (is_quotes || (c == '}' && ends == Ends::kAtBrace)) return emit_text();
      if (c == '\\') {
        take_escape(quotes);
      } else if ((c == '{' || c == '}') && peek(1) == c && ends == Ends::kAtQuotes) {
        at_ += 2;
      } else if (c == '{') {
        emit_text();
        field(quotes);
        begin = at_;
      } else if (c == '}') {
        fail("a brace that none opens in an f-string");
      } else {
        ++at_;
      }
    }
  }

  void take_escape(const Quotes& quotes) {
    if (!quotes.is_raw && peek(1) == 'N' && peek(2) == '{') {
      const std::string_view ahead = text_.substr(at_, kMaxCharacterName);
      const std::size_t end = ahead.find_first_of("}\n'\"", 3);
      if (end != std::string_view::npos && ahead[end] == '}') {
        at_ += end + 1;
        return;
      }
    }
    // A backslash does not take a brace's meaning.
    const bool is_brace = peek(1) == '{' || peek(1) == '}';
    at_ = std::min(at_ + (is_brace ? 1 : 2), text_.size());
  }

  /// A replacement field, from its brace to its brace.
  void field(const Quotes& quotes) {
    op();
    const std::size_t depth = brackets_.size();
    for (std::size_t begin = at_; peek(0) != '}' || brackets_.size() > depth;) {
      if (at_ >= text_.size()) fail("a field that does not end in an f-string");
      const bool is_inside = brackets_.size() > depth;
      if (!is_inside && peek(0) == '=' && prints_itself()) {
        ++at_;
        while (is_space(peek(0)) || peek(0) == '\n') ++at_;
        emit(PythonTokenKind::kFormatText, begin);
        begin = at_;
      } else if (!is_inside && ((peek(0) == '!' && peek(1) != '=') || peek(0) == ':')) {
        const bool is_specification = peek(0) == ':';
        ++at_;
        emit(PythonTokenKind::kOperator, at_ - 1);
        if (!is_specification) continue;
        format_text(quotes, Ends::kAtBrace);
        break;
      } else {
        step();
      }
    }
    op();
  }

  /// Whether the field ends after the sign here, so that its own text is printed.
  bool prints_itself() const {
    const std::size_t next = text_.find_first_not_of(" \t\f\n", at_ + 1);
    return next != std::string_view::npos &&
           (text_[next] == '}' || text_[next] == ':' ||
            (text_[next] == '!' && text_.substr(next, 2) != "!="));
  }

  std::string where_;
  PythonTokens out_;
  std::string_view text_;
  std::size_t at_ = 0, num_formats_ = 0;
  bool is_line_start_ = true;
  std::vector<std::size_t> indents_ = {0};
  std::string brackets_;
};

}  // namespace

std::size_t PythonTokens::line_of(std::size_t at) const {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(at, text.size()));
  return 1 + static_cast<std::size_t>(std::count(text.begin(), end, '\n'));
}

PythonTokens python_tokens(std::string_view source, const std::string& where) {
  return Lexer(source, where).read();
}

}  // namespace patchbench
