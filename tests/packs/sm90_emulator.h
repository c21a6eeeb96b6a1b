// Longer than 400 lines: a machine of fibers, and each primitive over it.
#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>
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

/// A host's own primitives for what is written over packs/kernel/sm90 (ptx, barrier, wgmma): one
/// CTA of some warpgroups, each thread a fiber that runs until it must wait for others. Products
/// read shared memory by their descriptors, as the PTX manual describes the 128-byte swizzle. What
/// is asynchronous happens as early or as late as it may, and threads take turns in either order,
/// so that a barrier or a wait that is missing shows.
namespace patchbench::sm90_emulator {

struct Timing {
  /// Copies and products happen when they are waited for: those that a barrier waits for when a
  /// thread does.
  bool is_late = false;
  bool is_backward = false;         ///< the last thread runs first
  bool are_copies_early = false;    ///< where is_late: products alone are
  bool is_first_preferred = false;  ///< a warpgroup runs only when none before it can
};

/// Every order that matters to what has roles and copies.
inline std::vector<Timing> timings_of_roles() {
  return {
      {},
      {.is_backward = true},
      {.is_late = true},
      {.is_late = true, .is_backward = true},
      {.is_late = true, .are_copies_early = true, .is_first_preferred = true},
      {.is_late = true, .is_backward = true, .are_copies_early = true, .is_first_preferred = true}};
}

class Machine {
 public:
  static constexpr int kGroup = 128, kWarp = 32;
  static constexpr size_t kStackBytes = 64 << 10;

  Machine(size_t shared_bytes, Timing timing, int num_threads = 256)
      : timing_(timing),
        storage_(shared_bytes + 1024, 0xff),
        fibers_(static_cast<size_t>(num_threads)),
        lanes_(fibers_.size()),
        products_(fibers_.size() / kGroup) {
    // A bfloat16 of all ones is NaN: an element that nobody wrote shows in the results.
    const auto at = reinterpret_cast<uintptr_t>(storage_.data());
    shared_ = storage_.data() + (1024 - at % 1024) % 1024;
  }

  unsigned char* shared() { return shared_; }
  int thread() const { return thread_; }
  int num_threads() const { return static_cast<int>(fibers_.size()); }
  static Machine& running() { return *running_; }

  /// Runs `body` as every thread; throws where threads wait for each other in vain.
  void run(const std::function<void()>& body) {
    running_ = this;
    body_ = &body;
    for (Fiber& fiber : fibers_) start(fiber);
    while (advance(0, num_threads())) continue;
    for (const Fiber& fiber : fibers_)
      if (!fiber.is_done) throw std::logic_error("threads wait in vain");
  }

  /// Waits for the `count` threads around this one; the last to come does `work`.
  void meet(int count, const std::function<void()>& work) {
    wait_until_past(join(meetings_[{count, thread_ / count}], count, work));
  }
  /// The same of any `count` threads, by the barrier's name; who does not wait goes on.
  void meet_at(int id, int count, bool waits) {
    const Place place = join(named_[id], count, [] {});
    if (waits) wait_until_past(place);
  }

  /// The barriers that lie in shared memory, by address.
  void mbarrier_init(uint32_t at, int count) {
    if (!barriers_.emplace(at, Phases{.count = count}).second)
      throw std::logic_error("a barrier is started twice");
  }
  void mbarrier_arrive(uint32_t at) {
    count_arrival(started(at));
    if (timing_.is_first_preferred) yield();
  }
  /// Arrives once this thread's copies so far have happened.
  void cp_async_mbarrier_arrive(uint32_t at) {
    if (!are_copies_late()) return mbarrier_arrive(at);
    Fiber& fiber = fibers_[static_cast<size_t>(thread_)];
    started(at).arrivals.push_back({&fiber, fiber.copies.size()});
    ++num_steps_;
  }
  void mbarrier_wait(uint32_t at, int parity) {
    Phases& barrier = started(at);
    ++num_steps_;
    while (barrier.parity == parity) {
      for (const Arrival& arrival : std::exchange(barrier.arrivals, {})) {
        perform_copies(*arrival.fiber, arrival.num_copies);
        count_arrival(barrier);
      }
      if (barrier.parity == parity) yield();
    }
  }

