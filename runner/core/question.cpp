#include "core/question.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"

namespace patchbench {
namespace {

constexpr std::array kQuestionNames = {"reproduce",   "validate",   "op",
                                       "mitigation",  "memory",     "claim",
                                       "equivalence", "regression", "drawn"};

}  // namespace

std::string question_name(Question q) { return kQuestionNames.at(static_cast<std::size_t>(q)); }

std::optional<Question> find_question(std::string_view name) {
  for (std::size_t i = 0; i < kQuestionNames.size(); ++i) {
    if (name == kQuestionNames.at(i)) return static_cast<Question>(i);
  }
  return std::nullopt;
}

Question question_from(std::string_view name) {
  if (const std::optional<Question> question = find_question(name)) return *question;
  throw Error(ErrorCode::kUsage, fmt::format("'{}' is no question", shown(name)));
}

Json QuestionContext::to_json() const {
  Json json = {{"question", question_name(question)},
               {"subject", subject.text()},
               {"is_red_pin", is_red_pin},
               {"classes", classes}};
  if (is_partial) json["is_partial"] = true;
  if (has_regions) json["has_regions"] = true;
  if (has_lines) json["has_lines"] = true;
  if (!waived_lines.empty()) json["waived_lines"] = waived_lines;
  if (!altered.empty()) json["altered"] = altered;
  if (num_drawn > 0) json["num_drawn"] = num_drawn;
  if (is_few) json["is_few"] = true;
  if (!seeds.empty()) json["seeds"] = seeds;
  if (question == Question::kMemory) {
    json["bound_bytes"] = bound_bytes;
    json["measured_bytes"] = measured_bytes;
  }
  if (bound_growth > 0) {
    json["bound_growth"] = bound_growth;
    json["measured_growth"] = measured_growth;
  }
  if (question == Question::kRegression) json["ratios_max"] = ratios_max;
  if (question == Question::kClaim) {
    if (!claim.empty()) json["claim"] = claim;
    json["contrast"] = contrast.text();
    json["expects"] = case_status_name(expects);
    json["failure_class"] = failure_class;
  }
  if (!program.is_null()) json["program"] = program;
  return json;
}

namespace {

/// Throws Json::exception for what run_mitigation_program() does not write.
void check_program(const Json& program) {
  const auto need_text = [](const Json& of, const char* key) {
    static_cast<void>(of.at(key).get<std::string>());
  };
  if (program.is_null()) return;
  if (program.contains("missing")) return need_text(program, "missing");
  need_text(program, "sha256");
  for (const char* name : {"off", "auto", "named"}) {
    const Json& start = program.at(name);
    if (start.contains("failed")) {
      need_text(start, "failed");
    } else {
      for (const char* key : {"error", "bound"}) static_cast<void>(start.at(key).get<double>());
    }
  }
}

}  // namespace

QuestionContext QuestionContext::from_json(const Json& json) {
  try {
    QuestionContext context;
    context.question = question_from(json.at("question").get<std::string>());
    context.subject = json.at("subject").get<std::string>();
    context.is_red_pin = json.at("is_red_pin").get<bool>();
    context.classes = json.at("classes").get<std::vector<std::string>>();
    context.is_partial = json.value("is_partial", false);
    context.has_regions = json.value("has_regions", false);
    context.has_lines = json.value("has_lines", false);
    context.waived_lines = json.value("waived_lines", context.waived_lines);
    context.altered = json.value("altered", context.altered);
    context.num_drawn = json.value("num_drawn", 0);
    context.is_few = json.value("is_few", false);
    context.seeds = json.value("seeds", context.seeds);
    context.bound_bytes = json.value("bound_bytes", 0.0);
    context.measured_bytes = json.value("measured_bytes", 0.0);
    context.bound_growth = json.value("bound_growth", 0.0);
    context.measured_growth = json.value("measured_growth", 0.0);
    context.ratios_max = json.value("ratios_max", context.ratios_max);
    context.claim = json.value("claim", "");
    context.contrast = json.value("contrast", "");
    context.failure_class = json.value("failure_class", "");
    context.expects = case_status_from(json.value("expects", "absent"));
    context.program = json.value("program", Json());
    check_program(context.program);
    return context;
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::kUsage, std::string("a verdict's question is malformed: ") + e.what());
  }
}

}  // namespace patchbench
