#pragma once
#include <functional>
#include <string>
#include <vector>

namespace patchbench::bench {

/// Milliseconds of one call on the current CUDA stream, by its events.
struct Timing {
  double median_ms = 0, low_ms = 0, high_ms = 0;  ///< low and high: the 10th and 90th percentile
};

/// The times of each call in ms, sorted. The calls run one after another in each of `repeats`
/// rounds, after three rounds that are not counted; 256 MiB, several times the L2 of any device so
/// far, are written before each call. Throws where the build has no CUDA.
std::vector<std::vector<double>> times_in_turn(const std::vector<std::function<void()>>& calls,
                                               int repeats);

/// What sorted times come to.
Timing timing_of(const std::vector<double>& times);

/// The same of one call alone.
Timing time_on_device(const std::function<void()>& call, int repeats);

/// The name of the current CUDA device. Throws where the build has no CUDA.
std::string device_name();

/// What nvidia-smi says of the clocks and the temperature of the device, or "unknown".
std::string device_clocks();

}  // namespace patchbench::bench
