#pragma once
#include <functional>
#include <string>

namespace patchbench::harness {

/// Milliseconds of one call on the current CUDA stream, by its events.
struct Timing {
  double median_ms = 0, low_ms = 0, high_ms = 0;  ///< low and high: the 10th and 90th percentile
};

/// Times `call` over `repeats` calls, after three that are not counted; 256 MiB, several times the
/// L2 of any device so far, are written between calls. Throws where the build has no CUDA.
Timing time_on_device(const std::function<void()>& call, int repeats);

/// What nvidia-smi says of the clocks and the temperature of the device, or "unknown".
std::string device_clocks();

}  // namespace patchbench::harness
