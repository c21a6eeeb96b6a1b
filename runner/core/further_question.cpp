#include "core/further_question.h"

namespace patchbench {

std::optional<QuestionContext> memory_question(const Manifest& manifest, const QuestionContext& op,
                                               const std::vector<Observation>& observations) {
  if (op.question != Question::kOp) return std::nullopt;
  const auto peak_of = [](const Observation& o) {
    const bool is_counted = o.counts && o.subject == SubjectKind::kOp && o.outside.is_object();
    return is_counted ? o.outside.value("peak_bytes", 0.0) : 0.0;
  };
  for (const Observation& o : observations) {
    const auto bound = manifest.bounds.find(o.case_name);
    const double peak = peak_of(o);
    if (peak <= 0 || bound == manifest.bounds.end() || !bound->contains("peak_bytes_max")) continue;
    QuestionContext question = op;
    question.question = Question::kMemory;
    question.bound_bytes = bound->at("peak_bytes_max").get<double>();
    question.measured_bytes = peak;
    const Json growth = bound->value("growth_max", Json());
    if (growth.is_null()) return question;
    question.bound_growth = growth["times"].get<double>();
    for (const Observation& half : observations) {
      if (half.case_name == growth["over"].get<std::string>() && peak_of(half) > 0)
        question.measured_growth = peak / peak_of(half);
    }
    return question;
  }
  return std::nullopt;
}

std::optional<QuestionContext> regression_question(const Manifest& manifest,
                                                   const QuestionContext& validation,
                                                   const std::vector<Observation>& observations) {
  if (validation.subject != SubjectKind::kPatched) return std::nullopt;
  QuestionContext question = validation;
  question.question = Question::kRegression;
  for (const Observation& o : observations) {
    const auto bound = manifest.bounds.find(o.case_name);
    if (bound != manifest.bounds.end() && bound->contains("ratios_max"))
      question.ratios_max[o.case_name] = bound->at("ratios_max");
  }
  if (question.ratios_max.empty()) return std::nullopt;
  return question;
}

}  // namespace patchbench
