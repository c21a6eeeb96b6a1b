#include "core/device.h"

namespace patchbench {

DeviceKind recorded_kind(std::string_view name) {
  return name == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
}

std::string_view kind_name(DeviceKind kind) { return kind == DeviceKind::kCuda ? "cuda" : "cpu"; }

std::string Device::text() const { return is_gpu() ? "cuda:" + std::to_string(index) : "cpu"; }

std::optional<Device> Device::parse(std::string_view text) {
  constexpr std::string_view kGpu = "cuda:";
  constexpr std::size_t kMaxDigits = 3;
  if (text == "cpu") return Device{};
  if (!text.starts_with(kGpu)) return std::nullopt;
  const std::string digits(text.substr(kGpu.size()));
  const bool is_number = !digits.empty() && digits.size() <= kMaxDigits &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number) return std::nullopt;
  return Device{DeviceKind::kCuda, std::stoi(digits)};
}

}  // namespace patchbench
