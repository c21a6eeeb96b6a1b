#pragma once
#include <cmath>

#include "packs/sm90_emulator.h"

#undef __device__
#undef __global__
#undef __shared__
#undef __launch_bounds__
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define PB_DYNAMIC_SHARED(name) \
  auto* const name = reinterpret_cast<uint4*>(sm90_emulator::Machine::running().shared())

/// A host's own of CUDA's words and of packs/mamba3_mimo_gqa_bwd/mimo_primitives.cuh, for one CTA
/// of 256 threads at a time. They are in the kernels' namespace, before any of the toolkit's.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

using sm90_emulator::Machine;
using std::max;
using std::min;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

/// The CTA, and how many of its threads lie along x.
struct Cta {
  unsigned x = 0, y = 0, z = 0;
};
inline Cta blockIdx;
inline unsigned threads_along_x = 256;
struct ThreadIndex {
  struct {
    operator unsigned() const {
      return static_cast<unsigned>(Machine::running().thread()) % threads_along_x;
    }
  } x;
  struct {
    operator unsigned() const {
      return static_cast<unsigned>(Machine::running().thread()) / threads_along_x;
    }
  } y;
};
inline ThreadIndex threadIdx;

inline void __syncthreads() {
  Machine::running().meet(Machine::running().num_threads(), [] {});
}
inline void __syncwarp() {
  Machine::running().meet(Machine::kWarp, [] {});
}
/// What each thread of the CTA shows the others of its warp.
template <typename T>
struct Shown {
  static inline std::array<T, 1024> of_thread;  // the most that a CTA has
  /// Shows `own`, then reads by `read`, which takes the warp's values.
  template <typename Read>
  static auto exchange(const T& own, const Read& read) {
    const auto self = static_cast<size_t>(Machine::running().thread());
    of_thread[self] = own;
    Machine::running().meet(Machine::kWarp, [] {});
    const auto result = read(&of_thread[self / Machine::kWarp * Machine::kWarp]);
    Machine::running().meet(Machine::kWarp, [] {});
    return result;
  }
};
inline int lane_index() { return Machine::running().thread() % Machine::kWarp; }
template <typename T>
T shfl_sync(T value, int lane) {
  return Shown<T>::exchange(value, [lane](const T* warp) { return warp[lane]; });
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return shfl_sync(value, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return shfl_sync(value, lane_index() ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int by) {
  return shfl_sync(value, lane_index() >= by ? lane_index() - by : lane_index());
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int by) {
  return shfl_sync(value, lane_index() + by < Machine::kWarp ? lane_index() + by : lane_index());
}

inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

inline float exp2_ftz(float x) { return std::exp2(x); }
inline float rcp_approx(float x) { return 1.0f / x; }

using bf16 = c10::BFloat16;
constexpr unsigned kAll = ~0u;
inline float __bfloat162float(bf16 value) { return value; }
inline bf16 __float2bfloat16(float value) { return value; }
inline uint32_t narrow(float low, float high) {
  return bf16(low).x | static_cast<uint32_t>(bf16(high).x) << 16;
}

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) -
                               Machine::running().shared());
}
inline void check_word(uintptr_t address) {
  if (address % 16 != 0) throw std::logic_error("a word of 16 bytes lies off its boundary");
}
inline void cp_async(void* to, const void* from) {
  check_word(shared_address(to));
  check_word(reinterpret_cast<uintptr_t>(from));
  Machine::running().copy(shared_address(to), from, true, 16);
}
inline void cp_async_wait_all() { Machine::running().cp_async_wait_all(); }

template <bool kIsTransposed>
void ldmatrix(uint32_t (&r)[4], uint32_t row) {
  check_word(row);
  const int lane = lane_index();
  const auto words = Shown<uint32_t>::exchange(row, [lane](const uint32_t* rows) {
    std::array<uint32_t, 4> out = {};
    for (size_t i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        const int along = lane % 4 * 2 + half, across = lane / 4;
        const uint32_t from = rows[8 * i + static_cast<size_t>(kIsTransposed ? along : across)];
        uint16_t bits = 0;
        std::memcpy(&bits,
                    Machine::running().shared() + from + 2 * (kIsTransposed ? across : along), 2);
        out[i] |= static_cast<uint32_t>(bits) << 16 * half;
      }
    }
    return out;
  });
  for (size_t i = 0; i < 4; ++i) r[i] = words[i];
}

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  using Operands = std::array<uint32_t, 6>;
  const int lane = lane_index();
  const auto half_of = [](uint32_t pair, int i) {
    return c10::detail::f32_from_bits(static_cast<uint16_t>(pair >> 16 * (i % 2)));
  };
  const auto sums =
      Shown<Operands>::exchange({a[0], a[1], a[2], a[3], b0, b1}, [&](const Operands* warp) {
        std::array<float, 4> out = {c[0], c[1], c[2], c[3]};
        for (int i = 0; i < 4; ++i) {
          const int m = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
          for (int k = 0; k < 16; ++k) {
            const auto word = static_cast<size_t>(m / 8 + k / 8 * 2);
            const float left = half_of(warp[m % 8 * 4 + k % 8 / 2][word], k);
            const float right = half_of(warp[n * 4 + k % 8 / 2][4 + static_cast<size_t>(k / 8)], k);
            out[static_cast<size_t>(i)] += left * right;
          }
        }
        return out;
      });
  for (size_t i = 0; i < 4; ++i) c[i] = sums[i];
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
