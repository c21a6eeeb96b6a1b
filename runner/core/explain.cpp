#include "core/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace patchbench {
namespace {

using Holds = std::vector<bool>;  ///< of each input

struct Term {
  int cost = 0;
  std::string text;
  std::set<std::string> axes;
  bool operator<(const Term& other) const {
    return std::tie(cost, text) < std::tie(other.cost, other.text);
  }
};
/// What holds for which inputs -> the cheapest term that says so.
using Terms = std::map<Holds, Term>;

constexpr int kAxes = 2, kWord = 2, kBound = 3, kDivides = 4, kNumber = 5, kJoin = 4;
/// Of each axis that a condition names: one that names fewer is less likely to hold by chance.
constexpr int kEachAxis = 3;

class Search {
 public:
  explicit Search(const std::vector<JudgedInput>& inputs) : inputs_(inputs) {
    std::set<std::string> names;
    for (const JudgedInput& input : inputs) {
      for (const auto& [name, value] : input.axes.items()) names.insert(name);
      red_.push_back(input.is_red);
    }
    for (const std::string& name : names) {
      add_values(name);
      add_numbers(name);
      for (const std::string& other : names) add_pair(name, other);
    }
  }

  std::vector<std::string> rules() const {
    if (const std::string one = condition(); !one.empty()) return {"red where " + one, "green"};
    return decision_list();
  }

 private:
  std::string condition() const {
    std::optional<Term> best;
    const auto offer = [&](const Term& term) {
      if (!best || term < *best) best = term;
    };
    for (const auto& [holds, term] : terms_) {
      if (holds == red_) offer(term);
    }
    for (auto one = terms_.begin(); one != terms_.end(); ++one) {
      for (auto two = std::next(one); two != terms_.end(); ++two) {
        // Written in the order of how simple each is by itself.
        const auto by_itself = [](const Term& term) {
          return std::pair(term.cost - kEachAxis * static_cast<int>(term.axes.size()), term.text);
        };
        const bool is_in_order = by_itself(one->second) < by_itself(two->second);
        const Term& a = is_in_order ? one->second : two->second;
        const Term& b = is_in_order ? two->second : one->second;
        std::set<std::string> axes = a.axes;
        axes.insert(b.axes.begin(), b.axes.end());
        const int shared = static_cast<int>(a.axes.size() + b.axes.size() - axes.size());
        const int cost = a.cost + b.cost + kJoin - kEachAxis * shared;
        if (joined(one->first, two->first, true)) offer({cost, a.text + " and " + b.text, axes});
        if (joined(one->first, two->first, false))
          offer({cost + 1, a.text + " or " + b.text, axes});
      }
    }
    return best ? best->text : "";
  }

  /// How many of the inputs that are left a term decides; 0 where it holds for red and green ones.
  int decides(const Holds& holds, const Holds& is_left, bool& is_red) const {
    int counts[] = {0, 0};
    for (std::size_t i = 0; i < red_.size(); ++i) {
      if (is_left[i] && holds[i]) ++counts[red_[i] ? 1 : 0];
    }
    is_red = counts[1] > 0;
    return counts[0] > 0 && counts[1] > 0 ? 0 : counts[0] + counts[1];
  }

  std::vector<std::string> decision_list() const {
    const Holds every(red_.size(), true);
    Holds is_left = every;
    std::vector<std::string> rules;
    while (rules.size() + 1 < kMaxRules) {
      std::tuple<int, Term, Holds, bool> best;  // of the most inputs, by the cheapest term
      for (const auto& [holds, term] : terms_) {
        bool is_red = false;
        const int num = decides(holds, is_left, is_red);
        if (num > std::get<0>(best) ||
            (num > 0 && num == std::get<0>(best) && term < std::get<1>(best)))
          best = {num, term, holds, is_red};
      }
      const auto& [num, term, holds, is_red] = best;
      if (num == 0) return {};
      rules.push_back((is_red ? "red where " : "green where ") + term.text);
      for (std::size_t i = 0; i < is_left.size(); ++i) is_left[i] = is_left[i] && !holds[i];
      bool is_rest_red = false;
      if (decides(every, is_left, is_rest_red) == 0) continue;
      rules.emplace_back(is_rest_red ? "red" : "green");
      return rules;
    }
    return {};
  }

  /// Whether both terms, or either, are the red inputs.
  bool joined(const Holds& one, const Holds& two, bool is_and) const {
    for (std::size_t i = 0; i < red_.size(); ++i) {
      if ((is_and ? one[i] && two[i] : one[i] || two[i]) != red_[i]) return false;
    }
    return true;
  }

  template <typename Test>
  void add(int cost, const std::string& text, const std::string& name, const Test& test,
           const std::string& other = "") {
    Holds holds;
    for (const JudgedInput& input : inputs_)
      holds.push_back(input.axes.contains(name) && test(input.axes));
    if (std::find(holds.begin(), holds.end(), true) == holds.end()) return;
    std::set<std::string> axes = {name};
    if (!other.empty()) axes.insert(other);
    const Term term{cost + kEachAxis * static_cast<int>(axes.size()), text, axes};
    const auto [known, is_new] = terms_.emplace(holds, term);
    if (!is_new && term < known->second) known->second = term;
  }

