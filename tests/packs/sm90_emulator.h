#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <ucontext.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

/// A host's own primitives for what is written over packs/sm90_warpgroup.cuh: one CTA of 256
/// threads, each a fiber that runs until it must wait for others. Products read shared memory by
/// their descriptors, as the PTX manual describes the 128-byte swizzle. What is asynchronous
/// happens as early or as late as it may, and threads take turns in either order, so that a barrier
/// or a wait that is missing shows.
namespace patchbench::sm90_emulator {

struct Timing {
  bool is_late = false;      ///< copies and products happen when they are waited for
  bool is_backward = false;  ///< the last thread runs first
};

class Machine {
 public:
  static constexpr int kThreads = 256, kGroup = 128, kWarp = 32;
  static constexpr size_t kStackBytes = 64 << 10;

  Machine(size_t shared_bytes, Timing timing)
      : timing_(timing), storage_(shared_bytes + 1024, 0xff), fibers_(kThreads) {
    // A bfloat16 of all ones is no number: what nobody wrote shows in what is made of it.
    const auto at = reinterpret_cast<uintptr_t>(storage_.data());
    shared_ = storage_.data() + (1024 - at % 1024) % 1024;
  }

  unsigned char* shared() { return shared_; }
  int thread() const { return thread_; }
  static Machine& running() { return *running_; }

  /// Runs `body` as every thread; throws where threads wait for each other in vain.
  void run(const std::function<void()>& body) {
    running_ = this;
    body_ = &body;
    for (Fiber& fiber : fibers_) start(fiber);
    while (advance(0, kThreads)) continue;
    for (const Fiber& fiber : fibers_)
      if (!fiber.is_done) throw std::logic_error("threads wait in vain");
  }

  /// Waits for the `count` threads around this one; the last to come does `work`.
  void meet(int count, const std::function<void()>& work) {
    Meeting& meeting = meetings_[{count, thread_ / count}];
    const int64_t generation = meeting.generation;
    ++num_steps_;
    if (++meeting.num_present == count) {
      work();
      meeting.num_present = 0;
      ++meeting.generation;
    }
    while (meeting.generation == generation) yield();
  }

  uint32_t shuffle(uint32_t value, int mask) {
    lanes_[static_cast<size_t>(thread_)] = value;
    meet(kWarp, [] {});
    const uint32_t other = lanes_[static_cast<size_t>(thread_ ^ mask)];
    meet(kWarp, [] {});
    return other;
  }

  void copy(uint32_t to, const void* from, bool is_valid) {
    const Copy copy{to, is_valid ? from : nullptr};
    if (!timing_.is_late) return perform(copy);
    fibers_[static_cast<size_t>(thread_)].copies.push_back(copy);
  }
  void wait_for_copies() {
    auto& copies = fibers_[static_cast<size_t>(thread_)].copies;
    for (const Copy& copy : copies) perform(copy);
    copies.clear();
  }

  struct Product {
    int n = 0, num_issued = 0;
    bool is_e4m3 = false;
    bool is_a_transposed = false, is_b_transposed = false, accumulates = false;
    uint64_t a = 0, b = 0;
    std::array<float*, kGroup> d = {};
  };

  /// One thread's part of a warpgroup's product.
  void multiply(const Product& part, float* d) {
    auto& queue = products_[static_cast<size_t>(thread_ / kGroup)];
    size_t& at = fibers_[static_cast<size_t>(thread_)].num_products;
    if (at == queue.size()) queue.push_back(part);
    Product& product = queue[at++];
    if (product.a != part.a || product.b != part.b || product.n != part.n ||
        product.accumulates != part.accumulates)
      throw std::logic_error("threads of one warpgroup issue different products");
    product.d[static_cast<size_t>(thread_ % kGroup)] = d;
    if (++product.num_issued == kGroup && !timing_.is_late) perform(product);
  }
  void wait_for_products() {
    meet(kGroup, [this] {
      auto& queue = products_[static_cast<size_t>(thread_ / kGroup)];
      for (const Product& product : queue) {
        if (product.num_issued != kGroup) throw std::logic_error("a product lacks threads");
        if (timing_.is_late) perform(product);
      }
      queue.clear();
    });
    fibers_[static_cast<size_t>(thread_)].num_products = 0;
  }

