#include "run/explanation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "core/explain.h"
#include "report/table.h"

namespace patchbench {
namespace {

/// An input that was judged, and what the subject showed on it: its failure classes, or "" where
/// nothing was wrong.
struct Shown {
  std::string space;  ///< of drawn ones
  Json axes;
  std::set<std::string> classes;
};

void show(const Observation& o, const Json& axes, std::map<std::string, Shown>& shown) {
  if (o.status != CaseStatus::kPresent && o.status != CaseStatus::kAbsent) return;
  const std::string name =
      o.role == CaseRole::kDrawn ? fmt::format("{} of seed {}", o.case_name, o.seed) : o.case_name;
  Shown& one = shown[name];
  if (o.role == CaseRole::kDrawn) one.space = o.drawn.value("space", "");
  one.axes = axes;
  one.classes.insert(o.failure_class);
}

/// The drawn cases with the properties of their inputs, or where none were drawn the declared ones.
std::map<std::string, Shown> shown_by(const Setup& setup, const Subject& subject,
                                      const std::vector<Trial>& trials) {
  std::map<std::string, Shown> drawn, declared;
  for (const Trial& trial : trials) {
    for (const Observation& o : trial.drawn) {
      if (o.subject != subject) continue;
      Json axes = o.drawn.at("axes");
      axes.update(o.drawn.at("properties"));
      show(o, axes, drawn);
    }
    for (const Observation& o : trial.observations) {
      if (o.subject == subject && o.counts && o.role != CaseRole::kDrawn)
        show(o, setup.target.manifest.find_case(o.case_name)->axes, declared);
    }
  }
  return drawn.empty() ? declared : drawn;
}

}  // namespace

Json explanations(const Setup& setup, const Subject& subject, const std::vector<Trial>& trials) {
  const auto shown = shown_by(setup, subject, trials);
  Json all = Json::array();
  for (const std::string& name : setup.target.manifest.classes_order) {
    std::map<std::pair<std::string, std::string>, std::vector<JudgedInput>> by_site;
    for (const auto& [input, one] : shown) {
      // What was red in another class, or now one and now the other, is on neither side.
      if (one.classes.size() == 1 && (one.classes.contains(name) || one.classes.contains("")))
        by_site[{one.axes.value("site", ""), one.space}].push_back(
            {input, one.axes, one.classes.contains(name)});
    }
    for (const auto& [where, inputs] : by_site) {
      const Explanation one = explain(inputs);
      if (one.num_red == 0) continue;
      all.push_back(
          {{"class", name},
           {"site", where.first},
           {"space", where.second},
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
    const auto space = one.at("space").get<std::string>();
    std::string line = fmt::format(
        "{}{}{}: {} ({} red, {} green cases)", one.at("class").get<std::string>(),
        site.empty() ? "" : " at " + site, space.empty() ? "" : " in space " + space,
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
