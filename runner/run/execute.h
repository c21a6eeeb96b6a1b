#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/observation.h"
#include "core/record.h"
#include "core/run_plan.h"
#include "run/setup.h"
#include "workbench/context.h"

namespace patchbench {

/// One step's observations and the context they were made in.
struct Trial {
  RunContext context;
  std::vector<Observation> observations;
  std::vector<Observation> drawn;  ///< every drawn case with its properties; no record holds these
  double wall_s = 0;
};

/// One question answered: its trials, what it came to, and the verdict record.
struct Answer {
  std::vector<Trial> trials;
  QuestionContext question;
  Outcome outcome;
  std::string digest;
  Json plan;  ///< RunPlan::to_json
};

/// Prepares and runs subjects. What it is by default starts processes; a test's does not.
class SubjectRunner {
 public:
  virtual ~SubjectRunner() = default;
  /// prepare_here().
  virtual Setup prepare(const Context& context, const RunRequest& request) = 0;
  virtual Trial run(const Context& context, const Setup& setup, const PlanStep& step) = 0;
  /// run_mitigation_program().
  virtual Json run_program(const Context& context, const Setup& setup) = 0;
};

/// The setup of a request; see prepare_here().
Setup prepare(const Context& context, const RunRequest& request);

/// Runs one step: checkout (+ edits), sandbox, reproducer, observations. No other function
/// starts a subject.
Trial run_step(const Context& context, const Setup& setup, const PlanStep& step);

/// Runs a plan: the self-test of the judge where it is due, the steps, setup.jobs at a time, what
/// follows from what was observed, and the mitigation's program; then judges all observations and
/// records them, with the plan. Nothing is recorded where a step throws.
Answer execute(const Context& context, const Setup& setup, const RunPlan& plan);

/// The question that follows an answer (core/further_question.h), asked of its observations; the
/// verdict is recorded. nullopt where nothing is asked.
std::optional<Answer> further_answer(const Context& context, const Answer& answer,
                                     const std::optional<QuestionContext>& question);

/// Records what separates the red cases of an answer from its green ones; returns the digest.
std::string record_explained(const Context& context, const Answer& answer, const Json& explained);

/// The results of all trials, in order.
std::vector<Observation> observations_of(const std::vector<Trial>& trials);

}  // namespace patchbench
