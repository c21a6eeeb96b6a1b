#include "report/markdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/pin_arguments.h"

namespace patchbench::report {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// The measure that decides a case: the first that fails, else the one nearest to its limit.
const Measure* deciding_measure(const Observation& o) {
  const Measure* nearest = nullptr;
  const auto share = [](const Measure& m) { return m.limit > 0 ? m.got / m.limit : m.got; };
  for (const Measure& m : o.measures) {
    if (!m.pass) return &m;
    if (nearest == nullptr || share(m) > share(*nearest)) nearest = &m;
  }
  return nearest;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void add_facts(Rows& rows, const std::string& prefix, const Json& object) {
  if (!object.is_object()) return;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_structured())
      rows.push_back({prefix + code_span(key), code_span(text_of(value))});
  }
}

std::string outcome_line(bool is_isolated, const Outcome& outcome) {
  std::string line =
      "**" + (outcome.sentinel ? code_span(outcome.text()) : std::string("no sentinel")) + "**";
  if (!outcome.alias.empty()) line += " (" + code_span(outcome.alias) + ")";
  if (!is_isolated) line += " · **unisolated**: the subject did not run in a sandbox";
  if (!outcome.why.empty()) line += ": " + code_span(outcome.why);
  return line + "\n";
}

std::string case_table(const std::vector<Observation>& observations,
                       const QuestionContext& question) {
  Rows rows;
  for (const Observation& o : observations) {
    const Measure* m = deciding_measure(o);
    const Expectation expectation = expectation_of(o, question);
    const auto number = [&](double Measure::*member) {
      return m == nullptr ? std::string() : fmt::format("{:.2e}", m->*member);
    };
    std::string note =
        m == nullptr
            ? ""
            : code_span(m->tensor + " " + m->layer + (m->where.empty() ? "" : " " + m->where));
    if (!o.reason.empty()) note += (note.empty() ? "" : " ") + code_span(o.reason);
    if (!o.counts) note += " (shown only: not judged on this device)";
    std::string status = case_status_name(o.status);
    if (!o.failure_class.empty()) status += " " + code_span(o.failure_class);
    rows.push_back({code_span(o.subject.text()), code_span(o.case_name), role_name(o.role),
                    expectation_name(expectation), status,
                    verdict_name(verdict_of(o.status, expectation)), number(&Measure::got),
                    number(&Measure::plain), number(&Measure::limit), note});
  }
  return markdown_table({"subject", "case", "role", "expected", "seen", "verdict", "error", "plain",
                         "limit", "decided by"},
                        rows);
}

/// What one subject ran on: the checkout, the edits in it, the files under test.
void add_subject(Rows& rows, const SubjectRun& run) {
  const std::string name = code_span(run.subject) + " ";
  if (!run.context.tree.empty())
    rows.push_back({name + "checkout", code_span("git tree " + run.context.tree)});
  for (const std::string& edit : run.context.edits)
    rows.push_back({name + "edit", code_span("sha256:" + edit)});
  if (!run.context.files.is_object()) return;
  for (const auto& [path, digest] : run.context.files.items())
    rows.push_back({name + "file " + code_span(path), code_span("sha256:" + text_of(digest))});
}

std::string environment_table(const std::vector<SubjectRun>& runs,
                              const std::vector<Observation>& observations) {
  const RunContext& context = runs.front().context;
  Rows rows = {{"run", code_span(context.run_id + " " + context.started)},
               {"tool", code_span(context.tool)},
               {"manifest", code_span("sha256:" + context.manifest_sha256)}};
  add_facts(rows, "upstream ", context.pin.json());
  for (const SubjectRun& run : runs) add_subject(rows, run);
  if (!context.environment.empty()) rows.push_back({"environment", code_span(context.environment)});
  add_facts(rows, "sandbox ", context.sandbox.json());
  add_facts(rows, "machine ", context.machine);
  for (const Observation& o : observations) {
    if (o.self_reported.empty()) continue;
    add_facts(rows, "self-reported ", o.self_reported.value("versions", o.self_reported));
    break;
  }
  return markdown_table({"what", "value"}, rows);
}

std::string rerun_command(const RunContext& context, const std::vector<Observation>& observations,
                          const QuestionContext& question) {
  const bool is_validate = question.subject == SubjectKind::kPatched;
  std::string command =
      fmt::format("./patchbench {} {}", is_validate ? "validate" : "reproduce", context.slug);
  if (!is_validate && question.subject != SubjectKind::kUpstream)
    command += " --subject " + question.subject.text();
  if (context.pin.is_installed()) {
    command += " --python VENV";
  } else if (const std::string version = context.pin.version(); !version.empty()) {
    command += " " + pin_word(context.pin.upstream(), version);
  }
  std::set<std::string> devices;
  std::set<uint64_t> seeds;
  for (const Observation& o : observations) {
    devices.insert(o.device);
    seeds.insert(o.seed);
  }
  if (devices.size() == 1) command += " --device " + *devices.begin();
  if (seeds.size() == 1) command += fmt::format(" --seed {}", *seeds.begin());
  return command;
}

}  // namespace

std::string code_span(std::string_view text) {
  std::string inner = one_line(text, 400);
  // A pipe ends a table cell even inside a code span, and a backtick would end the span.
  std::replace(inner.begin(), inner.end(), '`', '\'');
  std::string out;
  for (const char c : inner) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out.empty() ? "" : "`" + out + "`";
}

std::string markdown_table(const std::vector<std::string>& titles,
                           const std::vector<std::vector<std::string>>& rows) {
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (std::size_t i = 0; i < titles.size(); ++i)
      out += " " + (i < cells.size() ? cells[i] : std::string()) + " |";
    return out + "\n";
  };
  std::string out = line(titles) + "|";
  for (std::size_t i = 0; i < titles.size(); ++i) out += "---|";
  out += "\n";
  for (const std::vector<std::string>& row : rows) out += line(row);
  return out;
}

std::string markdown_of_run(const std::vector<SubjectRun>& runs,
                            const std::vector<Observation>& observations,
                            const QuestionContext& question, const Outcome& outcome,
                            const std::string& digest) {
  const RunContext& context = runs.front().context;
  std::string page = fmt::format("# {}: {}\n\n", context.slug, question_name(question.question));
  page += outcome_line(std::all_of(runs.begin(), runs.end(),
                                   [](const SubjectRun& r) { return r.context.is_isolated(); }),
                       outcome);
  page += "\n## Cases\n\n" + case_table(observations, question);
  page +=
      "\nError: worst deviation of the subject from an fp64 reference, relative. Plain: that of "
      "the same-dtype torch computation. "
      "A case is right where every error is at most its limit.\n";
  page += "\n## What was run\n\n" + environment_table(runs, observations);
  page +=
      "\n## Run it again\n\n```sh\n" + rerun_command(context, observations, question) + "\n```\n";
  page += "\nVerdict record " + code_span(digest) + "; " +
          code_span("patchbench ledger show " + digest.substr(0, 16)) + " prints it, " +
          code_span("patchbench ledger verify") + " recomputes it from its observations.\n";
  return page;
}

}  // namespace patchbench::report
