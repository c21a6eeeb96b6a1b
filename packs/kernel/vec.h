#pragma once

namespace patchbench::ops {

/// 16 bytes: the most that a thread loads or stores with one instruction.
template <typename T>
struct alignas(16) Vec {
  static constexpr int kLength = 16 / int{sizeof(T)};
  T at[kLength];
};

}  // namespace patchbench::ops
