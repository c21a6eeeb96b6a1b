#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

enum class PythonTokenKind {
  kName,  ///< keywords, too
  kNumber,
  kString,  ///< with its prefix and quotes; not one with replacement fields
  kOperator,
  kFormatBegin,  ///< prefix and quotes of an f-string or a t-string
  kFormatText,   ///< its text between the fields, and a field that prints its own text (`{x = }`)
  kFormatEnd,    ///< its quotes
  kNewline,      ///< the end of a logical line
  kIndent,
  kDedent,
};

/// The bytes [begin, end) of a text; none for kNewline, kIndent and kDedent.
struct PythonToken {
  PythonTokenKind kind;
  std::size_t begin, end;
};

/// A Python source as tokens. Comments, blank lines, line joining and the width of spaces leave
/// none. The tokenizer follows Python 3.14, which takes every source that 3.8 and later take.
struct PythonTokens {
  std::string text;  ///< the source without a byte order mark, each line end a line feed
  std::vector<PythonToken> tokens;
  std::string_view of(const PythonToken& token) const {
    return std::string_view(text).substr(token.begin, token.end - token.begin);
  }
  /// The line of a byte, from 1.
  std::size_t line_of(std::size_t at) const;
};

/// Reads a source as UTF-8, in time linear in its length. Throws Error(kUsage)
/// `<where>:<line>: <reason>` for what is not Python's: an open string or bracket, a wrong
/// indentation, nesting beyond Python's own limits. It checks no grammar.
PythonTokens python_tokens(std::string_view source, const std::string& where);

}  // namespace patchbench
