#include "core/finding.h"

#include <fmt/format.h>

#include "core/error.h"

namespace patchbench {
namespace {

std::string text_of(const QuestionContext& question) {
  if (question.question == Question::kReproduce && question.subject != SubjectKind::kUpstream)
    return question.subject.text();
  if (is_of_named_cases(question)) return "named_cases";
  if (question.question == Question::kClaim)
    return "claim " + (question.claim.empty() ? question.subject.text() : question.claim);
  const std::string mode =
      question.question == Question::kMitigation ? question.subject.mode() : "";
  return question_name(question.question) + (mode.empty() ? "" : " " + mode);
}

}  // namespace

bool is_of_named_cases(const QuestionContext& question) {
  return question.question == Question::kReproduce && question.is_partial;
}

QuestionKey::QuestionKey(std::string text) : text_(std::move(text)) {
  const std::size_t space = text_.find(' ');
  if (space != std::string::npos) name_ = text_.substr(space + 1);
  question_ = find_question(question_text());
}

QuestionKey::QuestionKey(const QuestionContext& context) : QuestionKey(text_of(context)) {}

Finding finding_of(const Record& verdict, const std::string& digest) {
  if (verdict.type() != "verdict")
    throw Error(ErrorCode::kUsage, "a record of type " + verdict.type() + " states no finding");
  const Json& p = verdict.predicate();
  const RunContext run = RunContext::from_json(p.at("context"));
  const Json companions = run.pin.companions();
  return {
      .slug = run.slug,
      .upstream = run.pin.upstream(),
      .version = run.pin.version().empty() ? "-" : run.pin.version(),
      .companions = companions.is_object() && !companions.empty() ? canonical_json(companions) : "",
      .question = QuestionKey(QuestionContext::from_json(p.at("question"))),
      .device = run.machine.value("device", "cpu"),
      .sentinel = p.at("sentinel").get<std::string>(),
      .started = run.started,
      .manifest_sha256 = run.manifest_sha256,
      .digest = digest,
      .is_isolated = run.is_isolated(),
      .made = {run.started, 0, digest}};
}

std::string described(const Outcome& outcome, const QuestionContext& question, RunAge age) {
  if (outcome.sentinel && is_of_all_cases(*outcome.sentinel)) {
    if (!question.has_regions) return outcome.text() + " (older run)";
    return outcome.text() +
           (question.num_drawn > 0 ? fmt::format(" ({} random cases", question.num_drawn)
                                   : " (no random cases") +
           (age == RunAge::kOlder ? ", older run)" : ")");
  }
  if (outcome.sentinel != Sentinel::kNoRegression) return outcome.text();
  std::string text;
  for (const auto& [name, ratios] : question.ratios_max) {
    std::map<double, std::string> by_ratio;
    for (const auto& [number, ratio] : ratios)
      by_ratio[ratio] += (by_ratio[ratio].empty() ? "" : ", ") + number;
    for (const auto& [ratio, numbers] : by_ratio)
      text += fmt::format("{} {} (case {}, each at most {:g} times upstream's)",
                          text.empty() ? " of" : " and", numbers, name, ratio);
  }
  return outcome.text() + text;
}

std::string described(const Record& verdict) {
  return described(outcome_of(verdict),
                   QuestionContext::from_json(verdict.predicate().at("question")));
}

std::string short_device(std::string device) {
  if (device.starts_with("NVIDIA ")) device.erase(0, 7);
  return device.substr(0, device.find(" (sm_"));
}

}  // namespace patchbench
