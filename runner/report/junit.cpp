#include "report/junit.h"

#include <fmt/format.h>

#include <algorithm>

namespace patchbench::report {
namespace {

/// Number of bytes of the character at the start of `text` if XML 1.0 can hold it, else 0.
std::size_t xml_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 || lead == '\t' || lead == '\n' ? 1 : 0;
  const std::size_t length = lead < 0xc2   ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool is_surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool is_overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool is_beyond = lead == 0xf4 && byte(1) >= 0x90;
  const bool is_noncharacter = lead == 0xef && byte(1) == 0xbf && byte(2) >= 0xbe;
  return is_surrogate || is_overlong || is_beyond || is_noncharacter ? 0 : length;
}

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = xml_character(text);
    const char c = text.front();
    if (length == 1 && c == '&') {
      out += "&amp;";
    } else if (length == 1 && c == '<') {
      out += "&lt;";
    } else if (length == 1 && c == '>') {
      out += "&gt;";
    } else if (length == 1 && c == '"') {
      out += "&quot;";
    } else if (length == 1 && (c == '\n' || c == '\t')) {
      out += ' ';  // an attribute's line feed is read as a space in any case
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::string outcome_element(const JunitCase& c) {
  const std::string verdict = escaped(c.verdict), reason = escaped(c.reason);
  switch (c.status) {
    case JunitStatus::kPassed:
      return "";
    case JunitStatus::kFailed:
      return fmt::format("      <failure type=\"{}\" message=\"{}\"/>\n", verdict, reason);
    case JunitStatus::kError:
      return fmt::format("      <error type=\"{}\" message=\"{}\"/>\n", verdict, reason);
    case JunitStatus::kSkipped:
      return fmt::format("      <skipped message=\"{}{}{}\"/>\n", verdict,
                         reason.empty() ? "" : ": ", reason);
  }
  return "";
}

std::string case_element(const JunitCase& c) {
  std::string out = fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\">\n",
                                escaped(c.group), escaped(c.name), c.seconds);
  if (!c.properties.empty()) {
    out += "      <properties>\n";
    for (const auto& [name, value] : c.properties) {
      out += fmt::format("        <property name=\"{}\" value=\"{}\"/>\n", escaped(name),
                         escaped(value));
    }
    out += "      </properties>\n";
  }
  return out + outcome_element(c) + "    </testcase>\n";
}

JunitStatus status_of(const Outcome& outcome, const QuestionContext& question) {
  if (!outcome.sentinel) return JunitStatus::kError;
  switch (*outcome.sentinel) {
    case Sentinel::kNotRun:
      return JunitStatus::kSkipped;
    case Sentinel::kFixRejected:
    case Sentinel::kClaimRefuted:
      return JunitStatus::kFailed;
    case Sentinel::kBugReproduced:
      return question.is_red_pin ? JunitStatus::kPassed : JunitStatus::kFailed;
    case Sentinel::kBugAbsent:
      return question.is_red_pin ? JunitStatus::kFailed : JunitStatus::kPassed;
    default:
      return JunitStatus::kPassed;
  }
}

std::string measure_text(const Observation& o) {
  for (const Measure& m : o.measures) {
    if (!m.pass)
      return fmt::format("{} {}: error {:.3g}, limit {:.3g}", m.tensor, m.layer, m.got, m.limit);
  }
  return "";
}

}  // namespace

std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases) {
  const auto count = [&](JunitStatus status) {
    return std::count_if(cases.begin(), cases.end(),
                         [&](const JunitCase& c) { return c.status == status; });
  };
  double seconds = 0;
  for (const JunitCase& c : cases) seconds += c.seconds;
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n"
      "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" "
      "time=\"{:.3f}\">\n",
      escaped(suite), cases.size(), count(JunitStatus::kFailed), count(JunitStatus::kError),
      count(JunitStatus::kSkipped), seconds);
  for (const JunitCase& c : cases) out += case_element(c);
  return out + "  </testsuite>\n</testsuites>\n";
}

JunitStatus junit_status(const Observation& observation, const QuestionContext& question) {
  const Verdict verdict = verdict_of(observation.status, expectation_of(observation, question));
  switch (verdict) {
    case Verdict::kReproduced:
    case Verdict::kValidated:
      return JunitStatus::kPassed;
    case Verdict::kUnexpectedlyAbsent:
    case Verdict::kNotFixed:
      return JunitStatus::kFailed;
    case Verdict::kObservedPresent:
      return observation.subject.is_mutant() ? JunitStatus::kPassed : JunitStatus::kFailed;
    case Verdict::kObservedAbsent:
      return observation.subject.is_mutant() ? JunitStatus::kSkipped : JunitStatus::kPassed;
    case Verdict::kUnjudged:
    case Verdict::kUnsupported:
      return JunitStatus::kSkipped;
    case Verdict::kUnresolved:
      return JunitStatus::kError;
  }
  return JunitStatus::kError;
}

JunitCase junit_of_verdict(const std::string& group, const std::string& name,
                           const QuestionContext& question, const Outcome& outcome,
                           const std::string& digest) {
  return {.group = group,
          .name = name,
          .status = status_of(outcome, question),
          .verdict = outcome.text(),
          .reason = outcome.why,
          .properties = {{"sentinel", outcome.text()}, {"ledger", digest}}};
}

std::string junit_of_run(const std::string& slug, const std::vector<Observation>& observations,
                         const QuestionContext& question, const Outcome& outcome,
                         const std::string& digest) {
  std::vector<JunitCase> cases;
  for (const Observation& o : observations) {
    std::string name = o.case_name;
    if (o.repeat > 0) name += fmt::format(" repeat {}", o.repeat);
    JunitCase c{.group = slug + "." + o.subject.text(),
                .name = std::move(name),
                .status = junit_status(o, question),
                .verdict = verdict_name(verdict_of(o.status, expectation_of(o, question))),
                .reason = o.reason.empty() ? measure_text(o) : o.reason};
    if (c.status == JunitStatus::kSkipped && o.subject.is_mutant() &&
        o.status == CaseStatus::kAbsent)
      c.reason = "this case does not tell the mutant apart";
    if (o.outside.is_object() && o.outside.contains("wall_s") && o.outside["wall_s"].is_number()) {
      c.seconds = o.outside["wall_s"].get<double>();
    }
    c.properties = {{"device", o.device},
                    {"seed", std::to_string(o.seed)},
                    {"seen", case_status_name(o.status)}};
    if (!o.failure_class.empty()) c.properties.emplace_back("class", o.failure_class);
    cases.push_back(std::move(c));
  }
  cases.push_back(junit_of_verdict(slug, "sentinel", question, outcome, digest));
  return junit_xml(slug, cases);
}

}  // namespace patchbench::report
