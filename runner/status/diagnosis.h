#pragma once
#include <string>
#include <vector>

#include "status/installed.h"
#include "workbench/context.h"

namespace patchbench {

enum class Hit {
  kHit,
  kNotHit,
  kNotMeasured,  ///< the records do not say
  kVersionUnknown,
  kNotInstalled
};
/// "hit", "not_hit", "not_measured", "version_unknown", "not_installed".
std::string hit_name(Hit state);

/// What one upstream of one pack means for an environment.
struct Diagnosis {
  std::string slug, upstream, package;
  Listed listed;
  Hit state = Hit::kNotMeasured;
  std::string why;         ///< the failure class of a hit; else one line
  std::string next;        ///< the command that would measure what was not; may be empty
  std::string record;      ///< digest of the verdict that the answer rests on; may be empty
  std::string mitigation;  ///< what the pack's mitigation would do about a hit; may be empty
  bool acts = false;       ///< the mitigation was verified on this very release
};

/// One diagnosis for each listed version of each upstream of each pack, and one for a pack of which
/// no upstream is listed. What was found of a release comes from the committed evidence and the
/// ledger, what its mitigation does from mitigations/patchbench_mitigations/data. A release is
/// known by the digests of the files that the manifest names, where they are installed and were
/// recorded; its version decides where they are not. A local version ("0.19.2+abc"), or one from
/// git, a folder or a URL, is never known by its version. `python`: what was named for it, "" for a
/// file.
std::vector<Diagnosis> diagnoses_of(const Context& context, const Installed& installed,
                                    const std::string& python);

}  // namespace patchbench