 private:
  struct Copy {
    uint32_t to;
    const void* from;
  };
  struct Fiber {
    ucontext_t context = {};
    std::unique_ptr<char[]> stack;
    bool is_done = false;
    std::vector<Copy> copies;
    size_t num_products = 0;
  };
  struct Meeting {
    int num_present = 0;
    int64_t generation = 0;
  };

  void start(Fiber& fiber) {
    fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &main_;
    makecontext(&fiber.context, &Machine::enter, 0);
  }
  static void enter() {
    (*running_->body_)();
    running_->fibers_[static_cast<size_t>(running_->thread_)].is_done = true;
    ++running_->num_steps_;
  }

  /// Runs each part of these threads as far as it comes without the others: one warp and one
  /// warpgroup may be ahead by all that no barrier forbids. Returns whether any moved.
  bool advance(int first, int count) {
    const int64_t before = num_steps_;
    if (count == 1) {
      thread_ = first;
      Fiber& fiber = fibers_[static_cast<size_t>(first)];
      if (!fiber.is_done) swapcontext(&main_, &fiber.context);
      return num_steps_ > before;
    }
    const int part = count == kThreads ? kGroup : count == kGroup ? kWarp : 1;
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (int at = 0; at < count; at += part)
        has_moved |= advance(first + (timing_.is_backward ? count - part - at : at), part);
    }
    return num_steps_ > before;
  }
  void yield() {
    const int self = thread_;
    swapcontext(&fibers_[static_cast<size_t>(self)].context, &main_);
  }

  void perform(const Copy& copy) {
    if (copy.from == nullptr) {
      std::memset(shared_ + copy.to, 0, 16);
    } else {
      std::memcpy(shared_ + copy.to, copy.from, 16);
    }
  }

  /// An element of an operand: `line` along its 64 or kN rows or columns, `k` along those summed.
  float element(uint64_t descriptor, bool is_e4m3, bool is_transposed, int line, int k) const {
    if (descriptor >> 62 != 1) throw std::logic_error("not the 128-byte swizzle");
    const auto field = [&](int shift) {
      return static_cast<uint32_t>(descriptor >> shift & 0x3fff) << 4;
    };
    const int bytes = is_e4m3 ? 1 : 2;
    const int dense = (is_transposed ? line : k) * bytes, other = is_transposed ? k : line;
    uint32_t at = field(0) + static_cast<uint32_t>(other / 8) * field(32) +
                  static_cast<uint32_t>(other % 8 * 128 + dense % 128);
    if (is_transposed) at += static_cast<uint32_t>(dense / 128) * field(16);
    at ^= at >> 3 & 0x70;
    if (is_e4m3) return c10::detail::fp8e4m3fn_to_fp32_value(shared_[at]);
    uint16_t bits = 0;
    std::memcpy(&bits, shared_ + at, 2);
    return c10::detail::f32_from_bits(bits);
  }

  void perform(const Product& p) const {
    const int depth = p.is_e4m3 ? 32 : 16;
    std::vector<float> a(static_cast<size_t>(64 * depth)), b(static_cast<size_t>(p.n * depth));
    for (int k = 0; k < depth; ++k) {
      for (int m = 0; m < 64; ++m)
        a[static_cast<size_t>(m * depth + k)] = element(p.a, p.is_e4m3, p.is_a_transposed, m, k);
      for (int n = 0; n < p.n; ++n)
        b[static_cast<size_t>(n * depth + k)] = element(p.b, p.is_e4m3, p.is_b_transposed, n, k);
    }
    for (int t = 0; t < kGroup; ++t) {
      for (int i = 0; i < p.n / 2; ++i) {
        const int m = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
        const int n = i / 4 * 8 + t % 4 * 2 + i % 2;
        float& d = p.d[static_cast<size_t>(t)][i];
        float sum = p.accumulates ? d : 0;
        for (int k = 0; k < depth; ++k)
          sum += a[static_cast<size_t>(m * depth + k)] * b[static_cast<size_t>(n * depth + k)];
        d = sum;
      }
    }
  }

