#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/observation.h"
#include "workbench/context.h"
#include "workbench/found_inputs.h"

namespace patchbench {

/// A user's own function, and what it is compared with.
struct FunctionOptions {
  std::string function, reference;     ///< "module:function"
  std::filesystem::path axes, python;  ///< empty python: python3 on PATH
  std::optional<std::string> device;   ///< nullopt: cuda:0 where it can be used, else cpu
  int num_drawn = 200;
  uint64_t seed = 1;
  int seconds = 120;           ///< then the search stops
  Json given = Json::array();  ///< axes that are judged instead of drawn ones
};

/// What a search found. No sentinel and no record: both sides are the user's own.
struct FunctionSearch {
  std::string device;
  Json plan;                          ///< what axes.json holds
  Json space;                         ///< what was drawn from: with the forms of gradients
  std::vector<Observation> judged;    ///< drawn or given, then tried to make a red one smaller
  std::vector<Observation> smallest;  ///< of each kind of failure
  int num_asked = 0, num_red = 0, num_right = 0, num_unjudged = 0, num_unsupported = 0,
      num_unanswered = 0, num_same = 0, num_smaller = 0;
  std::string why_unjudged, why_unanswered;  ///< of the first such case
  Json explained = Json::array();            ///< as explanations() has it (run/explanation.h)
  double wall_s = 0;

  /// Whether every case that was asked for was judged, or the reference had no answer to it.
  bool is_whole() const;
  /// 0: nothing red, 1: something red, 3: cases without an answer.
  int status() const;
};

/// Searches in two plain processes of the user's interpreter (repro/function/README.md): nothing is
/// sandboxed. Throws Error(kUsage) for wrong axes and functions that are not there, and
/// Error(kNotRunnable) without torch there or explore_function here.
FunctionSearch search_function(const Context& context, const FunctionOptions& options);

/// The smallest red cases as triggers and the right ones nearest to red ones as controls, for a new
/// pack. Throws Error(kUsage) where nothing was red.
FoundInputs found_by(const FunctionOptions& options, const FunctionSearch& search);
/// A title for it: "FUNCTION is red where ...".
std::string title_of(const FunctionOptions& options, const FunctionSearch& search);

std::string search_text(const FunctionOptions& options, const FunctionSearch& search);
Json search_json(const FunctionOptions& options, const FunctionSearch& search);

}  // namespace patchbench