  uint32_t shuffle(uint32_t value, int mask) { return shfl_sync(value, thread_ % kWarp ^ mask); }
  uint32_t shfl_sync(uint32_t value, int lane) {
    lanes_[static_cast<size_t>(thread_)] = value;
    meet(kWarp, [] {});
    const uint32_t other = lanes_[static_cast<size_t>(thread_ - thread_ % kWarp + lane)];
    meet(kWarp, [] {});
    return other;
  }

  void ldmatrix(uint32_t (&words)[4], uint32_t from) {
    lanes_[static_cast<size_t>(thread_)] = from;
    meet(kWarp, [] {});
    const int lane = thread_ % kWarp, first = thread_ - lane;
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = lanes_[static_cast<size_t>(first + i * 8 + lane / 4)];
      std::memcpy(&words[i], shared_ + at + lane % 4 * 4, 4);
    }
    meet(kWarp, [] {});
  }

  void ldmatrix_trans(uint32_t (&words)[4], uint32_t from) {
    lanes_[static_cast<size_t>(thread_)] = from;
    meet(kWarp, [] {});
    const int lane = thread_ % kWarp, first = thread_ - lane;
    for (int i = 0; i < 4; ++i) {
      uint16_t pairs[2];
      for (int j = 0; j < 2; ++j) {
        const int row = i * 8 + lane % 4 * 2 + j;
        const uint32_t at = lanes_[static_cast<size_t>(first + row)];
        std::memcpy(&pairs[j], shared_ + at + lane / 4 * 2, 2);
      }
      words[i] = pairs[0] | static_cast<uint32_t>(pairs[1]) << 16;
    }
    meet(kWarp, [] {});
  }

