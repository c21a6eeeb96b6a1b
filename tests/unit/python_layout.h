#pragma once
#include <cstdlib>
#include <string>

#include "core/python_tokens.h"

namespace patchbench::sample {

/// The same tokens in another layout: one space between two, `indent` a level, `line_end` after
/// each line. An f-string is as it was.
inline std::string laid_out(const PythonTokens& source, const std::string& indent,
                            const std::string& line_end) {
  using Kind = PythonTokenKind;
  std::string out, margin;
  bool is_start = true;
  for (std::size_t i = 0; i < source.tokens.size(); ++i) {
    const PythonToken& token = source.tokens[i];
    if (token.kind == Kind::kNewline) {
      out += line_end;
      is_start = true;
    } else if (token.kind == Kind::kIndent) {
      margin += indent;
    } else if (token.kind == Kind::kDedent) {
      margin.resize(margin.size() - indent.size());
    } else {
      std::size_t end = i;
      for (int depth = 0; end < source.tokens.size(); ++end) {
        depth += source.tokens[end].kind == Kind::kFormatBegin ? 1
                 : source.tokens[end].kind == Kind::kFormatEnd ? -1
                                                               : 0;
        if (depth == 0) break;
      }
      out += is_start ? margin : " ";
      out += source.text.substr(token.begin, source.tokens[end].end - token.begin);
      is_start = false;
      i = end;
    }
  }
  return out;
}

}  // namespace patchbench::sample
