#include "run/trial_render.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "run/drawn.h"
#include "status/table_style.h"

namespace patchbench {
namespace {

/// The measure that decided: the first that failed, else the one nearest to its limit.
const Measure* deciding(const Observation& o) {
  const Measure* worst = nullptr;
  const auto closeness = [](const Measure& m) { return m.limit > 0 ? m.got / m.limit : m.got; };
  for (const Measure& m : o.measures) {
    if (!m.pass) return &m;
    if (worst == nullptr || closeness(m) > closeness(*worst)) worst = &m;
  }
  return worst;
}

std::string headline(const Setup& setup, const std::vector<Trial>& trials) {
  const RunContext& run = trials.front().context;
  const std::string version = run.pin.version();
  std::string line = setup.target.manifest.slug.str();
  if (!version.empty()) line += fmt::format(" · {} {}", setup.target.upstream.name, version);
  line += " · " + setup.target.device.text();
  if (run.machine.contains("oracle")) line += " (oracle: " + run.machine.value("oracle", "") + ")";
  line += " · " + run.sandbox.kind() + (run.is_isolated() ? "" : " (unisolated)");
  return line;
}

report::Color color_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kReproduced:
    case Verdict::kNotFixed:
    case Verdict::kObservedPresent:
      return report::Color::kRed;
    case Verdict::kValidated:
    case Verdict::kObservedAbsent:
      return report::Color::kGreen;
    default:
      return report::Color::kYellow;
  }
}

void add_rows(report::Table& table, const Trial& trial, const QuestionContext& question,
              bool names_subject) {
  for (const Observation& o : trial.observations) {
    if (o.subject.is_region_mutant() || o.role == CaseRole::kDrawn) continue;
    const Measure* m = deciding(o);
    const std::string name = names_subject ? o.subject.text() + " " + o.case_name : o.case_name;
    std::string status = case_status_name(o.status);
    if (!o.failure_class.empty() && o.failure_class != question.classes.front())
      status += " " + o.failure_class;
    if (m == nullptr || o.status == CaseStatus::kUnsupported ||
        o.status == CaseStatus::kUnresolved) {
      table.add(
          {name, expectation_name(expectation_of(o, question)), status, o.reason, "", "", ""});
    } else {
      table.add({name, expectation_name(expectation_of(o, question)), status, m->tensor,
                 fmt::format("{:.1e}", m->got), fmt::format("{:.0e}", m->plain),
                 fmt::format("{:.0e}", m->limit)});
    }
    table.color(2, color_of(verdict_of(o.status, expectation_of(o, question))));
  }
}

/// What a subject took: its own clock per case (self-reported) and the outside meter's peak.
struct Cost {
  double case_seconds = 0, wall_s = 0;
  int64_t peak_bytes = 0;
};
Cost cost_of(const Trial& trial) {
  Cost cost;
  cost.wall_s = trial.wall_s;
  for (const Observation& o : trial.observations) {
    if (o.self_reported.is_object()) cost.case_seconds += o.self_reported.value("wall_s", 0.0);
    if (o.outside.is_object())
      cost.peak_bytes = std::max(cost.peak_bytes, o.outside.value("peak_bytes", int64_t{0}));
  }
  return cost;
}

/// One line per mutant: its trials hold many rows of which one red case matters. `holds`: the
/// verdict says that every mutant was caught; `is_partial`: by cases that were named.
std::string mutant_line(const Trial& trial, bool holds, bool is_partial) {
  const Observation* caught = nullptr;
  for (const Observation& o : trial.observations) {
    const bool is_asked = o.role == CaseRole::kTrigger || holds;
    if (o.status == CaseStatus::kPresent && is_asked && caught == nullptr) caught = &o;
  }
  const std::string subject =
      trial.observations.empty() ? "mutant" : trial.observations.front().subject.text();
  if (caught == nullptr && is_partial)
    return fmt::format("{}: not red on the named cases\n", subject);
  if (caught == nullptr && holds)
    return fmt::format("{}: not equal to upstream bit for bit\n", subject);
  if (caught == nullptr) return fmt::format("{}: NOT caught\n", subject);
  const Measure* m = deciding(*caught);
  return fmt::format("{}: red on {}{}\n", subject, caught->case_name,
                     m == nullptr ? ""
                                  : fmt::format(" ({} {} {:.1e} > {:.1e})", m->tensor, m->layer,
                                                m->got, m->limit));
}

