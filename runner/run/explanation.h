#pragma once
#include <string>
#include <vector>

#include "core/json.h"
#include "run/execute.h"

namespace patchbench {

/// For each failure class that the subject showed on drawn cases, or without any on the declared
/// ones that count, and each site of the pack's where it did: what separates these cases from those
/// in which nothing was wrong (core/explain.h), of drawn ones by the properties of their inputs,
/// too:
/// [{"class", "site" ("" where cases have none), "space" ("" of declared ones), "rules", "red",
/// "green", "nearest": {"red", "green", "differ": [axis, …]}}]. Cases without an answer are left
/// out.
Json explanations(const Setup& setup, const Subject& subject, const std::vector<Trial>& trials);
std::string explanation_text(const Json& explanations);

}  // namespace patchbench
