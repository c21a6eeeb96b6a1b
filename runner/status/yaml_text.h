#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// A value of a YAML text. Aliases are replaced by what they name.
struct YamlNode {
  enum class Kind { kScalar, kSequence, kMapping };
  Kind kind = Kind::kScalar;
  std::string text;       ///< of a scalar
  bool is_plain = false;  ///< a scalar without quotes
  int line = 0;
  std::vector<std::string> keys;  ///< of a mapping, as they stand
  std::vector<YamlNode> items;    ///< of a sequence, or the values of a mapping in the keys' order
  /// The value of a key; null without one.
  const YamlNode* find(std::string_view key) const;
};

/// The first document of a text. Error(kUsage) `<file>:<line>: <reason>` for a text that is not
/// YAML, a key that is not a scalar or that comes twice, more than 64 levels, a million values.
YamlNode parse_yaml(std::string_view text, const std::string& file);

}  // namespace patchbench
