// patchbench::sparse_mla: the memory it holds, the shapes it gives without data, what it refuses.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <unordered_map>

#include "harness/inputs.h"
#include "packs/op_test.h"
#include "sparse_mla_dims/op.h"

namespace patchbench::sparse_mla_dims_test {
namespace {

using at::Tensor;
using op_test::refusal;
using ops::sparse_mla_dims::kScratchBytes;
using ops::sparse_mla_dims::sparse_mla_backward;
using ops::sparse_mla_dims::sparse_mla_forward;

constexpr double kScale = 0.1;

/// torch's CPU allocator from the first use on, counting the bytes that live.
class LiveBytes : public c10::Allocator {
 public:
  static LiveBytes& get() {
    // Never destroyed: tensors that torch keeps are given back through it.
    static LiveBytes* const one = new LiveBytes;
    return *one;
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    void* data = inner_->raw_allocate(num_bytes);
    const std::lock_guard guard(mutex_);
    sizes_[data] = num_bytes;
    live_ += static_cast<int64_t>(num_bytes);
    peak_ = std::max(peak_, live_);
    return {data, data, raw_deleter(), at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) { get().release(data); };
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    inner_->copy_data(to, from, count);
  }
  /// The most that lived at once since the last call, above what lives now.
  int64_t take_peak() {
    const std::lock_guard guard(mutex_);
    const int64_t above = peak_ - live_;
    peak_ = live_;
    return above;
  }

