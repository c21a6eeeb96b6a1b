#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/manifest.h"
#include "core/pin.h"

namespace patchbench {

/// What every command shares: where things are and how to print.
struct Context {
  std::filesystem::path root;  ///< the repository (PATCHBENCH_ROOT, else where it was built)
  std::filesystem::path
      bin;  ///< folder of this program: patchbench-sandbox and repro_<slug> stand beside it
  std::filesystem::path cache;   ///< $XDG_CACHE_HOME/patchbench
  std::filesystem::path ledger;  ///< --ledger
  bool json = false;             ///< --json: one JSON document on stdout, nothing else
  int exit_code = 0;

  Manifest manifest(const std::string& slug) const;  ///< Error(kUsage) with did-you-mean
  std::vector<std::string> slugs() const;            ///< every pack, by number
  Pins pins() const;
};

/// A progress line on stderr (a terminal gets it rewritten in place; elsewhere one line each).
void progress(const std::string& text);

/// Checks that a word of --since is a day or a time, as a text that compares with a record's
/// `started`. Throws Error(kUsage).
void check_since(const std::string& since);

/// Today's day by UTC: "2026-01-31".
std::string today();

/// Prints one JSON document; bytes that are no UTF-8 become the replacement character.
void print_json(const Json& document);

/// Writes a file whole or not at all, its folders made.
void write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace patchbench
