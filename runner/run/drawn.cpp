#include "run/drawn.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/pin_words.h"
#include "exec/progress.h"

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
  if (o.seen == Seen::kUnresolved) line += "; " + o.reason;
  return line + "\n";
}

/// What repeats a drawn case.
std::string command_of(const Setup& setup, const Observation& o, const Trial& trial) {
  const std::string version =
      trial.context.pin.is_object() ? trial.context.pin.value("version", "") : "";
  const bool has_version =
      !version.empty() && version != setup.upstream.red_pin && version != "host";
  return fmt::format("patchbench reproduce {}{} --subject {} --seed {} --axes '{}'",
                     setup.manifest.slug.str(),
                     has_version ? " " + pin_word(setup.upstream.name, version) : "", o.subject,
                     o.seed, o.drawn.at("axes").dump());
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

RunOptions with_drawing(const Setup& setup, const RunOptions& options, const Subject& subject,
                        QuestionContext& question) {
  RunOptions drawing = options;
  const int by_default = num_drawn_of(setup, subject);
  const bool is_named = !options.cases.empty() || !options.given.empty();
  if (options.num_drawn == RunOptions::kAsManifest)
    drawing.num_drawn = is_named && !options.explores ? 0 : by_default;
  if (by_default == 0) drawing.num_drawn = 0;
  const uint64_t last = std::max(options.last_seed, options.seed);
  question.num_drawn = drawing.num_drawn * static_cast<int>(last - options.seed + 1);
  question.is_few = question.num_drawn < by_default && !is_named;
  return drawing;
}

RunOptions without_drawing(RunOptions options) {
  options.num_drawn = 0;
  return options;
}

std::vector<Trial> red_elsewhere(const Context& context, const Setup& setup,
                                 const RunOptions& options, const std::vector<Trial>& trials,
                                 const Subject& subject) {
  std::map<uint64_t, Json> by_seed;
  for (const Observation& o : observations_of(trials)) {
    const bool is_asked = o.role == CaseRole::kDrawn && !o.is_summary() && o.subject == subject;
    if (!is_asked || !o.is_wrong()) continue;
    Json& axes = by_seed.try_emplace(o.seed, Json::array()).first->second;
    if (std::find(axes.begin(), axes.end(), o.drawn.at("axes")) == axes.end())
      axes.push_back(o.drawn.at("axes"));
  }
  std::vector<Trial> others;
  if (by_seed.empty() || subject.is_in_process() || !setup.pin) return others;
  RunOptions given = without_drawing(options);
  given.wants_regions = false;
  given.cases.clear();
  Setup other = setup;
  Subject where = SubjectKind::kUpstream;
  const auto fixed = setup.manifest.explore.fixed.find(setup.upstream.name);
  if (fixed != setup.manifest.explore.fixed.end()) {
    given.version = fixed->second;
    given.subject = SubjectKind::kUpstream;
    other = prepare(context, given);
    other.run_id = setup.run_id;
    other.started = setup.started;
    other.folder = setup.folder;
    where = SubjectKind::kFixed;
  }
  for (const auto& [seed, axes] : by_seed) {
    given.seed = seed;
    given.given = axes;
    exec::progress(fmt::format("{} red drawn cases on {}", axes.size(), where));
    others.push_back(run_trial(context, other, given, where, {}));
  }
  return others;
}

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
