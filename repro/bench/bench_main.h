#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench::bench {

struct Options {
  std::vector<int64_t> shape;
  int repeats = 20;
  std::map<std::string, std::string> own = {};  ///< values of the bench's own options, by name
};

/// What one bench measures.
struct Bench {
  std::string name;  ///< of the program
  std::string axes;  ///< of a shape: "TOKENS,HIDDEN,VOCAB"
  Options defaults;  ///< the keys of `own` are the bench's own options
  std::string help;  ///< lines after the usage
  /// Throws Error(kUsage) where the options are wrong; may be nullptr.
  void (*check)(const Options&) = nullptr;
  /// The report; `passed` becomes false where a result is wrong. nullptr: it needs a build with
  /// CUDA.
  Json (*measure)(const Options&, bool& passed) = nullptr;
  void (*print_table)(const Json& report) = nullptr;  ///< nullptr: JSON always
};

/// The numbers >= 1 of a text, between commas. Throws Error(kUsage) that names `option`.
std::vector<int64_t> numbers(const std::string& option, const std::string& text);

/// The main function of a bench. To the report it adds shape, device, clocks, torch and repeats.
/// Exit: 0 measured, 1 a result is wrong, 2 usage, 3 no answer, 4 no CUDA device or a build without
/// CUDA.
int bench_main(const Bench& bench, int argc, char** argv);

}  // namespace patchbench::bench
