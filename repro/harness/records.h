#pragma once
#include <string>

#include "core/observation.h"

namespace patchbench::harness {

/// Writes observations as JSON lines on a descriptor that no child inherits.
class RecordWriter {
 public:
  /// Marks `descriptor` close-on-exec. Throws Error(kUsage) if it is not open.
  explicit RecordWriter(int descriptor);
  /// One whole line. Throws Error(kInternal) if the reader is gone or the disk is full.
  void write(const Observation& observation) const;

 private:
  int descriptor_;
};

}  // namespace patchbench::harness
