#pragma once
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/pin.h"
#include "ledger/record_set.h"
#include "status/upstream_threads.h"

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
  /// The pack's short program, what it prints, and a test in the upstream's own style; or "".
  std::string reproducer, reproducer_output, upstream_test;
  std::string diff;                ///< the patches of the first upstream that has some
  std::vector<Thread> introduced;  ///< threads there that brought the bug
};

/// The values of the templates of body.md, advisory.md and evidence.md, and the records cited.
struct BundleBody {
  Json values;
  std::vector<std::string> commands;    ///< shell, one a line
  std::vector<const Record*> evidence;  ///< cited records, observations before their verdict
};

/// Every number of every value is stated by a record next to it, or left out ("…").
/// Throws Error(kUnresolved) if no verdict of the pack's release is known.
BundleBody bundle_body(const BundleFacts& facts);

}  // namespace patchbench
