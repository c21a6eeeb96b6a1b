#include "core/shell_word.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace patchbench {

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "_./:=@-+,";
  const auto is_plain = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kPlain.find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace patchbench
