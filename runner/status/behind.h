#pragma once
#include <map>
#include <string>
#include <vector>

#include "status/pack_records.h"

namespace patchbench {

/// What the observations behind one verdict show beyond its sentinel.
struct Behind {
  /// Case -> greatest error over its limit of a judged tensor.
  std::map<std::string, double> share_by_case;
  std::vector<std::string> marks;  ///< "stale: …", "3 of 9 cases"
};
/// `finding`: a verdict of `pack`. A mark names what has changed since: cases of the manifest that
/// the run did not have, edits that are no longer the pack's.
Behind behind(const Context& context, const PackRecords& verdicts, const Manifest& pack,
              const Finding& finding);

}  // namespace patchbench
