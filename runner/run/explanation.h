#pragma once
#include <string>
#include <vector>

#include "core/json.h"
#include "run/trial.h"

namespace patchbench {

/// For each failure class that the subject showed on counted cases, and each site of the pack's
/// where it did: what separates these cases from those in which nothing was wrong (core/explain.h):
/// [{"class", "site" ("" where cases have none), "rules", "red", "green",
/// "nearest": {"red", "green", "differ": [axis, …]}}]. Cases without an answer are left out.
Json explanations(const Setup& setup, const Subject& subject, const std::vector<Trial>& trials);
std::string explanation_text(const Json& explanations);

}  // namespace patchbench
