#include "core/requirement.h"

#include <algorithm>
#include <array>

#include "core/package_list.h"

namespace patchbench {
namespace {

constexpr int kMaxMarkerDepth = 64;
constexpr std::array<std::string_view, 20> kVariables = {"os_name",
                                                         "sys_platform",
                                                         "platform_machine",
                                                         "platform_python_implementation",
                                                         "platform_release",
                                                         "platform_system",
                                                         "platform_version",
                                                         "python_version",
                                                         "extra",
                                                         "python_full_version",
                                                         "extras",
                                                         "implementation_name",
                                                         "os.name",
                                                         "implementation_version",
                                                         "dependency_groups",
                                                         "sys.platform",
                                                         "platform.version",
                                                         "platform.machine",
                                                         "python_implementation",
                                                         "platform.python_implementation"};

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Reads from the front of a text. A `take…` without success may have moved: the text is refused.
class RequirementParser {
 public:
  explicit RequirementParser(std::string_view text) : rest_(text) {}

  std::optional<Requirement508> requirement() {
    Requirement508 out;
    skip_space();
    out.name = take_while([](char c) { return is_alnum(c) || c == '.' || c == '_' || c == '-'; });
    if (!is_package_name(out.name)) return std::nullopt;
    if (take("[") && !extras()) return std::nullopt;
    if (take("@")) {
      skip_space();
      out.place = take_while([](char c) { return c != ' ' && c != '\t'; });
      if (out.place.empty()) return std::nullopt;
    } else if (take("(")) {
      if (!specifiers(out) || !take(")")) return std::nullopt;
    } else if (!starts_with(";") && !done() && !specifiers(out)) {
      return std::nullopt;
    }
    out.has_marker = take(";");
    if (out.has_marker && !marker()) return std::nullopt;
    return done() ? std::optional(out) : std::nullopt;
  }

  /// The rest is one marker.
  bool marker() { return any_of_markers(0) && done(); }

 private:
  void skip_space() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t')) rest_.remove_prefix(1);
  }
  bool starts_with(std::string_view word) {
    skip_space();
    return rest_.starts_with(word);
  }
  bool take(std::string_view word) {
    if (!starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool done() { return starts_with("") && rest_.empty(); }

  template <typename IsPart>
  std::string take_while(IsPart is_part) {
    std::size_t length = 0;
    while (length < rest_.size() && is_part(rest_[length])) ++length;
    const std::string out(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return out;
  }

  bool extras() {
    if (take("]")) return true;
    do {
      skip_space();
      const std::string name =
          take_while([](char c) { return is_alnum(c) || c == '.' || c == '_' || c == '-'; });
      if (!is_package_name(name)) return false;
    } while (take(","));
    return take("]");
  }

  /// `==1.2, !=1.3`: one exact version is kept, two that differ are none.
  bool specifiers(Requirement508& out) {
    constexpr std::array<std::string_view, 8> kVerbs = {
        "===", "==", "~=", "!=", "<=", ">=", "<", ">"};
    int num_exact = 0;
    do {
      std::string_view verb;
      for (const std::string_view one : kVerbs) {
        if (verb.empty() && take(one)) verb = one;
      }
      skip_space();
      const bool is_arbitrary = verb == "===";
      const std::string version = take_while([&](char c) {
        return is_arbitrary
                   ? std::string_view(" \t;,)").find(c) == std::string_view::npos
                   : is_alnum(c) || std::string_view("._+!*-").find(c) != std::string_view::npos;
      });
      if (verb.empty() || version.empty()) return false;
      out.range += (out.range.empty() ? "" : ",") + std::string(verb) + version;
      const bool is_exact =
          is_arbitrary || (verb == "==" && version.find('*') == std::string::npos);
      if (!is_exact) continue;
      out.version = num_exact++ == 0 || out.version == version ? version : "";
    } while (take(","));
    return true;
  }

  /// `and`, `or`, `in` or `not`, as a word of its own.
  bool take_word(std::string_view word) {
    if (!starts_with(word)) return false;
    if (rest_.size() > word.size() && (is_alnum(rest_[word.size()]) || rest_[word.size()] == '_'))
      return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  bool any_of_markers(int depth) {
    do {
      do {
        if (!one_marker(depth)) return false;
      } while (take_word("and"));
    } while (take_word("or"));
    return true;
  }

  bool one_marker(int depth) {
    if (take("(")) return depth < kMaxMarkerDepth && any_of_markers(depth + 1) && take(")");
    if (!marker_value()) return false;
    bool is_compared = take_word("in") || (take_word("not") && take_word("in"));
    for (const std::string_view verb : {"===", "==", "~=", "!=", "<=", ">=", "<", ">"})
      is_compared = is_compared || take(verb);
    return is_compared && marker_value();
  }

  /// A text in quotes, or a variable of PEP 508 (with the old spellings that pip takes).
  bool marker_value() {
    for (const std::string_view quote : {"'", "\""}) {
      if (!take(quote)) continue;
      take_while([&](char c) { return c != quote[0]; });
      return !rest_.empty() && take(quote);
    }
    skip_space();
    const std::string name = take_while([](char c) { return is_alnum(c) || c == '_' || c == '.'; });
    return std::find(kVariables.begin(), kVariables.end(), name) != kVariables.end();
  }

  std::string_view rest_;
};

}  // namespace

std::optional<Requirement508> parse_requirement(std::string_view text) {
  return RequirementParser(text).requirement();
}

bool is_marker(std::string_view text) { return RequirementParser(text).marker(); }

}  // namespace patchbench