/// "regions of the inputs: 7 of 9 mutants red; not tried, since no case is in the region: ties; not
/// caught: tiny_gradient (passed none_random)".
std::string region_line(const std::vector<Trial>& trials) {
  int num = 0, red = 0;
  std::string untried, passed;
  for (const Trial& trial : trials) {
    for (const Observation& o : trial.observations) {
      if (!o.subject.is_region_mutant()) continue;
      ++num;
      red += o.status == CaseStatus::kPresent;
      if (o.status == CaseStatus::kPresent) continue;
      const bool is_untried = o.status == CaseStatus::kUnsupported;
      std::string& list = is_untried ? untried : passed;
      list += (list.empty() ? "" : ", ") + o.subject.mutant_name() +
              (is_untried ? "" : " (passed " + o.case_name + ")");
    }
  }
  if (num == 0) return "";
  return fmt::format(
      "regions of the inputs: {} of {} mutants red{}{}\n", red, num,
      untried.empty() ? "" : "; not tried, since no case is in the region: " + untried,
      passed.empty() ? "" : "; not caught: " + passed);
}

bool is_mutants(const Trial& trial) {
  return !trial.observations.empty() && trial.observations.front().subject.is_mutant();
}

}  // namespace

std::string render_trials(const Setup& setup, const std::vector<Trial>& trials,
                          const QuestionContext& question, const Outcome& outcome,
                          const report::Style& style) {
  std::string text = headline(setup, trials) + "\n";
  const auto shown =
      std::count_if(trials.begin(), trials.end(), [](const Trial& t) { return !is_mutants(t); });
  report::Table table({"case", "expected", "seen", "worst", "error", "plain", "limit"});
  std::string mutants, cost_history;
  for (const Trial& trial : trials) {
    const bool is_altered =
        !trial.observations.empty() && trial.observations.front().subject == SubjectKind::kAltered;
    if (is_altered) continue;
    if (question.question == Question::kOp && is_mutants(trial)) {
      std::map<Subject, bool> red;
      for (const Observation& o : trial.observations)
        red[o.subject] |= o.status == CaseStatus::kPresent;
      mutants += fmt::format(
          "{} mutants of the outputs, {} red\n", red.size(),
          std::count_if(red.begin(), red.end(), [](const auto& r) { return r.second; }));
    } else if (is_mutants(trial) && trials.size() > 1) {
      mutants += mutant_line(trial, outcome.sentinel.has_value(), question.is_partial);
    } else {
      add_rows(table, trial, question, shown > 1);
      const Cost cost = cost_of(trial);
      if (shown > 1) {
        cost_history +=
            fmt::format("{}: {:.2f} s in its cases (self-reported), peak {:.0f} MiB\n",
                        trial.observations.empty() ? "" : trial.observations.front().subject,
                        cost.case_seconds, static_cast<double>(cost.peak_bytes) / 1048576.0);
      }
    }
  }
  text += table.render(style) + mutants + region_line(trials) + drawn_text(setup, trials) +
          cost_history;
  for (const std::string& line : unseen_changes(observations_of(trials), question))
    text += fmt::format("no case sees this part of the fix: {}\n", line);
  text += report::colored(outcome.text(), color_of(outcome), style);
  if (!outcome.alias.empty()) text += " = " + outcome.alias;
  return text + (outcome.why.empty() ? "" : ": " + outcome.why) + "\n";
}

Json trials_json(const Setup& setup, const std::vector<Trial>& trials,
                 const QuestionContext& question, const Outcome& outcome,
                 const std::string& digest) {
  Json subjects = Json::array();
  for (const Trial& trial : trials) {
    Json rows = Json::array();
    for (const Observation& o : trial.observations) {
      Json row = o.to_json();
      row["expected"] = expectation_name(expectation_of(o, question));
      row["verdict"] = verdict_name(verdict_of(o.status, expectation_of(o, question)));
      rows.push_back(std::move(row));
    }
    subjects.push_back(
        {{"context", trial.context.to_json()}, {"wall_s", trial.wall_s}, {"observations", rows}});
  }
  return {{"slug", setup.target.manifest.slug.str()},
          {"sentinel", outcome.text()},
          {"alias", outcome.alias},
          {"why", outcome.why},
          {"question", question.to_json()},
          {"verdict_record", digest},
          {"subjects", subjects}};
}

}  // namespace patchbench