  void stmatrix(uint32_t to, const uint32_t* words) {
    lanes_[static_cast<size_t>(thread_)] = to;
    meet(kWarp, [] {});
    const int lane = thread_ % kWarp, first = thread_ - lane;
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = lanes_[static_cast<size_t>(first + i * 8 + lane / 4)];
      std::memcpy(shared_ + at + lane % 4 * 4, &words[i], 4);
    }
    meet(kWarp, [] {});
  }

  void copy(uint32_t to, const void* from, bool is_valid, size_t bytes) {
    const Copy copy{to, is_valid ? from : nullptr, bytes};
    if (!are_copies_late()) return perform(copy);
    fibers_[static_cast<size_t>(thread_)].copies.push_back(copy);
  }
  void cp_async_wait_all() {
    Fiber& fiber = fibers_[static_cast<size_t>(thread_)];
    perform_copies(fiber, fiber.copies.size());
  }

  struct Product {
    int n = 0, num_issued = 0;
    bool is_e4m3 = false, is_half = false;
    bool is_a_transposed = false, is_b_transposed = false, accumulates = false;
    bool is_a_in_registers = false;
    uint64_t a = 0, b = 0;
    std::array<const uint32_t*, kGroup> registers = {};  ///< of a
    int64_t group = 0;                                   ///< of those committed together
    std::array<float*, kGroup> d = {};
  };

  /// One thread's part of a warpgroup's product; `a` where that is in registers.
  void multiply(const Product& part, float* d, const uint32_t* a = nullptr) {
    auto& queue = products_[static_cast<size_t>(thread_ / kGroup)];
    Fiber& fiber = fibers_[static_cast<size_t>(thread_)];
    size_t& at = fiber.num_products;
    if (at == queue.size()) {
      queue.push_back(part);
      queue.back().group = fiber.num_commits;
    }
    Product& product = queue[at++];
    if (product.a != part.a || product.b != part.b || product.n != part.n ||
        product.accumulates != part.accumulates || product.group != fiber.num_commits)
      throw std::logic_error("threads of one warpgroup issue different products");
    product.d[static_cast<size_t>(thread_ % kGroup)] = d;
    product.registers[static_cast<size_t>(thread_ % kGroup)] = a;
    if (++product.num_issued == kGroup && !timing_.is_late) perform(product);
  }
  void commit_products() { ++fibers_[static_cast<size_t>(thread_)].num_commits; }
  /// All except the last `num_pending` commits.
  void wait_for_products(int num_pending) {
    Fiber& fiber = fibers_[static_cast<size_t>(thread_)];
    const int64_t end = fiber.num_commits - num_pending;
    auto& queue = products_[static_cast<size_t>(thread_ / kGroup)];
    size_t num_done = 0;
    while (num_done < fiber.num_products && queue[num_done].group < end) ++num_done;
    meet(kGroup, [&] {
      for (size_t i = 0; i < num_done; ++i) {
        if (queue[i].num_issued != kGroup) throw std::logic_error("a product lacks threads");
        if (timing_.is_late) perform(queue[i]);
      }
      queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(num_done));
    });
    fiber.num_products -= num_done;
  }

 private:
  bool are_copies_late() const { return timing_.is_late && !timing_.are_copies_early; }

  struct Copy {
    uint32_t to;
    const void* from;
    size_t bytes;
  };
  struct Fiber {
    ucontext_t context = {};
    std::unique_ptr<char[]> stack;
    bool is_done = false;
    std::vector<Copy> copies;
    size_t num_copied = 0;  ///< of them
    size_t num_products = 0;
    int64_t num_commits = 0;
  };
  struct Meeting {
    int num_present = 0;
    int64_t generation = 0;
  };
  struct Place {
    const Meeting* meeting;
    int64_t generation;
  };
  /// One that waits for as many of its thread's copies as were started before.
  struct Arrival {
    Fiber* fiber;
    size_t num_copies;
  };
  struct Phases {
    int count = 0, num_arrived = 0, parity = 0;  ///< of the phase under way
    std::vector<Arrival> arrivals;
  };

  Place join(Meeting& meeting, int count, const std::function<void()>& work) {
    const int64_t generation = meeting.generation;
    ++num_steps_;
    if (++meeting.num_present == count) {
      work();
      meeting.num_present = 0;
      ++meeting.generation;
    }
    return {&meeting, generation};
  }
  void wait_until_past(const Place& place) {
    while (place.meeting->generation == place.generation) yield();
  }
  void count_arrival(Phases& barrier) {
    ++num_steps_;
    if (++barrier.num_arrived < barrier.count) return;
    barrier.num_arrived = 0;
    barrier.parity ^= 1;
  }
  Phases& started(uint32_t at) {
    const auto found = barriers_.find(at);
    if (found == barriers_.end()) throw std::logic_error("a barrier is used before its start");
    return found->second;
  }

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
    const int part = count > kGroup ? kGroup : count == kGroup ? kWarp : 1;
    // One that goes on first must be asked again after every step of others.
    const bool is_swept_once = timing_.is_first_preferred && count <= kGroup;
    for (bool has_moved = true; has_moved && !(is_swept_once && num_steps_ > before);) {
      has_moved = false;
      for (int at = 0; at < count; at += part) {
        has_moved |= advance(first + (timing_.is_backward ? count - part - at : at), part);
        if (has_moved && part == kGroup && timing_.is_first_preferred) break;
      }
    }
    return num_steps_ > before;
  }
  void yield() {
    const int self = thread_;
    swapcontext(&fibers_[static_cast<size_t>(self)].context, &main_);
  }

  void perform_copies(Fiber& fiber, size_t end) {
    for (; fiber.num_copied < end; ++fiber.num_copied) perform(fiber.copies[fiber.num_copied]);
  }
  void perform(const Copy& copy) {
    if (copy.from == nullptr) {
      std::memset(shared_ + copy.to, 0, copy.bytes);
    } else {
      std::memcpy(shared_ + copy.to, copy.from, copy.bytes);
    }
  }

  /// An element of an operand: `line` along its 64 or kN rows or columns, `k` along those summed.
  float element(const Product& p, uint64_t descriptor, bool is_transposed, int line, int k) const {
    if (descriptor >> 62 != 1) throw std::logic_error("not the 128-byte swizzle");
    const auto field = [&](int shift) {
      return static_cast<uint32_t>(descriptor >> shift & 0x3fff) << 4;
    };
    const int bytes = p.is_e4m3 ? 1 : 2;
    const int dense = (is_transposed ? line : k) * bytes, other = is_transposed ? k : line;
    uint32_t at = field(0) + static_cast<uint32_t>(other / 8) * field(32) +
                  static_cast<uint32_t>(other % 8 * 128 + dense % 128);
    if (is_transposed) at += static_cast<uint32_t>(dense / 128) * field(16);
    at ^= at >> 3 & 0x70;
    if (p.is_e4m3) return c10::detail::fp8e4m3fn_to_fp32_value(shared_[at]);
    uint16_t bits = 0;
    std::memcpy(&bits, shared_ + at, 2);
    return value_of(p, bits);
  }
  static float value_of(const Product& p, uint16_t bits) {
    return p.is_half ? c10::detail::fp16_ieee_to_fp32_value(bits)
                     : c10::detail::f32_from_bits(bits);
  }

  static float register_element(const Product& p, int m, int k) {
    const int thread = m / 16 * 32 + m % 8 * 4 + k % 8 / 2;
    const uint32_t pair = p.registers[static_cast<size_t>(thread)][m % 16 / 8 + k / 8 * 2];
    return value_of(p, static_cast<uint16_t>(pair >> k % 2 * 16));
  }

  void perform(const Product& p) const {
    const int depth = p.is_e4m3 ? 32 : 16;
    std::vector<float> a(static_cast<size_t>(64 * depth)), b(static_cast<size_t>(p.n * depth));
    for (int k = 0; k < depth; ++k) {
      for (int m = 0; m < 64; ++m)
        a[static_cast<size_t>(m * depth + k)] = p.is_a_in_registers
                                                    ? register_element(p, m, k)
                                                    : element(p, p.a, p.is_a_transposed, m, k);
      for (int n = 0; n < p.n; ++n)
        b[static_cast<size_t>(n * depth + k)] = element(p, p.b, p.is_b_transposed, n, k);
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
  std::map<int, Meeting> named_;
  std::map<uint32_t, Phases> barriers_;
  std::vector<uint32_t> lanes_;
  std::vector<std::vector<Product>> products_;
  const std::function<void()>* body_ = nullptr;
  ucontext_t main_ = {};
  int thread_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace patchbench::sm90_emulator

#define PB_DEVICE inline
#define PB_CONSTEXPR constexpr
#define PB_UNROLL
#define PB_ROLLED

namespace patchbench::ops::sm90 {

using sm90_emulator::Machine;

inline int thread_index() { return Machine::running().thread(); }
inline int warp_broadcast(int value) { return value; }
inline void sync_threads() {
  Machine::running().meet(Machine::running().num_threads(), [] {});
}
inline void sync_warp() {
  Machine::running().meet(Machine::kWarp, [] {});
}
inline void named_barrier_sync(int id, int count) { Machine::running().meet_at(id, count, true); }
inline void named_barrier_arrive(int id, int count) {
  Machine::running().meet_at(id, count, false);
}
template <int kCount>
void warpgroup_reg_dealloc() {}
template <int kCount>
void warpgroup_reg_alloc() {}
template <typename T>
T shfl_xor_sync(T value, int mask) {
  return std::bit_cast<T>(Machine::running().shuffle(std::bit_cast<uint32_t>(value), mask));
}
inline int shfl_sync(int value, int lane) {
  return static_cast<int>(Machine::running().shfl_sync(static_cast<uint32_t>(value), lane));
}
inline bool any_sync(bool value) {
  float any = value ? 1.0f : 0.0f;
  for (int mask = 1; mask < Machine::kWarp; mask *= 2) any += shfl_xor_sync(any, mask);
  return any != 0;
}
inline float exp2_of(float value) { return std::exp2(value); }
inline float exp2_ftz(float value) { return value < -126 ? 0.0f : std::exp2(value); }
inline float log2_of(float value) { return std::log2(value); }
inline float rcp_approx(float value) { return 1.0f / value; }
inline void sincos_approx(float angle, float& sine, float& cosine) {
  sine = std::sin(angle);
  cosine = std::cos(angle);
}

inline uint32_t as_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = a | uint64_t{b} << 32;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i)
    bytes |= static_cast<uint32_t>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}

inline float bf16_low(uint32_t pair) {
  return c10::detail::f32_from_bits(static_cast<uint16_t>(pair));
}
inline float bf16_high(uint32_t pair) { return bf16_low(pair >> 16); }
inline uint32_t pack_bf16(float low, float high) {
  return c10::BFloat16(low).x | static_cast<uint32_t>(c10::BFloat16(high).x) << 16;
}

inline uint32_t pack_f16(float low, float high) {
  return c10::Half(low).x | static_cast<uint32_t>(c10::Half(high).x) << 16;
}
inline void e4m3_to_f16(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  const auto value = [&](int i) {
    return c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes >> 8 * i));
  };
  even = pack_f16(value(0), value(2));
  odd = pack_f16(value(1), value(3));
}

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) -
                               Machine::running().shared());
}
inline void e4m3_to_f32(uint32_t bytes, float& low, float& high) {
  low = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes));
  high = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(bytes >> 8));
}