  void add_values(const std::string& name) {
    add(kWord + 1, name + " is given", name, [](const Json&) { return true; });
    for (const Json& value : values_of(name)) {
      if (value.is_number()) continue;
      if (value.is_boolean()) {
        add(kWord, (value.get<bool>() ? "" : "not ") + name, name,
            [&](const Json& axes) { return axes[name] == value; });
        continue;
      }
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      add(kWord, fmt::format("{} is {}", name, text), name,
          [&](const Json& axes) { return axes[name] == value; });
      add(kWord + 1, fmt::format("{} is not {}", name, text), name,
          [&](const Json& axes) { return axes[name] != value; });
    }
  }

  void add_numbers(const std::string& name) {
    const auto add_test = [&](int cost, const std::string& text, const auto& test) {
      add(cost, text, name, [&](const Json& axes) {
        return axes[name].is_number() && test(axes[name].get<double>());
      });
    };
    for (const Json& value : values_of(name)) {
      if (!value.is_number()) continue;
      const auto bound = value.get<double>();
      add_test(kNumber, fmt::format("{} == {}", name, value.dump()),
               [&](double x) { return x == bound; });
      add_test(kNumber + 1, fmt::format("{} != {}", name, value.dump()),
               [&](double x) { return x != bound; });
      add_test(kBound, fmt::format("{} > {}", name, value.dump()),
               [&](double x) { return x > bound; });
      add_test(kBound, fmt::format("{} < {}", name, value.dump()),
               [&](double x) { return x < bound; });
    }
    for (int64_t power = 2; power <= 1024; power *= 2) {
      const auto divides = [power](double x) { return static_cast<int64_t>(x) % power == 0; };
      add_test(kDivides, fmt::format("{} divides {}", power, name), divides);
      add_test(kDivides + 1, fmt::format("{} does not divide {}", power, name),
               [&](double x) { return !divides(x); });
    }
  }

  void add_pair(const std::string& name, const std::string& other) {
    // An axis of one value is a number: the terms about `name` alone have it.
    if (name == other || values_of(name).size() < 2 || values_of(other).size() < 2) return;
    const auto add_test = [&](int cost, const std::string& text, const auto& test) {
      const auto holds = [&](const Json& axes) {
        return axes.contains(other) && axes[name].is_number() && axes[other].is_number() &&
               test(axes[name].get<double>(), axes[other].get<double>());
      };
      add(cost, text, name, holds, other);
    };
    add_test(kAxes, name + " < " + other, [](double a, double b) { return a < b; });
    if (name < other) {
      add_test(kAxes, name + " == " + other, [](double a, double b) { return a == b; });
      add_test(kAxes + 1, name + " != " + other, [](double a, double b) { return a != b; });
    }
    const auto divides = [](double a, double b) {
      const auto by = static_cast<int64_t>(a);
      return by != 0 && static_cast<int64_t>(b) % by == 0;
    };
    add_test(kDivides, name + " divides " + other, divides);
    add_test(kDivides + 1, name + " does not divide " + other,
             [&](double a, double b) { return !divides(a, b); });
  }

  std::set<Json> values_of(const std::string& name) const {
    std::set<Json> values;
    for (const JudgedInput& input : inputs_) {
      if (input.axes.contains(name)) values.insert(input.axes[name]);
    }
    return values;
  }

  const std::vector<JudgedInput>& inputs_;
  Holds red_;
  Terms terms_;
};

std::vector<std::string> differing(const Json& one, const Json& other) {
  std::vector<std::string> names;
  const auto text = [](const Json& axes, const std::string& name) {
    if (!axes.contains(name)) return std::string("none");
    return axes[name].is_string() ? axes[name].get<std::string>() : axes[name].dump();
  };
  const auto add = [&](const std::string& name) {
    names.push_back(fmt::format("{} ({}, {})", name, text(one, name), text(other, name)));
  };
  for (const auto& [name, value] : one.items())
    if (!other.contains(name) || other[name] != value) add(name);
  for (const auto& [name, value] : other.items())
    if (!one.contains(name)) add(name);
  return names;
}

}  // namespace

Explanation explain(const std::vector<JudgedInput>& inputs) {
  Explanation out;
  for (const JudgedInput& red : inputs) {
    ++(red.is_red ? out.num_red : out.num_green);
    if (!red.is_red) continue;
    for (const JudgedInput& green : inputs) {
      if (green.is_red) continue;
      std::vector<std::string> differ = differing(red.axes, green.axes);
      if (out.red.empty() || differ.size() < out.differ.size())
        out.red = red.name, out.green = green.name, out.differ = std::move(differ);
    }
  }
  if (out.num_red > 0 && out.num_green > 0) out.rules = Search(inputs).rules();
  return out;
}

}  // namespace patchbench