  static inline Machine* running_ = nullptr;
  Timing timing_;
  std::vector<unsigned char> storage_;
  unsigned char* shared_ = nullptr;
  std::vector<Fiber> fibers_;
  std::map<std::pair<int, int>, Meeting> meetings_;
  std::array<uint32_t, kThreads> lanes_ = {};
  std::array<std::vector<Product>, kThreads / kGroup> products_;
  const std::function<void()>* body_ = nullptr;
  ucontext_t main_ = {};
  int thread_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace patchbench::sm90_emulator

#define PB_DEVICE inline
#define PB_CONSTEXPR constexpr
#define PB_UNROLL

namespace patchbench::ops::sm90 {

using sm90_emulator::Machine;

inline int thread_index() { return Machine::running().thread(); }
inline int uniform(int value) { return value; }
inline void sync_threads() {
  Machine::running().meet(Machine::kThreads, [] {});
}
template <typename T>
T shuffle_xor(T value, int mask) {
  return std::bit_cast<T>(Machine::running().shuffle(std::bit_cast<uint32_t>(value), mask));
}
inline bool any_in_warp(bool value) {
  float any = value ? 1.0f : 0.0f;
  for (int mask = 1; mask < Machine::kWarp; mask *= 2) any += shuffle_xor(any, mask);
  return any != 0;
}
inline float exp2_of(float value) { return std::exp2(value); }
inline float exp2_flushed(float value) { return value < -126 ? 0.0f : std::exp2(value); }
inline float log2_of(float value) { return std::log2(value); }

inline float low_of(uint32_t pair) {
  return c10::detail::f32_from_bits(static_cast<uint16_t>(pair));
}
inline float high_of(uint32_t pair) { return low_of(pair >> 16); }
inline uint32_t pack(float low, float high) {
  return c10::BFloat16(low).x | static_cast<uint32_t>(c10::BFloat16(high).x) << 16;
}

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) -
                               Machine::running().shared());
}
inline void decode(uint32_t bytes, float& low, float& high) {
  low = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes));
  high = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes >> 8));
}

struct alignas(16) Chunk {
  uint32_t words[4] = {};
};
inline Chunk load_chunk(const void* from) {
  Chunk c;
  std::memcpy(c.words, from, sizeof(c.words));
  return c;
}
inline void store_chunk(uint32_t to, const Chunk& c) {
  std::memcpy(Machine::running().shared() + to, c.words, sizeof(c.words));
}
inline void store_chunk(void* to, const Chunk& c) { std::memcpy(to, c.words, sizeof(c.words)); }
inline void copy_async(uint32_t to, const void* from, bool is_valid) {
  Machine::running().copy(to, from, is_valid);
}
inline void wait_for_copies() { Machine::running().wait_for_copies(); }
inline void fence_async_proxy() {}
inline void add_four(float* to, float a, float b, float c, float d) {
  to[0] += a;
  to[1] += b;
  to[2] += c;
  to[3] += d;
}

enum class Major { kK = 0, kMn = 1 };
template <typename... Accumulators>
void wgmma_fence(Accumulators&...) {}
inline void wgmma_commit() {}
template <typename... Accumulators>
void wgmma_wait(Accumulators&...) {
  Machine::running().wait_for_products();
}
template <int kN, Major kA, Major kB>
void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
  Machine::running().multiply({.n = kN,
                               .is_a_transposed = kA == Major::kMn,
                               .is_b_transposed = kB == Major::kMn,
                               .accumulates = accumulates,
                               .a = a,
                               .b = b},
                              d);
}
inline void wgmma_e4m3(float (&d)[16], uint64_t a, uint64_t b, bool accumulates) {
  Machine::running().multiply(
      {.n = 32, .is_e4m3 = true, .accumulates = accumulates, .a = a, .b = b}, d);
}

}  // namespace patchbench::ops::sm90
