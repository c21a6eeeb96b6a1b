#pragma once
#include <torch/torch.h>

#include <vector>

#include "harness/inputs.h"

/// The backward of the Mamba-3 SISO scan, chunk by chunk, from its formulas, in libtorch alone: the
/// masked product of V and the transposed grad_output is formed for each of the three gradients
/// that it is part of, as the release does, or once.
namespace patchbench::mamba3_siso_bwd_cse {

/// One sequence: where its tokens and its chunks begin.
struct Sequence {
  int64_t batch_idx, start, length, first_chunk;
};

/// How often a chunk forms the product, or how a single one goes wrong.
enum class Product {
  kThreeTimes,       ///< the redundancy: for grad_adt, for grad_k and for grad_q
  kTwice,            ///< a fix that leaves a copy: once for grad_adt, once for grad_k and grad_q
  kOnce,             ///< right
  kUnmasked,         ///< wrong: once, and never masked
  kTransposeLost,    ///< wrong: grad_q multiplies it as grad_k does
  kModifiedInPlace,  ///< wrong: grad_adt multiplies the one product itself by the scores
};

/// Gradients by name, and what was counted on the way.
struct Backward {
  harness::Tensors grads;
  int64_t num_products = 0, num_masks = 0, num_chunks = 0;
};

/// With cs the inclusive sum of adt in the chunk, S its first state, dS the gradient of its last,
/// M[j,i] = e^(cs_i - cs_j) where i > j (else 0), P = (V G^T) M, T = K Q^T, G = grad_output:
///   dK = P Q + e^(cs_end - cs) V dS          dQ = P^T K + e^cs G S
///   dV = (T M) G + e^(cs_end - cs) K dS^T + (qk_dot + d) G
///   d adt from the sums of P T over j and over i, and from both states; d qk_dot = sum_p G V
/// [heads, tokens, .] each. Operands of a product with P, and dS, are rounded to the dtype of q;
/// sums are float32 (fp64 for fp64). Source: derived here from the recurrence of repro.cpp.
class ChunkedBackward {
 public:
  ChunkedBackward(const harness::Tensors& inputs, int64_t chunk, Product form)
      : in_(inputs),
        chunk_(chunk),
        form_(form),
        low_(inputs.at("q").scalar_type()),
        sum_(low_ == at::kDouble ? at::kDouble : at::kFloat) {}

  Backward run(const std::vector<Sequence>& sequences) {
    for (const char* name : {"q", "k", "v", "adt", "qk_dot", "d"}) {
      if (in_.contains(name))
        grads()[std::string("grad_") + name] = at::zeros_like(in_.at(name), sum_);
    }
    std::vector<at::Tensor> first;
    for (size_t i = 0; i < sequences.size(); ++i) {
      at::Tensor d_state = at::zeros_like(state_of(sequences[i], 0));
      if (has_state()) d_state = in_.at("grad_final_state")[static_cast<int64_t>(i)].to(sum_);
      for (int64_t idx = (sequences[i].length - 1) / chunk_; idx >= 0; --idx)
        d_state = chunk_backward(sequences[i], idx, d_state);
      first.push_back(d_state);
    }
    if (has_state()) grads()["grad_state"] = at::stack(first);
    return out_;
  }

 private:
  harness::Tensors& grads() { return out_.grads; }
  bool has_state() const { return in_.contains("grad_final_state"); }
  at::Tensor rounded(const at::Tensor& x) const { return x.to(low_).to(sum_); }
  at::Tensor state_of(const Sequence& s, int64_t idx) const {
    return in_.at("states")[s.batch_idx].select(1, s.first_chunk + idx).to(sum_);
  }

  at::Tensor masked_product(const at::Tensor& v, const at::Tensor& g, const at::Tensor& mask) {
    ++out_.num_products;
    at::Tensor product = v.matmul(g.mT());
    if (form_ == Product::kUnmasked) return product;
    ++out_.num_masks;
    return product.mul_(mask);
  }