struct alignas(16) Vec128 {
  uint32_t words[4] = {};
};
inline Vec128 load_128(const void* from) {
  Vec128 c;
  std::memcpy(c.words, from, sizeof(c.words));
  return c;
}
inline void store_128(uint32_t to, const Vec128& c) {
  std::memcpy(Machine::running().shared() + to, c.words, sizeof(c.words));
}
inline void store_128(void* to, const Vec128& c) { std::memcpy(to, c.words, sizeof(c.words)); }
inline Vec128 load_shared_128(uint32_t from) {
  return load_128(Machine::running().shared() + from);
}
inline void ldmatrix(uint32_t (&words)[4], uint32_t from) {
  Machine::running().ldmatrix(words, from);
}
inline void ldmatrix_trans(uint32_t (&words)[4], uint32_t from) {
  Machine::running().ldmatrix_trans(words, from);
}
inline void stmatrix(uint32_t to, const uint32_t* words) { Machine::running().stmatrix(to, words); }
inline void cp_async(uint32_t to, const void* from, bool is_valid) {
  Machine::running().copy(to, from, is_valid, 16);
}
inline void cp_async_word(uint32_t to, const void* from, bool is_valid) {
  Machine::running().copy(to, from, is_valid, 4);
}
inline void cp_async_wait_all() { Machine::running().cp_async_wait_all(); }
inline void fence_async_proxy() {}

