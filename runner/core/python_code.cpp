#include "core/python_code.h"

#include <optional>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/python_tokens.h"

namespace patchbench {
namespace {

using TokenKind = PythonTokenKind;

/// Tokens [begin, end).
struct Span {
  std::size_t begin, end;
};

/// Finds definitions, their bodies and docstrings.
class Splitter {
 public:
  Splitter(const PythonTokens& source, const std::string& where)
      : source_(source),
        tokens_(source.tokens),
        where_(where),
        is_docstring_(tokens_.size()),
        is_body_(tokens_.size()) {}

  PythonCode split() {
    drop_docstring(0);
    for (std::size_t i = 0; i < tokens_.size(); ++i) visit(i);
    PythonCode code;
    const Span all{0, tokens_.size()};
    code.whole = sha256_hex(text_of(all, Bodies::kIn));
    code.module_level = sha256_hex(text_of(all, Bodies::kLeftOut));
    for (const auto& [name, spans] : functions_) {
      std::string text;
      for (const Span& span : spans) text += text_of(span, Bodies::kIn);
      code.functions[name] = sha256_hex(text);
    }
    return code;
  }

 private:
  /// A definition whose body is being read.
  struct Open {
    std::string name;  ///< qualified
    bool is_function;
    Span span;               ///< its end is not known yet
    std::size_t body_depth;  ///< of indentation
  };

  bool is(std::size_t i, TokenKind kind) const {
    return i < tokens_.size() && tokens_[i].kind == kind;
  }
  bool is(std::size_t i, TokenKind kind, std::string_view text) const {
    return is(i, kind) && source_.of(tokens_[i]) == text;
  }

  void visit(std::size_t i) {
    if (is(i, TokenKind::kIndent)) {
      ++depth_;
    } else if (is(i, TokenKind::kDedent)) {
      --depth_;
      while (!open_.empty() && open_.back().body_depth > depth_) {
        if (open_.back().is_function)
          functions_[open_.back().name].push_back({open_.back().span.begin, i + 1});
        open_.pop_back();
      }
    } else if (is(i, TokenKind::kNewline)) {
      is_statement_ = true;
    } else if (std::exchange(is_statement_, false)) {
      if (is(i, TokenKind::kOperator, "@")) {
        if (!decorator_) decorator_ = i;
        return;
      }
      define(i);
      decorator_.reset();
    }
  }

  /// Takes note of the definition that begins here, if one does.
  void define(std::size_t i) {
    const std::size_t keyword = is(i, TokenKind::kName, "async") ? i + 1 : i;
    const bool is_function = is(keyword, TokenKind::kName, "def");
    if (!is_function && !is(keyword, TokenKind::kName, "class")) return;
    if (!is(keyword + 1, TokenKind::kName)) fail(i, "a definition without a name");
    const std::size_t body = end_of_header(keyword);
    Open open{.name = open_.empty() ? "" : open_.back().name + ".",
              .is_function = is_function,
              .span = {decorator_.value_or(i), 0},
              .body_depth = depth_ + 1};
    open.name += source_.of(tokens_[keyword + 1]);
    const bool is_block = is(body, TokenKind::kNewline) && is(body + 1, TokenKind::kIndent);
    if (is(body, TokenKind::kNewline) && !is_block) fail(i, "a definition without a body");
    drop_docstring(is_block ? body + 2 : body);
    const std::size_t end = is_block ? end_of_block(body + 1) : end_of_line(body);
    if (is_function && !is_in_function()) {
      for (std::size_t k = body; k < end; ++k) is_body_[k] = true;
    }
    if (is_block) {
      open_.push_back(std::move(open));
    } else if (is_function) {
      functions_[open.name].push_back({open.span.begin, end});
    }
  }

  bool is_in_function() const {
    for (const Open& one : open_) {
      if (one.is_function) return true;
    }
    return false;
  }

  /// The token after the colon that ends `def f(…) -> …:`.
  std::size_t end_of_header(std::size_t keyword) const {
    int num_brackets = 0;
    for (std::size_t i = keyword; !is(i, TokenKind::kNewline) && i < tokens_.size(); ++i) {
      if (!is(i, TokenKind::kOperator)) continue;
      const std::string_view text = source_.of(tokens_[i]);
      if (text == "(" || text == "[" || text == "{") ++num_brackets;
      if (text == ")" || text == "]" || text == "}") --num_brackets;
      if (text == ":" && num_brackets == 0) return i + 1;
    }
    fail(keyword, "a definition without a body");
  }

  std::size_t end_of_line(std::size_t i) const {
    while (!is(i, TokenKind::kNewline)) ++i;
    return i + 1;
  }

  /// The token after the end of the block that is indented at `i`.
  std::size_t end_of_block(std::size_t i) const {
    for (int depth = 0;; ++i) {
      depth += is(i, TokenKind::kIndent) ? 1 : is(i, TokenKind::kDedent) ? -1 : 0;
      if (depth == 0) return i + 1;
    }
  }

  /// Drops the strings that are the first statement of a body.
  void drop_docstring(std::size_t begin) {
    std::size_t end = begin;
    while (is(end, TokenKind::kString) &&
           source_.of(tokens_[end]).substr(0, 2).find_first_of("bB") == std::string_view::npos)
      ++end;
    if (end == begin || !(is(end, TokenKind::kNewline) || is(end, TokenKind::kOperator, ";")))
      return;
    for (std::size_t i = begin; i <= end; ++i) is_docstring_[i] = true;
  }

  [[noreturn]] void fail(std::size_t token, const std::string& reason) const {
    throw Error(
        ErrorCode::kUsage,
        where_ + ":" + std::to_string(source_.line_of(tokens_[token].begin)) + ": " + reason);
  }

  enum class Bodies { kIn, kLeftOut };

  /// The tokens as a text that no other tokens give.
  std::string text_of(const Span& span, Bodies bodies) const {
    std::string text;
    for (std::size_t i = span.begin; i < span.end; ++i) {
      if (is_docstring_[i] || (bodies == Bodies::kLeftOut && is_body_[i])) continue;
      const std::string_view token = source_.of(tokens_[i]);
      text += static_cast<char>('a' + static_cast<int>(tokens_[i].kind));
      text += std::to_string(token.size());
      text += ':';
      text += token;
    }
    return text;
  }

  const PythonTokens& source_;
  const std::vector<PythonToken>& tokens_;
  std::string where_;
  std::vector<bool> is_docstring_;
  std::vector<bool> is_body_;  ///< of a function that is in no other
  std::vector<Open> open_;
  std::optional<std::size_t> decorator_;  ///< the first that waits for its definition
  std::size_t depth_ = 0;
  bool is_statement_ = true;
  std::map<std::string, std::vector<Span>> functions_;
};

}  // namespace

PythonCode python_code(std::string_view source, const std::string& where) {
  const PythonTokens tokens = python_tokens(source, where);
  return Splitter(tokens, where).split();
}

}  // namespace patchbench
