#pragma once
#include <string>

#include "core/observation.h"

namespace patchbench {

/// How one observation came out when its run was made again.
struct Replayed {
  enum class How { kBitwise, kWithinTolerance, kDiffers } how = How::kDiffers;
  std::string why;  ///< kDiffers: what differs first, with both values; else ""
};
std::string replayed_name(Replayed::How how);  ///< "bitwise", "within_tolerance", "differs"

/// What an observation must keep when it is made again. A record whose outputs were compared bit
/// for bit must give the same bits; of any other every number may move by the limit that its case
/// has now, and no answer may change.
enum class Determinism { kBitwise, kWithinTolerance };

/// `now` against `recorded`: inputs by digest, what was seen, then for each tensor whether it
/// passed and the errors of the subject and of the plain computation. "bitwise" says that the
/// outputs have the same digest, too.
Replayed compare_replay(const Observation& recorded, const Observation& now, Determinism kind);

}  // namespace patchbench