struct Mbarrier {
  uint64_t state;
};
inline void mbarrier_init(Mbarrier& barrier, int count) {
  Machine::running().mbarrier_init(shared_address(&barrier), count);
}
inline void mbarrier_arrive(Mbarrier& barrier) {
  Machine::running().mbarrier_arrive(shared_address(&barrier));
}
inline void cp_async_mbarrier_arrive(Mbarrier& barrier) {
  Machine::running().cp_async_mbarrier_arrive(shared_address(&barrier));
}
inline void mbarrier_wait(Mbarrier& barrier, int parity) {
  Machine::running().mbarrier_wait(shared_address(&barrier), parity);
}

inline void mbarrier_arrive_warp(Mbarrier& barrier) {
  sync_warp();
  if (thread_index() % 32 == 0) mbarrier_arrive(barrier);
}

inline void atomic_add_f32x4(float* to, float a, float b, float c, float d) {
  to[0] += a;
  to[1] += b;
  to[2] += c;
  to[3] += d;
}

enum class Major { kK = 0, kMn = 1 };
template <typename T>
void warpgroup_fence_operand(T&) {}
template <typename... Accumulators>
void wgmma_fence(Accumulators&...) {}
inline void wgmma_commit() { Machine::running().commit_products(); }
template <int kPending = 0, typename... Accumulators>
void wgmma_wait(Accumulators&...) {
  Machine::running().wait_for_products(kPending);
}
template <int kN, Major kA, Major kB>
void wgmma_ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
  Machine::running().multiply({.n = kN,
                               .is_a_transposed = kA == Major::kMn,
                               .is_b_transposed = kB == Major::kMn,
                               .accumulates = accumulates,
                               .a = a,
                               .b = b},
                              d);
}
template <int kN, Major kB>
void wgmma_rs(float (&d)[kN / 2], const uint32_t* a, uint64_t b, bool accumulates) {
  Machine::running().multiply({.n = kN,
                               .is_b_transposed = kB == Major::kMn,
                               .accumulates = accumulates,
                               .is_a_in_registers = true,
                               .b = b},
                              d, a);
}
inline void wgmma_rs_f16(float (&d)[32], const uint32_t* a, uint64_t b, bool accumulates) {
  Machine::running().multiply(
      {.n = 64, .is_half = true, .accumulates = accumulates, .is_a_in_registers = true, .b = b}, d,
      a);
}
template <int kN>
void wgmma_ss_e4m3(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulates) {
  Machine::running().multiply(
      {.n = kN, .is_e4m3 = true, .accumulates = accumulates, .a = a, .b = b}, d);
}

}  // namespace patchbench::ops::sm90
