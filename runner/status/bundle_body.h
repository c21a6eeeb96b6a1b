#pragma once
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/pin.h"
#include "ledger/record_set.h"

namespace patchbench {

/// One patch of the bundle.
struct BundledPatch {
  std::string file, subject, upstream, version;
};

/// Patches that could not be made: their git pin is out of reach.
struct LeftOutSeries {
  std::string upstream, version, why;
};

/// What a body is made from: the pack, its records, and the files next to the body.
struct BundleFacts {
  const Manifest& manifest;
  const ledger::RecordSet& record_set;
  const Pins& pins;
  std::vector<BundledPatch> patches;
  std::vector<LeftOutSeries> left_out;
  bool has_script = false;
};

/// The values of a body's template, and the records it cites.
struct BundleBody {
  Json values;
  std::vector<std::string> commands;    ///< shell, one a line
  std::vector<const Record*> evidence;  ///< cited records, observations before their verdict
};

/// Every number of every value is stated by a record next to it, or left out ("…").
/// Throws Error(kUnresolved) if no verdict of the pack's release is known.
BundleBody bundle_body(const BundleFacts& facts);

}  // namespace patchbench
