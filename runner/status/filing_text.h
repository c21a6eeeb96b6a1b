#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "status/bundle_body.h"
#include "status/newest.h"

namespace patchbench {

/// Where a patch changes a file of the release: the first line that it takes out, else the line
/// before which its first new line goes. Imports, comments and blank lines do not count.
struct ChangedPlace {
  std::string file, text;  ///< `text`: the line without its indentation; "" where none is taken out
  int line = 0;            ///< of the released file
  bool operator==(const ChangedPlace&) const = default;
};

/// One place for each file that a unified diff changes; files that it adds are left out.
std::vector<ChangedPlace> changed_places(std::string_view diff);

/// The lines that a unified diff takes out and puts in; "" if there are more than `most`.
std::string changed_text(std::string_view diff, std::size_t most);

/// The values of body.md and advisory.md, for people who do not know our words: who is hit, the
/// reproducer, releases, places, main, the machines, what to do. `current` are the verdicts at the
/// tested releases, `known` the failure classes that they show. The words of the manifest keep
/// their numbers: they say when it happens, and nothing that was measured.
Json filing_values(const BundleFacts& facts, const std::vector<NewestVerdict>& current,
                   const std::set<std::string>& known);

}  // namespace patchbench
