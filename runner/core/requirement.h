#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace patchbench {

/// One requirement as PEP 508 writes it.
struct Requirement508 {
  std::string name;
  std::string version;  ///< of `==` without `*`, or of `===`; "" for a range
  std::string range;    ///< all comparisons, joined by commas
  std::string place;    ///< of `name @ PLACE`
  bool has_marker = false;
};

/// `name[extra]==1.2,!=1.3 ; marker`, `name (==1.2)`, `name @ PLACE ; marker`. nullopt for a text
/// that is something else in any part, such as two requirements.
std::optional<Requirement508> parse_requirement(std::string_view text);

/// Whether a text is a marker of PEP 508, from one end to the other.
bool is_marker(std::string_view text);

}  // namespace patchbench
