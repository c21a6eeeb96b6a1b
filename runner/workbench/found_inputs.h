#pragma once
#include <string>

#include "core/json.h"

namespace patchbench {

/// What a search of a function found, for the first files of a pack.
struct FoundInputs {
  Json plan;            ///< what axes.json holds (repro/function/README.md), checked
  Json cases;           ///< of the manifest: the smallest red ones and right ones near them
  Json space;           ///< of the manifest's `explore.spaces`
  double seconds = 10;  ///< what the search took
};

/// The parts of a reproducer that follow from axes.json, as C++.
struct DrawnSource {
  std::string check, dtype, inputs;  ///< bodies of functions
};
DrawnSource source_of(const Json& plan);

}  // namespace patchbench
