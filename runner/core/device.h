#pragma once
#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace patchbench {

enum class DeviceKind { kCpu, kCuda };

/// The kind of a device by its name in a record: "cpu", or of a GPU "NVIDIA H200 (sm_90)".
DeviceKind recorded_kind(std::string_view name);
std::string_view kind_name(DeviceKind kind);  ///< "cpu", "cuda": a word of `judged_on`

/// Where a subject computes.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  ///< of the GPU; 0 of a CPU

  bool is_gpu() const { return kind == DeviceKind::kCuda; }
  std::string_view kind_name() const { return patchbench::kind_name(kind); }
  std::string text() const;  ///< "cpu", "cuda:0"
  /// What text() spells, an index of at most three digits; nullopt of any other text.
  static std::optional<Device> parse(std::string_view text);
  auto operator<=>(const Device&) const = default;
};

}  // namespace patchbench
