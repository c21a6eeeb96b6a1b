#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/observation.h"

namespace patchbench {

/// What the processes of a subject say of the lines that the edits of its tree changed.
struct LinesRun {
  int num = 0;                   ///< statements and places where lines were taken away
  int num_text = 0;              ///< lines of kernels that are compiled, which nobody can see run
  std::set<std::string> missed;  ///< `path:line`, in no process
};

/// What was looked at while a subject ran, as it says itself.
struct LookedAt {
  std::optional<LinesRun> lines;  ///< nullopt where no process tells
  /// `function(argument)` -> its values, two at most.
  std::map<std::string, std::set<std::string>> arguments;
};

/// Over all observations of one subject; a record has what a process says in its first case.
LookedAt looked_at(const std::vector<Observation>& observations);

/// The arguments that had one value in every case: "return_z_loss = False".
std::set<std::string> not_looked_at(const LookedAt& looked);

/// Of the axes that are sizes: the largest value of all cases, where a real model's is larger:
/// "seqlen up to 128".
std::vector<std::string> sizes_below_a_models(const std::vector<Json>& axes_of_cases);

/// Adds what one process says to what others said: missed is what all missed, two values of an
/// argument are kept.
void merge_watched(Json& all, const Json& said);

}  // namespace patchbench