  /// The gradient of the chunk's first state.
  at::Tensor chunk_backward(const Sequence& sequence, int64_t idx, const at::Tensor& d_state) {
    ++out_.num_chunks;
    const int64_t begin = idx * chunk_, from = sequence.start + begin,
                  count = std::min(chunk_, sequence.length - begin), b = sequence.batch_idx;
    const auto rows = [&](const char* name) {  // [heads, tokens, .]
      return in_.at(name)[b].narrow(0, from, count).transpose(0, 1).to(sum_);
    };
    const auto scalars = [&](const char* name) {  // [heads, tokens]
      return in_.at(name)[b].narrow(1, from, count).to(sum_);
    };
    const at::Tensor q = rows("q"), k = rows("k"), v = rows("v"), g = rows("grad_out");
    const at::Tensor state = state_of(sequence, idx), low_d_state = rounded(d_state);
    const at::Tensor cs = scalars("adt").cumsum(-1), last = cs.narrow(-1, count - 1, 1);
    const at::Tensor grow = cs.exp().unsqueeze(-1), fade = (last - cs).exp().unsqueeze(-1);
    const at::Tensor mask = (cs.unsqueeze(1) - cs.unsqueeze(2)).clamp_max(0).exp().triu(1);
    const at::Tensor scores = k.matmul(q.mT());

    const at::Tensor for_adt = masked_product(v, g, mask);
    const at::Tensor weighted =
        form_ == Product::kModifiedInPlace ? for_adt.mul_(scores) : for_adt * scores;
    const bool is_again = form_ == Product::kThreeTimes || form_ == Product::kTwice;
    const at::Tensor for_k = is_again ? masked_product(v, g, mask) : for_adt;
    const at::Tensor for_q = form_ == Product::kThreeTimes ? masked_product(v, g, mask) : for_k;

    const at::Tensor v_d_state = v.matmul(low_d_state), g_state = g.matmul(state);
    const at::Tensor of_q = form_ == Product::kTransposeLost ? for_q : for_q.mT();
    const at::Tensor own = (g * v).sum(-1);
    at::Tensor skip = scalars("qk_dot");
    if (in_.contains("d")) skip = skip + in_.at("d").to(sum_).unsqueeze(-1);
    const auto put = [&](const char* name, const at::Tensor& value) {
      grads().at(name)[b].narrow(0, from, count).copy_(value.transpose(0, 1));
    };
    put("grad_k", rounded(for_k).matmul(q) + fade * v_d_state);
    put("grad_q", rounded(of_q).matmul(k) + grow * g_state);
    put("grad_v", rounded(scores * mask).matmul(g) + fade * k.matmul(low_d_state.mT()) +
                      skip.unsqueeze(-1) * g);
    grads().at("grad_qk_dot")[b].narrow(1, from, count).copy_(own);
    if (in_.contains("d")) grads().at("grad_d") += own.sum(-1);

    const at::Tensor at_end = fade.squeeze(-1) * (v_d_state * k).sum(-1);
    const at::Tensor at_token =
        grow.squeeze(-1) * (g_state * q).sum(-1) + weighted.sum(1) - weighted.sum(2);
    const at::Tensor kept = last.exp().unsqueeze(-1);  // [heads, 1, 1]
    const at::Tensor sigma = (kept * state * d_state).sum({1, 2}).unsqueeze(-1);
    const at::Tensor later = at_token.flip(-1).cumsum(-1).flip(-1);
    grads()
        .at("grad_adt")[b]
        .narrow(1, from, count)
        .copy_(sigma + later + at_end.cumsum(-1) - at_end);
    return kept * d_state + (grow * g).mT().matmul(q);
  }

  const harness::Tensors& in_;
  const int64_t chunk_;
  const Product form_;
  const at::ScalarType low_, sum_;
  Backward out_;
};

}  // namespace patchbench::mamba3_siso_bwd_cse
