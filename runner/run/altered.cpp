#include "run/altered.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/edit_make.h"
#include "core/fix_changes.h"
#include "git/checkout.h"

namespace patchbench {
namespace {

constexpr std::size_t kMostChanges = 12, kCases = 2;

/// One case that the fix passed, and what it cost.
struct Passed {
  double seconds = 0;
  std::string name;  ///< "" of a drawn one
  Json axes;
  uint64_t seed = 1;
};
/// `path:line` -> the cases that ran it, declared ones before drawn ones, the cheapest first.
using ByLine = std::map<std::string, std::vector<Passed>>;

ByLine passed_by_line(const std::vector<Trial>& trials) {
  ByLine passed;
  const auto add = [&](const Observation& o, bool is_drawn) {
    const bool is_summary = o.is_summary();
    if (o.subject != SubjectKind::kPatched || o.status != CaseStatus::kAbsent || is_summary) return;
    const Passed one{o.self_reported.value("wall_s", 0.0), is_drawn ? "" : o.case_name,
                     is_drawn ? o.drawn.at("axes") : Json(), o.seed};
    const Json ran = o.self_reported.value("ran", Json::array());
    for (const Json& line : ran) passed[line.get<std::string>()].push_back(one);
  };
  for (const Trial& trial : trials) {
    for (const Observation& o : trial.observations)
      if (o.role != CaseRole::kDrawn) add(o, false);
    for (const Observation& o : trial.drawn) add(o, true);
  }
  for (auto& [line, cases] : passed)
    std::stable_sort(cases.begin(), cases.end(), [](const Passed& a, const Passed& b) {
      return std::pair(a.name.empty(), a.seconds) < std::pair(b.name.empty(), b.seconds);
    });
  return passed;
}

/// Path -> the text that the fix leaves.
using Texts = std::map<std::string, std::string>;

/// Every change of the lines that ran in a case; `texts` is filled with the files that have them.
std::vector<FixChange> changes_of(git::Store& store, const Pin& pin, const PlanStep& fix,
                                  const ByLine& passed, Texts& texts) {
  std::map<std::string, std::vector<std::size_t>> lines;
  for (const auto& [line, cases] : passed) {
    const std::size_t colon = line.rfind(':');
    lines[line.substr(0, colon)].push_back(std::strtoul(line.c_str() + colon + 1, nullptr, 10));
  }
  std::vector<FixChange> all;
  for (const auto& [path, numbers] : lines) {
    std::optional<std::string> text = git::read_after(store, pin, fix.edits, path);
    if (!text) continue;
    for (FixChange& change : fix_changes(*text, numbers)) {
      change.path = path;
      all.push_back(std::move(change));
    }
    texts[path] = std::move(*text);
  }
  return all;
}

/// The fix, the change over it, and the cases: two declared ones, or two drawn ones of a seed.
PlanStep step_of(const Pin& pin, const PlanStep& fix, const std::string& before,
                 const FixChange& change, const std::string& number,
                 const std::vector<Passed>& cases) {
  PlanStep step{.subject = "altered:" + number, .edits = fix.edits, .seeds = fix.seeds};
  Edit edit{"altered-" + number + ".edit",
            {{"Subject", change.what}, {"Upstream", pin.upstream}, {"Base", pin.version}},
            {make_file_edit(change.path, before, change.text)}};
  step.edits.push_back(std::move(edit));
  const bool is_declared = !cases.front().name.empty();
  if (!is_declared) step.seeds = {cases.front().seed, cases.front().seed};
  for (const Passed& one : cases) {
    if (step.cases.size() + step.given.size() == kCases) break;
    if (is_declared && !one.name.empty()) step.cases.push_back(one.name);
    if (!is_declared && one.seed == step.seeds.first) step.given.push_back(one.axes);
  }
  return step;
}

}  // namespace

AlteredSteps altered_steps(const Context& context, const Setup& setup, const RunPlan& plan,
                           const std::vector<Trial>& trials) {
  AlteredSteps altered;
  const auto fix = std::find_if(plan.steps.begin(), plan.steps.end(), [](const PlanStep& step) {
    return step.subject == SubjectKind::kPatched;
  });
  if (fix == plan.steps.end() || !setup.target.pin) return altered;
  const Pin& pin = *setup.target.pin;
  git::Store store(context.cache, context.root);
  const ByLine passed = passed_by_line(trials);
  Texts texts;
  for (const FixChange& change :
       chosen_changes(changes_of(store, pin, *fix, passed, texts), kMostChanges)) {
    const std::string line = fmt::format("{}:{}", change.path, change.line);
    const auto cases = passed.find(line);
    if (cases == passed.end()) continue;
    const std::string number = std::to_string(altered.steps.size() + 1);
    altered.steps.push_back(
        step_of(pin, *fix, texts.at(change.path), change, number, cases->second));
    altered.what[number] = line + " " + change.what;
  }
  return altered;
}

}  // namespace patchbench
