#pragma once
#include <map>
#include <string>
#include <vector>

#include "cli/patch.h"
#include "git/rebase.h"

namespace patchbench::cli {

/// One version of one upstream at which series are tested together.
struct Together {
  Pin at;
  std::map<std::string, std::vector<Edit>> series;  ///< slug -> edits at that version
  std::vector<std::string> left_out;                ///< slugs that cannot be carried there
  std::vector<git::Clash> clashes;                  ///< pairs that conflict
};

/// The packs that have edits, by upstream; `only`: that upstream, "" for all.
std::map<std::string, std::vector<PackSeries>> packs_by_upstream(const Context& context,
                                                                 const std::string& only);

/// The series of some packs of one upstream, each carried to `at`, and which pairs conflict there.
Together together_at(const std::vector<PackSeries>& packs, const Pin& at, git::Store& store);

}  // namespace patchbench::cli
