// Longer than 400 lines: one class, whose parts share the state of a machine.
#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

/// A host's own sm_90, for sm90_emulator.h: one cluster of CTAs of some warpgroups, each thread a
/// fiber that runs until it must wait for others. Products read shared memory by their descriptors,
/// as the PTX manual describes the 128-byte swizzle. What is asynchronous happens as early or as
/// late as it may, and threads take turns in either order, so that a barrier or a wait that is
/// missing shows.
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

  /// `shared_bytes` and `num_threads`: of a CTA.
  Machine(size_t shared_bytes, Timing timing, int num_threads = 256, int num_ctas = 1)
      : timing_(timing),
        num_threads_(num_threads),
        cta_bytes_((shared_bytes + 1023) / 1024 * 1024),
        storage_(cta_bytes_ * static_cast<size_t>(num_ctas) + 1024, 0xff),
        fibers_(static_cast<size_t>(num_threads * num_ctas)),
        lanes_(fibers_.size()),
        products_(fibers_.size() / kGroup) {
    // A bfloat16 of all ones is NaN: an element that nobody wrote shows in the results.
    const auto at = reinterpret_cast<uintptr_t>(storage_.data());
    shared_ = storage_.data() + (1024 - at % 1024) % 1024;
  }

  /// Of the CTA of the running thread.
  unsigned char* shared() { return shared_ + base_of(thread_); }
  int thread() const { return thread_ % num_threads_; }
  int num_threads() const { return num_threads_; }
  int cta() const { return thread_ / num_threads_; }
  static Machine& running() { return *running_; }

  /// Runs `body` as every thread; throws where threads wait for each other in vain.
  void run(const std::function<void()>& body) {
    running_ = this;
    body_ = &body;
    for (Fiber& fiber : fibers_) start(fiber);
    while (advance(0, static_cast<int>(fibers_.size()))) continue;
    for (const Fiber& fiber : fibers_)
      if (!fiber.is_done) throw std::logic_error("threads wait in vain");
  }

  /// Waits for all threads of all CTAs.
  void meet_cluster() {
    meet(static_cast<int>(fibers_.size()), [] {});
  }
  /// Waits for the `count` threads around this one; the last to come does `work`.
  void meet(int count, const std::function<void()>& work) {
    wait_until_past(join(meetings_[{count, thread_ / count}], count, work));
  }
  /// The same of any `count` threads, by the barrier's name; who does not wait goes on.
  void meet_at(int id, int count, bool waits) {
    const VerdictKey place = join(named_[{cta(), id}], count, [] {});
    if (waits) wait_until_past(place);
  }

  /// Addresses of the whole cluster: the rank of the CTA and one in the upper bits.
  static constexpr int kRankBit = 24;
  static uint32_t cluster_address(uint32_t at, int rank) {
    return at | static_cast<uint32_t>(rank + 1) << kRankBit;
  }
  void store_cluster(uint32_t at, const void* from, size_t bytes) {
    std::memcpy(shared_ + absolute(at), from, bytes);
  }
  /// Stores, and counts the bytes at a barrier.
  void store_async(uint32_t at, const std::array<uint32_t, 4>& words, uint32_t barrier) {
    const Store store{absolute(at), words};
    Phases& phases = started(barrier);
    ++num_steps_;
    if (are_copies_late()) return phases.stores.push_back(store);
    perform(store, phases);
    // The other CTA may be ahead by all that its barriers allow.
    if (timing_.is_first_preferred) yield();
  }

  /// The barriers that lie in shared memory, by address.
  void mbarrier_init(uint32_t at, int count) {
    if (!barriers_.emplace(absolute(at), Phases{.count = count}).second)
      throw std::logic_error("a barrier is started twice");
  }
  void mbarrier_arrive(uint32_t at, int64_t num_bytes = 0) {
    Phases& barrier = started(at);
    barrier.num_bytes += num_bytes;
    ++barrier.num_arrived;
    end_phase(barrier);
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
        ++barrier.num_arrived;
        end_phase(barrier);
      }
      for (const Store& store : std::exchange(barrier.stores, {})) perform(store, barrier);
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
      std::memcpy(&words[i], shared() + at + lane % 4 * 4, 4);
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
        std::memcpy(&pairs[j], shared() + at + lane / 4 * 2, 2);
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
      std::memcpy(shared() + at + lane % 4 * 4, &words[i], 4);
    }
    meet(kWarp, [] {});
  }

  void copy(uint32_t to, const void* from, bool is_valid, size_t bytes) {
    const Copy copy{absolute(to), is_valid ? from : nullptr, bytes};
    if (!are_copies_late()) return perform(copy);
    fibers_[static_cast<size_t>(thread_)].copies.push_back(copy);
  }
  void cp_async_wait_all() {
    Fiber& fiber = fibers_[static_cast<size_t>(thread_)];
    perform_copies(fiber, fiber.copies.size());
  }

  struct Product {
    int n = 0, num_issued = 0;
    size_t base = 0;  ///< of the shared memory
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
      queue.back().base = base_of(thread_);
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
    size_t to;
    const void* from;
    size_t bytes;
  };
  struct Store {
    size_t to;
    std::array<uint32_t, 4> words;
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
  struct VerdictKey {
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
    int64_t num_bytes = 0;                       ///< that are yet to be stored
    std::vector<Arrival> arrivals;
    std::vector<Store> stores;
  };

  size_t base_of(int thread) const {
    return static_cast<size_t>(thread / num_threads_) * cta_bytes_;
  }
  /// The place of an address, of this CTA or of the cluster.
  size_t absolute(uint32_t at) const {
    const uint32_t rank = at >> kRankBit;
    if (rank == 0) return base_of(thread_) + at;
    return (rank - 1) * cta_bytes_ + (at & ((1u << kRankBit) - 1));
  }

  VerdictKey join(Meeting& meeting, int count, const std::function<void()>& work) {
    const int64_t generation = meeting.generation;
    ++num_steps_;
    if (++meeting.num_present == count) {
      work();
      meeting.num_present = 0;
      ++meeting.generation;
    }
    return {&meeting, generation};
  }
  void wait_until_past(const VerdictKey& place) {
    while (place.meeting->generation == place.generation) yield();
  }
  void end_phase(Phases& barrier) {
    ++num_steps_;
    if (barrier.num_arrived > barrier.count) throw std::logic_error("an arrival too many");
    if (barrier.num_arrived < barrier.count || barrier.num_bytes != 0) return;
    barrier.num_arrived = 0;
    barrier.parity ^= 1;
  }
  void perform(const Store& store, Phases& barrier) {
    std::memcpy(shared_ + store.to, store.words.data(), sizeof(store.words));
    barrier.num_bytes -= static_cast<int64_t>(sizeof(store.words));
    end_phase(barrier);
  }
  Phases& started(uint32_t at) {
    const auto found = barriers_.find(absolute(at));
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
    const unsigned char* const shared = shared_ + p.base;
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
    if (p.is_e4m3) return c10::detail::fp8e4m3fn_to_fp32_value(shared[at]);
    uint16_t bits = 0;
    std::memcpy(&bits, shared + at, 2);
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
  int num_threads_;
  size_t cta_bytes_;
  std::vector<unsigned char> storage_;
  unsigned char* shared_ = nullptr;
  std::vector<Fiber> fibers_;
  std::map<std::pair<int, int>, Meeting> meetings_;
  std::map<std::pair<int, int>, Meeting> named_;
  std::map<uint32_t, Phases> barriers_;
  std::vector<uint32_t> lanes_;
  std::vector<std::vector<Product>> products_;
  const std::function<void()>* body_ = nullptr;
  ucontext_t main_ = {};
  int thread_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace patchbench::sm90_emulator
