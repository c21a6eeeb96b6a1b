#pragma once
#include <string>
#include <vector>

#include "status/pack_records.h"

namespace patchbench {

/// The window of one tier: a kind of device.
struct DeviceClassWindow {
  std::string upstream, device;
  std::vector<ReleaseState> states;  ///< every locked release, oldest first
  std::vector<Interval> intervals;
  /// How many releases are in one of the given states.
  int64_t count(BugStatus state) const;
  /// Whether the newest locked release is in a failure class.
  bool is_open() const;
};
/// The windows of a pack, one for each upstream and kind of device that ever reproduced it. A
/// release whose every trigger was unsupported is "unsupported": it has no such code.
std::vector<DeviceClassWindow> windows_of(const PackRecords& verdicts, const Manifest& pack);

/// The source tier: what the digests in a release's record say of the files under test.
struct SourceState {
  std::string version;
  std::string state;  ///< "as_red_pin", "differs", "no_such_file"
};
/// Of every release with a record that holds digests of the files, oldest first.
std::vector<SourceState> sources_of(const PackRecords& verdicts, const Manifest& pack,
                                    const UpstreamUse& use);

/// The window of one failure class, for a pack whose releases may be in several at once.
struct ClassWindow {
  std::string failure_class;
  std::vector<Interval> intervals;
};
/// Of every class that a release of the window shows, in the manifest's order.
std::vector<ClassWindow> class_windows(const PackRecords& verdicts, const Manifest& pack,
                                       const DeviceClassWindow& window);
/// "row_zero_gradient 2.2.0-2.7.0; first good 2.8.0", one line a class.
std::string class_windows_text(const std::vector<ClassWindow>& windows);
Json class_windows_json(const std::vector<ClassWindow>& windows);

/// "0.3.0-0.5.2 reduction_ignored, 0.6.3-0.8.1 wrong_gradients; first good 0.8.2".
std::string window_text(const DeviceClassWindow& window);
Json window_json(const DeviceClassWindow& window);

}  // namespace patchbench
