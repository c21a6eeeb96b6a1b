#include "run/drawn.h"

#include <fmt/format.h>

#include <algorithm>

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
  const std::string version =
      trial.context.pin.is_object() ? trial.context.pin.value("version", "") : "";
  const bool has_version =
      !version.empty() && version != setup.target.upstream.red_pin && version != "host";
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

}  // namespace

std::string drawn_text(const Setup& setup, const std::vector<Trial>& trials) {
  std::string text;
  for (const Trial& trial : trials) {
    for (const Observation& o : trial.observations)
      if (o.is_summary()) text += summary_line(o);
  }
  for (const Trial& trial : trials) {
    for (const Observation& o : trial.observations)
      if (o.drawn.contains("shrunk")) text += smallest_text(setup, o, trial);
  }
  return text;
}

}  // namespace patchbench
