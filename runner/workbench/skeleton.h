#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/manifest.h"
#include "workbench/found_inputs.h"

namespace patchbench {

/// What the author of a pack says of it at the start.
struct NewPack {
  Slug slug{"unset"};
  int number = 0;
  std::string title, kind;
  std::vector<UpstreamUse> upstreams;
  std::string repository;  ///< owner/name of where a report goes: that of the first upstream
  std::optional<FoundInputs> found;  ///< fills in the cases, the space and the inputs
};

/// The first files of a pack, repository path -> text: manifest, README, reproducer, subject,
/// stand-alone script and test. They pass the manifest schema and compile; each that the author
/// must fill in fails by name when it is run. Cells that are not written are waived in the
/// manifest.
std::map<std::string, std::string> skeleton_of(const NewPack& pack, const std::string& review_on);

}  // namespace patchbench
