#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "sparse_mla_pdp_precision/arithmetic.h"

/// One causal pass over the longest context: the gradients of the tracked keys as each arithmetic
/// sums them, kept at every context length on the way.
namespace patchbench::sparse_mla_pdp_precision {

/// kExact and one error source each; kToday has all that the kernels have, kUnstaged all but the
/// staging of p and ds. No kernel has the last two: sums in bf16 do drift, and kToday with a
/// staging of four bits, half of bf16's, does cost.
enum class Source {
  kExact,
  kPdpBf16,
  kDeltaBf16,
  kSumsFp32,
  kSplit,
  kToday,
  kUnstaged,
  kSumsBf16,
  kStagedCoarsely,
};
constexpr std::size_t kNumSources = 9;

/// Tracked: the sinks, then `kNumRandom` keys that rows select at random; all lie in the shortest
/// context.
constexpr int64_t kNumRandom = 60, kRandomStride = 16;
constexpr int64_t kNumTracked = kNumSinks + kNumRandom;
inline int64_t tracked_key(int64_t t) {
  return t < kNumSinks ? t : kNumSinks + (t - kNumSinks) * kRandomStride;
}

/// The two sets of tracked keys: "sink" and "random".
struct KeySet {
  const char* name;
  int64_t first, count;
};
constexpr std::array kKeySets = {KeySet{"sink", 0, kNumSinks},
                                 KeySet{"random", kNumSinks, kNumRandom}};

struct Snapshot {
  int64_t context;
  std::array<Tensor, kNumSources> grad_kv;  ///< [tracked, d] fp64
  /// By key set: sqrt(sum |t|^2) / |sum t| over the rounded products t that a gradient is the sum
  /// of: what independent relative errors of the t come to in the sum, as a multiple of theirs.
  std::array<double, kKeySets.size()> kappa;
};

class Pass {
 public:
  Pass(const Tensors& inputs, const std::vector<int64_t>& contexts)
      : q_(inputs.at("q").to(at::kDouble)),
        kv_(inputs.at("kv").to(at::kDouble)),
        grad_out_(inputs.at("grad_out").to(at::kDouble)),
        indices_(inputs.at("indices")),
        sums_(torch::zeros({kNumSources, kNumTracked, kv_.size(1)}, at::kDouble)),
        squares_(torch::zeros({kNumTracked}, at::kDouble)),
        place_(static_cast<std::size_t>(kv_.size(0)), -1) {
    for (int64_t t = 0; t < kNumTracked; ++t)
      place_.at(static_cast<std::size_t>(tracked_key(t))) = t;
    int64_t row = 0;
    for (const int64_t context : contexts) {
      for (; row < context; row += kRows) add_rows(row, std::min(kRows, context - row));
      row = context;
      snapshots.push_back(taken(context));
    }
  }

  std::vector<Snapshot> snapshots;

 private:
  static constexpr int64_t kRows = 64;  ///< at a time: 10 MB of gathered keys at k 256, d 80

