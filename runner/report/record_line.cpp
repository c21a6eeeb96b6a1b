#include "report/record_line.h"

#include "core/finding.h"

namespace patchbench::report {

RecordLine record_line(const Record& record) {
  constexpr std::size_t kShortDigest = 16;
  const std::string type = record.type();
  const Json& p = record.predicate();
  if (type == "observation") {
    const Observation o = observation_of(record);
    return {o.subject.text() + " " + o.case_name,
            case_status_name(o.status) + (o.failure_class.empty() ? "" : " " + o.failure_class)};
  }
  if (type == "evict")
    return {p.at("digest").get<std::string>().substr(0, kShortDigest),
            p.at("why").get<std::string>()};
  const RunContext run = RunContext::from_json(p.at("context"));
  std::string version = run.pin.version();
  if (version.starts_with("git:")) version.resize(14);
  if (type != "verdict") return {type + (version.empty() ? "" : " " + version), ""};
  const QuestionContext question = QuestionContext::from_json(p.at("question"));
  // The subject, where the question alone does not say which one ran.
  const bool is_open = question.question == Question::kReproduce ||
                       question.question == Question::kClaim || !question.subject.mode().empty();
  return {question_name(question.question) + (version.empty() ? "" : " " + version) +
              (is_open ? " " + question.subject.text() : ""),
          described(record) + (run.is_isolated() ? "" : " unisolated")};
}

}  // namespace patchbench::report
