#pragma once
#include <string>

#include "core/json.h"
#include "harness/inputs.h"

namespace patchbench::harness {

/// What a subject gave for one case, before anything is judged.
struct Answer {
  enum class State { kOutputs, kUnsupported, kUnresolved } state = State::kUnresolved;
  std::string reason;  ///< one line if no output came
  Tensors outputs;     ///< on the CPU
  Json self_reported = Json::object();
  Json outside = Json::object();  ///< wall_s, peak_bytes, exit: ours
  Tensors kept = {};   ///< input -> what changed of it, of a case in `inputs_kept` (scenario.h)
  Tensors bands = {};  ///< input -> its guard bands after the subject, [2, length] (guard_bands.h)

  static Answer unresolved(const std::string& why) {
    return {State::kUnresolved, why, {}, Json::object(), Json::object(), {}, {}};
  }
};

/// One printable line of at most `limit` bytes of a text that we did not write.
std::string printable(std::string_view text, std::size_t limit = 160);

}  // namespace patchbench::harness
