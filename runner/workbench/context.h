#pragma once
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/judged.h"
#include "core/manifest.h"
#include "core/pin.h"

namespace patchbench {

/// What time it is.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::string now() const = 0;  ///< by UTC: "2026-01-31T12:00:00Z"
};
const Clock& system_clock();

class SubjectRunner;  // run/execute.h
class Checkouts;      // run/checkouts.h

/// Where results (`out`) and messages (`err`) go.
struct Output {
  std::ostream* out = &std::cout;
  std::ostream* err = &std::cerr;
};

/// What every command shares: where things are, how to print, and what reaches beyond the program.
struct Context {
  std::filesystem::path root;  ///< the repository, or what of it was installed
  std::filesystem::path
      bin;  ///< folder of this program: patchbench-sandbox and repro_<slug> lie next to it
  std::filesystem::path cache;   ///< $XDG_CACHE_HOME/patchbench
  std::filesystem::path ledger;  ///< --ledger
  bool json = false;             ///< --json: one JSON document on stdout, nothing else
  bool plain = false;            ///< --plain: the cells of a table are separated by tabs
  int exit_code = 0;
  Output output;
  const Clock* clock = &system_clock();
  SubjectRunner* subjects = nullptr;  ///< null: the processes of this machine
  Checkouts* checkouts = nullptr;     ///< null: git

  std::ostream& out() const { return *output.out; }
  std::ostream& err() const { return *output.err; }
  std::string now() const { return clock->now(); }
  std::string today() const { return now().substr(0, 10); }

  Manifest manifest(const std::string& slug) const;  ///< Error(kUsage) with did-you-mean
  std::vector<std::string> slugs() const;            ///< every pack, by number
  Pins pins() const;
  /// Of the tree's manifests, and of the older ones that the committed records name.
  JudgedDigests judged() const;
};

/// Checks that a word of --since is a day or a time, as a text that compares with a record's
/// `started`. Throws Error(kUsage).
void check_since(const std::string& since);

/// Prints one JSON document; bytes that are not UTF-8 become the replacement character.
void print_json(const Context& context, const Json& document);

/// Writes a file whole or not at all, its folders made.
void write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace patchbench
