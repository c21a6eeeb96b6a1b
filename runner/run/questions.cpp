#include "run/questions.h"

#include <algorithm>

#include "core/error.h"

namespace patchbench {
namespace {

/// The edits at the pin where one of the subjects has any.
Series edits_for(const Context& context, const RunTarget& target,
                 const std::vector<Subject>& subjects) {
  return std::any_of(subjects.begin(), subjects.end(), has_edits) ? edits_at(context, target)
                                                                  : Series{};
}

}  // namespace

Series edits_at(const Context& context, const RunTarget& target) {
  if (!target.pin)
    throw Error(ErrorCode::kUsage,
                "an installed stack (--python) is judged as it is: it takes no edits");
  return checkouts_of(context).edits_at(context, target.manifest, target.upstream, *target.pin);
}

Answer reproduce(const Context& context, const Setup& setup, const RunRequest& request) {
  const Series series = edits_for(context, setup.target, {request.subject});
  return execute(context, setup,
                 plan_reproduction(setup.target, request.subject, series, request.choice));
}

Answer validate(const Context& context, const Setup& setup, const Series& series,
                const CaseChoice& choice) {
  return execute(context, setup, plan_validation(setup.target, series, choice));
}

Answer test_claim(const Context& context, const Setup& setup, const ClaimTest& test,
                  const CaseChoice& choice) {
  const Series series = edits_for(context, setup.target, {test.subject, test.contrast});
  return execute(context, setup, plan_claim(setup.target, test, series, choice));
}

Answer draw_alone(const Context& context, const Setup& setup, const Subject& subject,
                  const CaseChoice& choice) {
  const Series series = edits_for(context, setup.target, {subject});
  return execute(context, setup, plan_drawn(setup.target, subject, series, choice));
}

}  // namespace patchbench
