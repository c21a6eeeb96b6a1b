#include "run/explanation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "core/explain.h"
#include "report/table.h"

namespace patchbench {
namespace {

/// What the subject showed on a case: its failure classes, or "" where nothing was wrong.
std::map<std::string, std::set<std::string>> shown_by_case(const Subject& subject,
                                                           const std::vector<Trial>& trials) {
  std::map<std::string, std::set<std::string>> shown;
  for (const Observation& o : observations_of(trials)) {
    if (o.subject != subject || !o.counts) continue;
    if (o.seen == Seen::kPresent) shown[o.case_name].insert(o.failure_class);
    if (o.seen == Seen::kAbsent) shown[o.case_name].insert("");
  }
  return shown;
}

}  // namespace

Json explanations(const Setup& setup, const Subject& subject, const std::vector<Trial>& trials) {
  const auto shown = shown_by_case(subject, trials);
  Json all = Json::array();
  for (const std::string& name : setup.manifest.classes_order) {
    std::map<std::string, std::vector<JudgedInput>> by_site;
    for (const auto& [case_name, classes] : shown) {
      const Json& axes = setup.manifest.find_case(case_name)->axes;
      // A case that was red in another class, or now one and now the other, is on neither side.
      if (classes.size() == 1 && (classes.contains(name) || classes.contains("")))
        by_site[axes.value("site", "")].push_back({case_name, axes, classes.contains(name)});
    }
    for (const auto& [site, inputs] : by_site) {
      const Explanation one = explain(inputs);
      if (one.num_red == 0) continue;
      all.push_back(
          {{"class", name},
           {"site", site},
           {"rules", one.rules},
           {"red", one.num_red},
           {"green", one.num_green},
           {"nearest", {{"red", one.red}, {"green", one.green}, {"differ", one.differ}}}});
    }
  }
  return all;
}

std::string explanation_text(const Json& explanations) {
  std::string text;
  for (const Json& one : explanations) {
    const auto rules = one.at("rules").get<std::vector<std::string>>();
    const Json& nearest = one.at("nearest");
    const auto site = one.at("site").get<std::string>();
    std::string line = fmt::format(
        "{}{}: {} ({} red, {} green cases)", one.at("class").get<std::string>(),
        site.empty() ? "" : " at " + site,
        rules.empty() ? (one.at("green").get<int>() == 0 ? "every case is red"
                                                         : "no short rule tells the cases apart")
                      : fmt::format("{}", fmt::join(rules, "; else ")),
        one.at("red").get<int>(), one.at("green").get<int>());
    if (one.at("green").get<int>() > 0)
      line +=
          fmt::format("; nearest: {} is red, {} is not, they differ in {}",
                      nearest.at("red").get<std::string>(), nearest.at("green").get<std::string>(),
                      fmt::join(nearest.at("differ").get<std::vector<std::string>>(), ", "));
    text += report::paragraph("explained: ", line);
  }
  return text;
}

}  // namespace patchbench
