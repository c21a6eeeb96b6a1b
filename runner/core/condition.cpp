#include "core/condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/split.h"

namespace patchbench {
namespace {

/// An axis's value, a number, or nullopt where there is neither.
std::optional<double> number_of(const std::string& word, const Json& axes) {
  if (axes.contains(word))
    return axes[word].is_number() ? std::optional(axes[word].get<double>()) : std::nullopt;
  std::size_t used = 0;
  try {
    const double value = std::stod(word, &used);
    return used == word.size() ? std::optional(value) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool has_space(const std::string& text) { return text.find(' ') != std::string::npos; }

bool divides(double divisor, double value) {
  const auto by = static_cast<int64_t>(divisor);
  return by != 0 && static_cast<int64_t>(value) % by == 0;
}

}  // namespace

Condition::Condition(std::string_view text) : text_(text) {
  for (const std::string& terms : split(text_, " or ")) {
    std::vector<Term>& all = any_of_.emplace_back();
    for (const std::string& term : split(terms, " and ")) all.push_back(term_of(term));
  }
}

Condition::Term Condition::term_of(const std::string& text) {
  if (text.ends_with(" is given")) return {text.substr(0, text.find(' ')), "is given", ""};
  for (const char* verb :
       {" is not ", " is ", " == ", " != ", " < ", " > ", " does not divide ", " divides "}) {
    const std::string by = verb;
    const std::size_t at = text.find(by);
    if (at == std::string::npos) continue;
    Term term{text.substr(0, at), by.substr(1, by.size() - 2), text.substr(at + by.size())};
    const bool is_word = term.verb == "is" || term.verb == "is not";
    if (has_space(term.left) || (!is_word && has_space(term.right))) break;
    return term;
  }
  const bool is_negated = text.starts_with("not ");
  const std::string name = is_negated ? text.substr(4) : text;
  if (name.empty() || has_space(name))
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' is no term of a condition, such as: tokens > 64, num_groups "
                            "divides num_heads, dtype is float16, grad_loss.uniform",
                            text));
  return {name, is_negated ? "not" : "", ""};
}

bool Condition::Term::holds(const Json& axes) const {
  if (verb == "divides" || verb == "does not divide") {
    const auto by = number_of(left, axes), value = number_of(right, axes);
    return by && value && axes.contains(right) && divides(*by, *value) == (verb == "divides");
  }
  if (!axes.contains(left)) return false;
  if (verb == "is given") return true;
  if (verb.empty() || verb == "not") return axes[left] == Json(verb.empty());
  if (verb == "is") return word_of(axes[left]) == right;
  if (verb == "is not") return word_of(axes[left]) != right;
  const auto a = number_of(left, axes), b = number_of(right, axes);
  if (!a || !b) return false;
  if (verb == "<") return *a < *b;
  if (verb == ">") return *a > *b;
  return (*a == *b) == (verb == "==");
}

bool Condition::holds(const Json& axes) const {
  return std::any_of(any_of_.begin(), any_of_.end(), [&](const std::vector<Term>& terms) {
    return std::all_of(terms.begin(), terms.end(),
                       [&](const Term& term) { return term.holds(axes); });
  });
}

bool is_red_by(const std::vector<std::string>& rules, const Json& axes) {
  for (const std::string& rule : rules) {
    if (rule == "red" || rule == "green") return rule == "red";
    const std::size_t at = rule.find(" where ");
    const std::string side = rule.substr(0, at);
    if (at == std::string::npos || (side != "red" && side != "green"))
      throw Error(ErrorCode::kUsage,
                  fmt::format("'{}' is no rule, such as: red where a > 1", rule));
    if (Condition(rule.substr(at + 7)).holds(axes)) return side == "red";
  }
  throw Error(ErrorCode::kUsage, "a decision list ends with 'red' or 'green'");
}

}  // namespace patchbench
