#include "run/function_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/exit_status.h"
#include "core/explain.h"
#include "core/file_text.h"
#include "core/shell_word.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "report/table.h"
#include "run/names.h"
#include "run/programs.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr int kSearchRecordsFd = 3;

/// A folder that is removed with everything in it.
class SearchFolder {
 public:
  SearchFolder() {
    std::string name = (fs::temp_directory_path() / "patchbench-explore-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw Error(ErrorCode::kInternal, name + ": cannot be made; set TMPDIR");
    path_ = name;
  }
  ~SearchFolder() {
    std::error_code failed;
    fs::remove_all(path_, failed);
  }
  SearchFolder(const SearchFolder&) = delete;
  SearchFolder& operator=(const SearchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string interpreter_of(const FunctionOptions& options) {
  const fs::path named = options.python.empty() ? fs::path("python3") : options.python;
  const fs::path python = fs::is_directory(named) ? named / "bin/python3" : named;
  const std::string found = exec::find_program(python.string());
  if (found.empty())
    throw Error(ErrorCode::kUsage, fmt::format("--python {}: neither an interpreter nor a virtual "
                                               "environment",
                                               named.string()));
  return found;
}

void check_target(const std::string& text, const std::string& option) {
  const std::size_t colon = text.find(':');
  if (colon == 0 || colon == std::string::npos || colon + 1 == text.size())
    throw Error(ErrorCode::kUsage, fmt::format("{} {}: want module:function, as mypkg.norm:forward",
                                               option, shown(text)));
}

/// The kind of failure of a red case, for a person.
std::string kind_of(const Observation& o) {
  if (o.status == CaseStatus::kPresent) return "wrong result";
  const std::string type = o.self_reported.at("exception").value("type", "");
  return type == "ended" ? "its process ended" : "raised " + type;
}

bool is_smaller(const Observation& o) { return o.drawn.contains("smaller"); }

/// Takes one line of explore_function.
void take(const Observation& o, FunctionSearch& search) {
  constexpr std::size_t kEvery = 50;
  if (o.is_summary()) {
    search.num_asked = o.drawn.at("asked");
    search.num_same = o.drawn.at("same");
    return;
  }
  if (o.drawn.contains("shrunk")) {
    search.smallest.push_back(o);
    return;
  }
  search.judged.push_back(o);
  if (is_smaller(o)) {
    ++search.num_smaller;
  } else if (o.is_wrong()) {
    ++search.num_red;
  } else if (o.status == CaseStatus::kAbsent) {
    ++search.num_right;
  } else if (o.status == CaseStatus::kUnjudged) {
    if (search.num_unjudged++ == 0) search.why_unjudged = o.reason;
  } else if (o.status == CaseStatus::kUnsupported) {
    ++search.num_unsupported;
  } else if (search.num_unanswered++ == 0) {
    search.why_unanswered = o.reason;
  }
  const std::size_t num = search.judged.size();
  if (num % kEvery == 0)
    exec::progress(
        fmt::format("{} cases judged, {} red{}", num - search.num_smaller, search.num_red,
                    search.num_smaller > 0
                        ? fmt::format("; {} tried to make red ones smaller", search.num_smaller)
                        : ""));
}

/// What tells the red ones of some inputs from the others.
Json explained(const std::string& kind, const std::vector<JudgedInput>& inputs) {
  const Explanation one = explain(inputs);
  return {{"class", kind},
          {"site", ""},
          {"rules", one.rules},
          {"red", one.num_red},
          {"green", one.num_green},
          {"nearest", {{"red", one.red}, {"green", one.green}, {"differ", one.differ}}}};
}

/// The first tensor of a wrong case that failed.
std::string wrong_tensor(const Observation& o) {
  for (const Measure& m : o.measures)
    if (!m.pass) return m.tensor;
  return "";
}

/// Whether a right case is far from every limit. One that is near may have the fault, too small to
/// be red.
bool is_clear(const Observation& o) {
  constexpr double kShare = 0.25;
  return std::all_of(o.measures.begin(), o.measures.end(),
                     [](const Measure& m) { return m.got <= kShare * m.limit; });
}

using IsAsked = std::function<bool(const Observation&)>;

/// The red cases that are asked for and the right ones, with the rule that tells them apart. Where
/// there is none, or a shorter one without them, right cases near a limit are left out.
Json explained_of(const std::vector<Observation>& judged, const std::string& kind,
                  const IsAsked& is_asked) {
  const auto inputs_of = [&](bool takes_near) {
    std::map<std::string, JudgedInput> inputs;
    for (const Observation& o : judged) {
      const bool is_taken = o.is_wrong()
                                ? is_asked(o)
                                : o.status == CaseStatus::kAbsent && (takes_near || is_clear(o));
      if (!is_taken) continue;
      Json axes = o.drawn.at("axes");
      axes.update(o.drawn.at("properties"));
      inputs.try_emplace(o.case_name, JudgedInput{o.case_name, axes, o.is_wrong()});
    }
    std::vector<JudgedInput> all;
    for (const auto& [name, input] : inputs) all.push_back(input);
    return all;
  };
  const std::vector<JudgedInput> every = inputs_of(true), clear = inputs_of(false);
  Json whole = explained(kind, every);
  whole["near"] = 0;
  const auto num_rules = [](const Json& one) {
    return one.at("rules").empty() ? std::numeric_limits<std::size_t>::max()
                                   : one.at("rules").size();
  };
  if (clear.size() == every.size()) return whole;
  Json without = explained(kind, clear);
  without["near"] = every.size() - clear.size();
  return num_rules(without) < num_rules(whole) ? without : whole;
}

/// One explanation for each kind of failure; where a wrong result has no rule as a whole, one for
/// each tensor that is wrong.
Json explanations_of(const std::vector<Observation>& judged) {
  std::map<std::string, std::set<std::string>> kinds;
  for (const Observation& o : judged)
    if (o.is_wrong()) kinds[kind_of(o)].insert(wrong_tensor(o));
  Json all = Json::array();
  for (const auto& [kind, tensors] : kinds) {
    const std::string name = kind;
    all.push_back(
        explained_of(judged, name, [&](const Observation& o) { return kind_of(o) == name; }));
    if (!all.back().at("rules").empty() || tensors.size() < 2) continue;
    for (const std::string& tensor : tensors)
      all.push_back(explained_of(judged, name + " of " + tensor, [&](const Observation& o) {
        return kind_of(o) == name && wrong_tensor(o) == tensor;
      }));
  }
  return all;
}

/// A word for a shell.
std::string explore_arguments(const FunctionOptions& options) {
  std::string arguments =
      fmt::format("patchbench explore {} --against {} --axes {}", shell_word(options.function),
                  shell_word(options.reference), shell_word(options.axes.string()));
  if (!options.python.empty()) arguments += " --python " + shell_word(options.python.string());
  return arguments;
}

std::string command_of(const FunctionOptions& options, const FunctionSearch& search,
                       const Observation& o) {
  return explore_arguments(options) + fmt::format(" --device {} --seed {} --case {}", search.device,
                                                  o.seed, shell_word(o.drawn.at("axes").dump()));
}

/// What was measured of a case.
std::string status_text(const Observation& o) {
  const Measure* failing = o.failing();
  if (failing == nullptr) return o.reason;
  return fmt::format("{} {} {:.2e} > {:.2e} {}", failing->tensor, failing->layer, failing->got,
                     failing->limit, failing->where);
}

std::string counts_text(const FunctionSearch& search) {
  std::string line =
      fmt::format("{} cases: {} red, {} right", search.num_asked, search.num_red, search.num_right);
  const auto add = [&](int num, const std::string& what) {
    if (num > 0) line += fmt::format(", {} {}", num, what);
  };
  add(search.num_unsupported, "not supported by the function");
  add(search.num_unjudged, "not judged (" + search.why_unjudged + ")");
  add(search.num_unanswered, "without an answer (" + search.why_unanswered + ")");
  add(search.num_same, "drawn twice");
  const int num_reached = static_cast<int>(search.judged.size()) - search.num_smaller;
  add(search.num_asked - num_reached - search.num_same,
      "not reached: the time ran out (--seconds)");
  if (search.num_smaller > 0)
    line += fmt::format("; {} more tried to make red ones smaller", search.num_smaller);
  return line + fmt::format("; {:.0f} s", search.wall_s);
}

std::string explanation_line(const Json& one) {
  const auto rules = one.at("rules").get<std::vector<std::string>>();
  const int num_green = one.at("green");
  std::string line = fmt::format(
      "{} ({} red, {} right cases)",
      rules.empty() ? (num_green == 0 ? "every case is red" : "no short rule tells the cases apart")
                    : fmt::format("{}", fmt::join(rules, "; else ")),
      one.at("red").get<int>(), num_green);
  if (const int num_near = one.at("near"); num_near > 0)
    line += fmt::format("; {} right cases near a limit are left out", num_near);
  if (num_green == 0) return line;
  return line +
         fmt::format(
             "; nearest two, the red one's value first: {}",
             fmt::join(one.at("nearest").at("differ").get<std::vector<std::string>>(), ", "));
}

}  // namespace

bool FunctionSearch::is_whole() const {
  const int num_reached = static_cast<int>(judged.size()) - num_smaller + num_same;
  return num_reached >= num_asked && num_unanswered == 0 && num_red + num_right > 0;
}

int FunctionSearch::status() const {
  return num_red > 0 ? kExitNo : is_whole() ? kExitYes : kExitNoAnswer;
}

FunctionSearch search_function(const Context& context, const FunctionOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  check_target(options.function, "explore");
  check_target(options.reference, "--against");
  FunctionSearch search;
  search.plan = parse_json(read_file(options.axes), options.axes.string());
  const Program program = search_program(context);
  if (program.file.empty())
    throw Error(ErrorCode::kNotRunnable,
                "explore_function is not there: preset host has no torch, build preset cpu; beside "
                "an installed patchbench, install patchbench-judge");
  search.device = chosen_device(options.device).text();
  const std::string python = interpreter_of(options);
  const SearchFolder folder;
  const fs::path request = folder.path() / "request.json";
  const char* library_path = std::getenv("LD_LIBRARY_PATH");
  write_whole(request, Json{{"axes", search.plan},
                            {"function", options.function},
                            {"reference", options.reference},
                            {"python", python},
                            {"call", (context.root / "repro/function/call.py").string()},
                            {"work", (folder.path() / "work").string()},
                            {"device", search.device},
                            {"seed", options.seed},
                            {"draw", options.given.empty() ? options.num_drawn : 0},
                            {"seconds", options.seconds},
                            {"given", options.given},
                            {"library_path", library_path == nullptr ? "" : library_path}}
                           .dump());
  exec::progress("starts " + python + " twice: for the function and for its reference");
  exec::Command command;
  command.argv = program.argv;
  command.argv.insert(command.argv.end(), {request.string(), std::to_string(kSearchRecordsFd)});
  if (program.is_of_wheel)
    command.env["LD_LIBRARY_PATH"] = libtorch_for(context, {.python = python}).string();
  command.records_fd_in_child = kSearchRecordsFd;
  command.on_record = [&](const std::string& line) {
    take(Observation::from_json(parse_json(line, "explore_function")), search);
  };
  const exec::Exit exit = exec::run(command);
  if (!exit.ok()) {
    std::string why = exit.error.empty() ? exit.err : exit.error;
    while (why.ends_with('\n')) why.pop_back();
    why = why.substr(why.rfind('\n') + 1);
    for (const auto& [lead, instead] :
         {std::pair{std::string("explore_function: "), std::string()},
          std::pair{std::string("axes.json: "), options.axes.string() + ": "}})
      if (why.starts_with(lead)) why = instead + why.substr(lead.size());
    throw Error(exit.exit_code == 2   ? ErrorCode::kUsage
                : exit.exit_code == 4 ? ErrorCode::kNotRunnable
                                      : ErrorCode::kInternal,
                why.empty() ? "explore_function ended without a word" : why);
  }
  search.space = parse_json(read_file(folder.path() / "work/space.json"), "space.json");
  if (!options.given.empty()) search.num_asked = static_cast<int>(options.given.size());
  search.explained = explanations_of(search.judged);
  search.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return search;
}

FoundInputs found_by(const FunctionOptions& options, const FunctionSearch& search) {
  if (search.smallest.empty())
    throw Error(ErrorCode::kUsage, "--save-pack: nothing red was found; no pack was written");
  FoundInputs found;
  found.plan = search.plan;
  found.cases = Json::array();
  std::set<Json> known;
  std::map<std::string, int> nums;
  const auto add = [&](const char* role, const Json& axes) {
    if (!known.insert(axes).second) return;
    found.cases.push_back({{"name", fmt::format("{}_{}", role, ++nums[role])},
                           {"role", role},
                           {"axes", axes},
                           {"judged_on", {"cpu", "cuda"}}});
  };
  for (const Observation& o : search.smallest) add("trigger", o.drawn.at("axes"));
  for (const Json& one : search.explained) {
    for (const Observation& o : search.judged)
      if (one.at("nearest").at("green") == o.case_name) add("control", o.drawn.at("axes"));
  }
  found.space = search.space;
  found.space["count"] = options.num_drawn;
  found.space["judged_on"] = {"cpu", "cuda"};
  found.seconds = std::max(1.0, std::ceil(search.wall_s));
  return found;
}

std::string title_of(const FunctionOptions& options, const FunctionSearch& search) {
  std::string title = options.function + " differs from its reference";
  if (!search.explained.empty() && !search.explained[0].at("rules").empty())
    title = options.function + " is " + search.explained[0].at("rules")[0].get<std::string>();
  return one_line(title, 96);
}

std::string search_text(const FunctionOptions& options, const FunctionSearch& search) {
  std::string text = fmt::format("{} against {} · {} · seed {}\n", options.function,
                                 options.reference, search.device, options.seed);
  text += report::paragraph("", counts_text(search));
  if (!options.given.empty()) {
    for (const Observation& o : search.judged)
      text +=
          fmt::format("{}{}\n", o.is_wrong() ? "red: " + kind_of(o) + ": " : "", status_text(o));
    return text;
  }
  for (const Json& one : search.explained)
    text += report::paragraph(one.at("class").get<std::string>() + ": ", explanation_line(one));
  for (const Observation& o : search.smallest)
    text += report::paragraph("smallest: ", kind_of(o) + ": " + status_text(o)) + "  " +
            command_of(options, search, o) + "\n";
  if (search.num_red > 0)
    return text + report::closing("The function differs from its reference.",
                                  command_of(options, search, search.smallest.front()));
  return text +
         report::closing(search.is_whole() ? "Nothing red was found."
                                           : "Nothing red was found in the cases that were judged.",
                         explore_arguments(options) + fmt::format(" --device {} --seed {}",
                                                                  search.device, options.seed + 1));
}

Json search_json(const FunctionOptions& options, const FunctionSearch& search) {
  Json smallest = Json::array(), cases = Json::array();
  for (const Observation& o : search.smallest)
    smallest.push_back({{"kind", kind_of(o)},
                        {"axes", o.drawn.at("axes")},
                        {"seed", o.seed},
                        {"seen", status_text(o)},
                        {"command", command_of(options, search, o)}});
  for (const Observation& o : search.judged)
    if (!options.given.empty())
      cases.push_back(
          {{"axes", o.drawn.at("axes")},
           {"is_red", o.is_wrong()},
           {"seen", o.is_wrong() ? status_text(o) : case_status_name(o.status) + " " + o.reason}});
  return {{"function", options.function},
          {"reference", options.reference},
          {"device", search.device},
          {"seed", options.seed},
          {"asked", search.num_asked},
          {"red", search.num_red},
          {"right", search.num_right},
          {"not_judged", search.num_unjudged},
          {"not_supported", search.num_unsupported},
          {"no_answer", search.num_unanswered},
          {"drawn_twice", search.num_same},
          {"tried_smaller", search.num_smaller},
          {"is_whole", search.is_whole()},
          {"explained", search.explained},
          {"smallest", smallest},
          {"cases", cases},
          {"wall_s", search.wall_s}};
}

}  // namespace patchbench