 private:
  LiveBytes() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  void release(void* data) {
    const std::lock_guard guard(mutex_);
    live_ -= static_cast<int64_t>(sizes_.at(data));
    sizes_.erase(data);
    inner_->raw_deallocate(data);
  }
  c10::Allocator* const inner_;
  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;
  int64_t live_ = 0, peak_ = 0;
};

struct Sizes {
  int64_t seqlen_q, num_heads, topk, head_dim_qk, head_dim_v;
};

/// The most bytes that a forward, and a backward, held besides their operands and results.
std::pair<int64_t, int64_t> scratch_of(const Sizes& s, at::ScalarType type) {
  const auto normal = [&](const char* name, std::vector<int64_t> shape) {
    return harness::Draw(5, name).normal(shape).to(type);
  };
  const Tensor q = normal("q", {1, s.seqlen_q, s.num_heads, s.head_dim_qk});
  const Tensor kv = normal("kv", {1, 256, 1, s.head_dim_qk});
  const Tensor grad_out = normal("grad_out", {1, s.seqlen_q, s.num_heads, s.head_dim_v});
  const Tensor indices =
      harness::Draw(5, "at").integers({1, s.seqlen_q, 1, s.topk}, 0, 256).to(at::kInt);
  LiveBytes& bytes = LiveBytes::get();
  bytes.take_peak();
  const auto [out, lse, remainder] = sparse_mla_forward(q, kv, indices, kScale, s.head_dim_v);
  const int64_t forward = bytes.take_peak();
  const auto grads = sparse_mla_backward(grad_out, out, remainder, lse, q, kv, indices, kScale);
  const int64_t sum_of_grad_kv = kv.numel() * 4;
  return {forward, bytes.take_peak() - sum_of_grad_kv};
}

TEST(SparseMlaMemory, HoldsAtMostItsScratchHoweverManyQueries) {
  // All queries at once would hold 1.5 to 2 times as much.
  for (const Sizes& s : {Sizes{24, 4, 2048, 576, 512}, Sizes{512, 64, 512, 16, 16},
                         Sizes{128, 128, 128, 512, 512}}) {
    const auto [forward, backward] = scratch_of(s, at::kBFloat16);
    EXPECT_LE(forward, kScratchBytes) << s.seqlen_q;
    EXPECT_LE(backward, kScratchBytes) << s.seqlen_q;
    // Chunks of a few queries would be slow, and the bound a poor one.
    EXPECT_GE(backward, kScratchBytes / 4) << s.seqlen_q;
  }
}

struct Call {
  Tensor q = torch::zeros({2, 3, 4, 128}, at::kBFloat16);
  Tensor kv = torch::zeros({2, 9, 1, 128}, at::kBFloat16);
  Tensor indices = torch::zeros({2, 3, 1, 5}, at::kInt);
  int64_t head_dim_v = 64;
};

TEST(SparseMlaOp, RefusesAForwardInOneLine) {
  const auto refused = [](const std::function<void(Call&)>& change) {
    Call c;
    change(c);
    return refusal([&] { sparse_mla_forward(c.q, c.kv, c.indices, kScale, c.head_dim_v); });
  };
  EXPECT_EQ(refused([](Call&) {}), "nothing was refused");
  EXPECT_EQ(refused([](Call& c) { c.q = c.q[0]; }),
            "sparse_mla: q must have 4 axes [batch, seqlen_q, num_heads, head_dim_qk], got 3");
  EXPECT_EQ(refused([](Call& c) { c.kv = c.kv.squeeze(2); }),
            "sparse_mla: kv must have 4 axes [batch, seqlen_k, 1, head_dim_qk], got 3");
  EXPECT_EQ(refused([](Call& c) { c.indices = c.indices[0]; }),
            "sparse_mla: topk_indices must have 4 axes [batch, seqlen_q, 1, topk], got 3");
  for (const int64_t head_dim : {0, 8, 120, 592})
    EXPECT_EQ(refused([&](Call& c) { c.q = torch::zeros({2, 3, 4, head_dim}, at::kBFloat16); }),
              "sparse_mla: head_dim_qk must be a multiple of 16 from 16 to 576, got " +
                  std::to_string(head_dim));
  for (const int64_t head_dim_v : {-16, 0, 72, 129, 144})
    EXPECT_EQ(refused([&](Call& c) { c.head_dim_v = head_dim_v; }),
              "sparse_mla: head_dim_v must be a multiple of 16 from 16 to min(512, head_dim_qk) = "
              "128, got " +
                  std::to_string(head_dim_v));
  EXPECT_EQ(refused([&](Call& c) {
              c.q = torch::zeros({2, 3, 4, 576}, at::kBFloat16);
              c.head_dim_v = 528;
            }),
            "sparse_mla: head_dim_v must be a multiple of 16 from 16 to min(512, head_dim_qk) = "
            "512, got 528");
  EXPECT_EQ(refused([](Call& c) { c.q = c.q.to(at::kInt); }),
            "sparse_mla: q must have dtype bfloat16, float16, float32 or float64, got int32");
  EXPECT_EQ(refused([](Call& c) { c.kv = c.kv.to(at::kFloat); }),
            "sparse_mla: kv must have dtype bfloat16, got float32");
  EXPECT_EQ(refused([](Call& c) { c.kv = torch::zeros({2, 9, 2, 128}, at::kBFloat16); }),
            "sparse_mla: kv must have shape [2, 9, 1, 128], got [2, 9, 2, 128]");
  EXPECT_EQ(refused([](Call& c) { c.kv = c.kv.narrow(3, 0, 64); }),
            "sparse_mla: kv must have shape [2, 9, 1, 128], got [2, 9, 1, 64]");
  EXPECT_EQ(refused([](Call& c) { c.indices = c.indices.narrow(1, 0, 2); }),
            "sparse_mla: topk_indices must have shape [2, 3, 1, 5], got [2, 2, 1, 5]");
  EXPECT_EQ(refused([](Call& c) { c.indices = c.indices.to(at::kLong); }),
            "sparse_mla: topk_indices must have dtype int32, got int64");
}

TEST(SparseMlaOp, LeavesOutTheGradientThatNobodyWants) {
  const auto normal = [](const char* name, std::vector<int64_t> shape) {
    return harness::Draw(6, name).normal(shape).to(at::kBFloat16);
  };
  const Tensor q = normal("q", {1, 3, 4, 64}), kv = normal("kv", {1, 9, 1, 64});
  const Tensor indices = torch::tensor({{{{0, 8}}, {{2, 2}}, {{-1, 4}}}}, at::kInt);
  const auto [out, lse, remainder] = sparse_mla_forward(q, kv, indices, kScale, 64);
  const auto grads = [&, o = out, l = lse, r = remainder](std::array<bool, 2> mask) {
    return sparse_mla_backward(o, o, r, l, q, kv, indices, kScale, "exact", "bf16", mask);
  };
  const auto [grad_q, grad_kv] = grads({true, true});
  const auto [query_alone, no_keys] = grads({true, false});
  const auto [no_query, keys_alone] = grads({false, true});
  EXPECT_TRUE(at::equal(query_alone, grad_q));
  EXPECT_TRUE(at::equal(keys_alone, grad_kv));
  EXPECT_FALSE(no_keys.defined() || no_query.defined());
}

TEST(SparseMlaOp, RefusesABackwardInOneLine) {
  const Call c;
  const auto [out, lse, remainder] = sparse_mla_forward(c.q, c.kv, c.indices, kScale, c.head_dim_v);
  const auto refused = [&](const Tensor& grad_out, const Tensor& o, const Tensor& r,
                           const Tensor& l, const char* delta, const char* staging) {
    return refusal([&] {
      sparse_mla_backward(grad_out, o, r, l, c.q, c.kv, c.indices, kScale, delta, staging);
    });
  };
  const Tensor none = torch::empty({0}, at::kBFloat16);
  EXPECT_EQ(refused(out, out, none, lse, "rounded", "split"), "nothing was refused");
  EXPECT_EQ(refused(out, out, none, lse, "exact", "bf16"),
            "sparse_mla_backward: out_remainder must have shape [2, 3, 4, 64], got [0]");
  EXPECT_EQ(refused(out.narrow(3, 0, 32), out, remainder, lse, "exact", "bf16"),
            "sparse_mla_backward: grad_out must have shape [2, 3, 4, 64], got [2, 3, 4, 32]");
  EXPECT_EQ(refused(out.to(at::kFloat), out, remainder, lse, "exact", "bf16"),
            "sparse_mla_backward: grad_out must have dtype bfloat16, got float32");
  EXPECT_EQ(refused(out, out[0], remainder, lse, "exact", "bf16"),
            "sparse_mla_backward: out must have 4 axes [batch, seqlen_q, num_heads, head_dim_v], "
            "got 3");
  EXPECT_EQ(refused(out, out, remainder, lse.to(at::kBFloat16), "exact", "bf16"),
            "sparse_mla_backward: lse must have dtype float32, got bfloat16");
  EXPECT_EQ(refused(out, out, remainder, lse, "precise", "bf16"),
            "sparse_mla_backward: delta must be exact or rounded, got precise");
  EXPECT_EQ(refused(out, out, remainder, lse, "exact", "fp32"),
            "sparse_mla_backward: staging must be bf16 or split, got fp32");
}

}  // namespace
}  // namespace patchbench::sparse_mla_dims_test
