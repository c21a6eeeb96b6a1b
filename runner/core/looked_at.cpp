#include "core/looked_at.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace patchbench {
namespace {

constexpr std::size_t kEnough = 2;

/// A size of a real model on each axis.
const std::map<std::string, int64_t> kModelSizes = {
    {"tokens", 16384}, {"seqlen", 4096}, {"seqlen_q", 4096}, {"seqlen_k", 4096},
    {"vocab", 128256}, {"hidden", 8192}, {"num_heads", 128}};

std::set<std::string> words(const Json& list) { return list.get<std::set<std::string>>(); }

}  // namespace

std::vector<std::string> sizes_below_a_models(const std::vector<Json>& axes_of_cases) {
  std::map<std::string, int64_t> largest;
  for (const Json& axes : axes_of_cases) {
    for (const auto& [axis, value] : axes.items()) {
      if (!kModelSizes.contains(axis) || !value.is_number_integer()) continue;
      int64_t& most = largest[axis];
      most = std::max(most, value.get<int64_t>());
    }
  }
  std::vector<std::string> below;
  for (const auto& [axis, most] : largest)
    if (most < kModelSizes.at(axis)) below.push_back(fmt::format("{} up to {}", axis, most));
  return below;
}

void merge_watched(Json& all, const Json& said) {
  if (!said.is_object()) return;
  if (said.contains("lines") && all.contains("lines")) {
    Json& lines = all.at("lines");
    std::set<std::string> missed = words(lines.at("missed"));
    const std::set<std::string> now = words(said.at("lines").at("missed"));
    std::erase_if(missed, [&](const std::string& line) { return !now.contains(line); });
    lines["missed"] = missed;
  } else if (said.contains("lines")) {
    all["lines"] = said.at("lines");
  }
  const Json arguments = said.value("arguments", Json::object());
  for (const auto& [name, values] : arguments.items()) {
    Json& known = all["arguments"][name];
    std::set<std::string> every = known.is_null() ? std::set<std::string>() : words(known);
    every.merge(words(values));
    while (every.size() > kEnough) every.erase(std::prev(every.end()));
    known = every;
  }
}

LookedAt looked_at(const std::vector<Observation>& observations) {
  Json all = Json::object();
  for (const Observation& o : observations) merge_watched(all, o.self_reported);
  LookedAt looked;
  if (all.contains("lines")) {
    const Json& lines = all.at("lines");
    looked.lines = LinesRun{lines.at("num").get<int>(), lines.at("text").get<int>(),
                            words(lines.at("missed"))};
  }
  looked.arguments = all.value("arguments", looked.arguments);
  return looked;
}

std::set<std::string> not_looked_at(const LookedAt& looked) {
  std::set<std::string> open;
  for (const auto& [name, values] : looked.arguments) {
    if (values.size() >= kEnough) continue;
    const std::string argument = name.substr(name.find('(') + 1, name.size() - name.find('(') - 2);
    open.insert(argument + (values.empty() ? "" : " = " + *values.begin()));
  }
  return open;
}

}  // namespace patchbench
