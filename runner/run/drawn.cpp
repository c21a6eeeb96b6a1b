#include "run/drawn.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/looked_at.h"
#include "core/pin_arguments.h"

namespace patchbench {
namespace {

std::string summary_line(const Observation& o) {
  const Json& drawn = o.drawn;
  const Json seeds = drawn.at("seeds");
  std::string line =
      fmt::format("drawn from {} for {}: {} cases", drawn.at("space").get<std::string>(), o.subject,
                  drawn.at("asked").get<int>());
  if (seeds[0] != seeds[1])
    line += fmt::format(" of seeds {} to {}", seeds[0].get<uint64_t>(), seeds[1].get<uint64_t>());
  line += fmt::format(", {} red, {:.1f} s in the subject", drawn.at("red").get<int>(),
                      drawn.value("wall_s", 0.0));
  for (const auto& [key, word] :
       {std::pair{"unsupported", "not supported"}, std::pair{"same", "drawn twice"}})
    if (const int num = drawn.value(key, 0); num > 0) line += fmt::format(", {} {}", num, word);
  if (const Json caught = drawn.value("regions", Json::object()); !caught.empty()) {
    int most = 0;
    for (const auto& [region, num] : caught.items()) most = std::max(most, num.get<int>());
    line += fmt::format("; {} region mutants red, each within {} cases of its region",
                        caught.size(), most);
  }
  const Json open = drawn.value("regions_open", Json::object());
  for (const auto& [region, num] : open.items())
    if (num != 0) line += fmt::format("; not red in {} cases: {}", num.get<int>(), region);
  if (o.status == CaseStatus::kUnresolved) line += "; " + o.reason;
  return line + "\n";
}

/// What repeats a drawn case.
std::string command_of(const Setup& setup, const Observation& o, const Trial& trial) {
  const RunPin& pin = trial.context.pin;
  const std::string version = pin.version();
  const bool has_version =
      !version.empty() && version != setup.target.upstream.red_pin && !pin.is_installed();
  return fmt::format("patchbench reproduce {}{} --subject {} --seed {} --axes '{}'",
                     setup.target.manifest.slug.str(),
                     has_version ? " " + pin_word(setup.target.upstream.name, version) : "",
                     o.subject, o.seed, o.drawn.at("axes").dump());
}

std::string smallest_text(const Setup& setup, const Observation& o, const Trial& trial) {
  std::string text =
      fmt::format("smallest {}: ", o.failure_class.empty() ? "failure" : o.failure_class);
  if (const Measure* worst = o.failing())
    text += fmt::format("{} {} {:.2e} > {:.2e} {}", worst->tensor, worst->layer, worst->got,
                        worst->limit, worst->where);
  else
    text += o.reason;
  return text + "\n  " + command_of(setup, o, trial) + "\n";
}

/// The judged cases of a subject in each scenario, and the scenarios that have none and no reason.
std::string scenarios_line(const RunTarget& target, const Trial& trial) {
  std::map<std::string, int> judged;
  const Subject* subject = nullptr;
  for (const Observation& o : trial.observations) {
    if (!o.is_summary() || o.subject.is_in_process()) continue;
    subject = &o.subject;
    const Json counts = o.drawn.value("scenarios", Json::object());
    for (const auto& [name, num] : counts.items()) judged[name] += num.get<int>();
  }
  if (subject == nullptr || !target.manifest.scenarios.are_drawn) return "";
  std::vector<std::string> counts, open;
  for (const std::string& name : target.manifest.scenarios.drawn(target.device.kind_name())) {
    if (judged.contains(name))
      counts.push_back(fmt::format("{} {}", name, judged[name]));
    else
      open.push_back(name);
  }
  std::string line = fmt::format("{} in scenarios: {}", *subject, fmt::join(counts, ", "));
  if (!open.empty()) line += fmt::format("; not looked at: {}", fmt::join(open, ", "));
  return line + "\n";
}

/// Of a subject that was explored: how many of the changed lines ran, and the others; the arguments
/// that had one value.
std::string looked_at_lines(const Manifest& pack, const Trial& trial) {
  if (std::none_of(trial.observations.begin(), trial.observations.end(),
                   [](const Observation& o) { return o.is_summary(); }))
    return "";
  const LookedAt looked = looked_at(trial.observations);
  std::string text;
  if (looked.lines) {
    const LinesRun& run = *looked.lines;
    text += fmt::format(
        "changed lines: {} statements, {}", run.num,
        run.missed.empty() ? "all run" : fmt::format("not run: {}", fmt::join(run.missed, ", ")));
    if (run.num_text > 0)
      text += fmt::format("; {} lines of kernels are compiled and not seen to run", run.num_text);
    text += "\n";
  }
  std::vector<std::string> open;
  for (const std::string& argument : not_looked_at(looked))
    if (!pack.waived_arguments.contains(argument.substr(0, argument.find(' '))))
      open.push_back(argument);
  std::vector<Json> axes;
  for (const Observation& o : trial.observations) {
    if (o.status != CaseStatus::kAbsent && !o.is_wrong()) continue;
    const Case* declared = pack.find_case(o.case_name);
    if (declared != nullptr) axes.push_back(declared->axes);
    if (o.drawn.contains("axes")) axes.push_back(o.drawn.at("axes"));
  }
  if (const auto below = sizes_below_a_models(axes); !below.empty())
    text += fmt::format("sizes, a model's not looked at: {}\n", fmt::join(below, ", "));
  if (!open.empty())
    text +=
        fmt::format("arguments with one value alone, not looked at: {}\n", fmt::join(open, ", "));
  return text;
}

}  // namespace

std::string drawn_text(const Setup& setup, const std::vector<Trial>& trials) {
  std::string text;
  for (const Trial& trial : trials) {
    for (const Observation& o : trial.observations)
      if (o.is_summary()) text += summary_line(o);
    text += scenarios_line(setup.target, trial);
    text += looked_at_lines(setup.target.manifest, trial);
  }
  for (const Trial& trial : trials) {
    for (const Observation& o : trial.observations)
      if (o.drawn.contains("shrunk")) text += smallest_text(setup, o, trial);
  }
  return text;
}

}  // namespace patchbench