  void add_rows(int64_t first, int64_t count) {
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, count); };
    const Terms terms = terms_of(part(q_), kv_, part(grad_out_), part(indices_));
    const Tensor p = terms.p, p_bf16 = to_bf16(p), p_rest = to_bf16(p - p_bf16);
    const Tensor ds = terms.ds(terms.delta), ds_bf16 = to_bf16(ds);
    const Tensor ds_rest = to_bf16(ds - ds_bf16), ds_off = terms.ds(terms.delta_of_bf16);
    const std::array<std::pair<Tensor, Tensor>, kNumSources> weights = {{
        {ds, p},
        {ds_bf16, p_bf16},
        {ds_off, p},
        {ds, p},
        {ds_bf16 + ds_rest, p_bf16 + p_rest},
        {to_bf16(ds_off), p_bf16},
        {ds_off, p},
        {ds, p},
        {to_bits(ds_off, 4), to_bits(p, 4)},
    }};
    const auto* index = indices_.data_ptr<int32_t>() + first * indices_.size(1);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t j = 0; j < indices_.size(1); ++j, ++index) {
        const int64_t t = *index < 0 ? -1 : place_[static_cast<std::size_t>(*index)];
        if (t < 0) continue;
        for (std::size_t source = 0; source < kNumSources; ++source)
          add_slot(source, t, first + r, weights[source].first.const_data_ptr<double>(),
                   weights[source].second.const_data_ptr<double>(), r, j);
        add_squares(t, first + r, ds.const_data_ptr<double>(), p.const_data_ptr<double>(), r, j);
      }
    }
  }

  /// Adds what row `row` gives to tracked key `t` through slot `j`: one addition for all heads, as
  /// the kernels' atomics do it.
  void add_slot(std::size_t source, int64_t t, int64_t row, const double* ds, const double* p,
                int64_t r, int64_t j) {
    const int64_t heads = q_.size(1), width = q_.size(2), width_v = grad_out_.size(2);
    const int64_t topk = indices_.size(1);
    std::vector<double> term(static_cast<std::size_t>(width), 0.0);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (r * heads + h) * topk + j;
      const double* q = q_.const_data_ptr<double>() + (row * heads + h) * width;
      const double* grad = grad_out_.const_data_ptr<double>() + (row * heads + h) * width_v;
      for (int64_t d = 0; d < width; ++d) term[static_cast<std::size_t>(d)] += ds[at] * q[d];
      for (int64_t d = 0; d < width_v; ++d) term[static_cast<std::size_t>(d)] += p[at] * grad[d];
    }
    double* sum =
        sums_.data_ptr<double>() + (static_cast<int64_t>(source) * kNumTracked + t) * width;
    const auto kind = static_cast<Source>(source);
    const bool is_fp32 = kind == Source::kSumsFp32 || kind == Source::kToday ||
                         kind == Source::kUnstaged || kind == Source::kStagedCoarsely;
    for (int64_t d = 0; d < width; ++d) {
      const double next = sum[d] + term[static_cast<std::size_t>(d)];
      sum[d] = is_fp32 ? static_cast<float>(next)
               : kind == Source::kSumsBf16
                   ? static_cast<double>(c10::BFloat16(static_cast<float>(next)))
                   : next;
    }
  }

  void add_squares(int64_t t, int64_t row, const double* ds, const double* p, int64_t r,
                   int64_t j) {
    const int64_t heads = q_.size(1), topk = indices_.size(1);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (r * heads + h) * topk + j;
      const double a = ds[at] * norm(q_, row, h), b = p[at] * norm(grad_out_, row, h);
      squares_.data_ptr<double>()[t] += a * a + b * b;
    }
  }

  static double norm(const Tensor& x, int64_t row, int64_t h) {
    const int64_t width = x.size(2);
    const double* values = x.const_data_ptr<double>() + (row * x.size(1) + h) * width;
    double sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += values[d] * values[d];
    return std::sqrt(sum);
  }

  Snapshot taken(int64_t context) const {
    Snapshot snapshot{context, {}, {}};
    for (std::size_t source = 0; source < kNumSources; ++source)
      snapshot.grad_kv[source] = sums_[static_cast<int64_t>(source)].clone();
    for (std::size_t i = 0; i < kKeySets.size(); ++i) {
      const KeySet& set = kKeySets[i];
      const double size = sums_[0].narrow(0, set.first, set.count).norm().item<double>();
      const double squares = squares_.narrow(0, set.first, set.count).sum().item<double>();
      snapshot.kappa[i] = std::sqrt(squares) / size;
    }
    return snapshot;
  }

  Tensor q_, kv_, grad_out_, indices_, sums_, squares_;
  std::vector<int64_t> place_;
};

}  // namespace patchbench::sparse_mla_pdp_precision
