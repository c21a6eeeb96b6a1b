#include "core/sentinel_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace patchbench::rules {

Outcome memory_saved(const Observations& observations, const QuestionContext& context) {
  Outcome green = op_right(observations, context);
  if (!green.sentinel) return green;
  if (context.bound_bytes <= 0 || context.measured_bytes <= 0)
    return none("no bound or no measured peak");
  const std::string figures = fmt::format("measured peak {:.0f} bytes, bound {:.0f} bytes",
                                          context.measured_bytes, context.bound_bytes);
  if (context.measured_bytes > context.bound_bytes)
    return none("the peak is over the bound: " + figures);
  if (context.bound_growth > 0 && context.measured_growth <= 0)
    return none("no measured peak at half the length");
  const std::string growth = fmt::format("{:.2f} times the peak at half the length, bound {:.2f}",
                                         context.measured_growth, context.bound_growth);
  if (context.measured_growth > context.bound_growth)
    return none("the peak grows over the bound: " + growth);
  return {Sentinel::kMemorySaveVerified, "",
          context.bound_growth > 0 ? figures + "; " + growth : figures, ""};
}

}  // namespace patchbench::rules
