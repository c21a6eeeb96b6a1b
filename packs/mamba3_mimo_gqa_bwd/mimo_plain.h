#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "../kernel/checks.h"

/// The arguments of mamba3_mimo_bwd and its plain form: torch operations, chunk by chunk. Formulas:
/// op.h.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

struct MimoOperands {
  Tensor q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v;
  std::optional<Tensor> mimo_z, mimo_o;
  Tensor angles;
  std::optional<Tensor> d, z, cu_seqlens;
};
struct MimoResults {
  Tensor q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z;
};

/// Consecutive tokens that start from a zero state: all batch entries alike, or one packed
/// sequence.
struct Sequence {
  int64_t begin = 0, length = 0;
};

/// In order. With cu_seqlens this reads them on the host.
inline std::vector<Sequence> sequences_of(const MimoOperands& in) {
  const int64_t seqlen = in.q.size(1);
  if (!in.cu_seqlens) return {{0, seqlen}};
  const Tensor cu = in.cu_seqlens->cpu().contiguous();
  const auto* at = cu.data<int32_t>();
  const int64_t count = cu.size(0) - 1;
  PB_CHECK(at[0] == 0 && at[count] == seqlen, "mamba3_mimo_bwd: cu_seqlens must go from 0 to ",
           seqlen, ", got ", at[0], " to ", at[count]);
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < count; ++i) {
    PB_CHECK(at[i] <= at[i + 1], "mamba3_mimo_bwd: cu_seqlens must not decrease, got ", at[i],
             " before ", at[i + 1]);
    sequences.push_back({at[i], at[i + 1] - at[i]});
  }
  return sequences;
}

/// The plain form of one call. Rows of a chunk are (token, rank), heads before rows.
class MimoPlain {
 public:
  /// Adds into `to`, whose tensors are zero, in the wide dtype.
  MimoPlain(const MimoOperands& in, const Tensor& grad_out, const MimoResults& to)
      : in_(in),
        to_(to),
        wide_(in.adt.scalar_type()),
        ranks_(in.q.size(2)),
        heads_per_group_(in.q.size(3) == 0 ? 1 : in.v.size(2) / in.q.size(3)),
        chunk_(std::max<int64_t>(1, ranks_ == 0 ? 1 : 64 / ranks_)),
        grad_out_(grad_out) {}

  void run() {
    for (const Sequence& sequence : sequences_of(in_)) {
      if (sequence.length > 0) run(sequence);
    }
  }

 private:
  struct Chunk {
    int64_t begin, length;
    Tensor q, k, x, g;           // [b, h, rows, n] and [b, h, rows, p]
    Tensor theta;                // [b, h, c, 1, angles]
    Tensor s;                    // [b, h, c]
    Tensor decay;                // e^{cs_i - cs_j} for i > j, else 0 [b, h, c, c]
    Tensor mask;                 // M [b, h, rows, rows]
    Tensor decay_in, decay_out;  // e^{cs}, e^{rev} [b, h, rows, 1]
    Tensor whole;                // e^{cs_end} [b, h, 1, 1]
  };

  /// [b, c, h, width] of a tensor [b, s, h, width], as [b, h, c, 1, width].
  Tensor tokens(const Tensor& t, int64_t begin, int64_t length) const {
    return t.narrow(1, begin, length).to(wide_).transpose(1, 2).unsqueeze(3);
  }
  /// A parameter [h, r, width] in addition.
  static Tensor beside(const Tensor& parameter) { return parameter.unsqueeze(1).unsqueeze(0); }
  Tensor rows(const Tensor& by_token) const { return by_token.flatten(2, 3); }
  Tensor by_token(const Tensor& of_rows) const { return of_rows.unflatten(2, {-1, ranks_}); }
  /// Of rows' values [b, h, rows, width], their sum over a token's: [b, h, c].
  Tensor per_token(const Tensor& of_rows) const { return by_token(of_rows).sum(Ints{3, 4}); }
  Tensor per_row(const Tensor& of_tokens) const {
    return of_tokens.repeat_interleave(ranks_, 2).unsqueeze(-1);
  }

  /// Turns the pairs (n, N/2 + n) by theta, or back by -theta.
  static Tensor rotate(const Tensor& x, const Tensor& theta) {
    const int64_t count = theta.size(-1), half = x.size(-1) / 2;
    const Tensor cos = theta.cos(), sin = theta.sin();
    const Tensor low = x.narrow(-1, 0, count), high = x.narrow(-1, half, count);
    return cat({low * cos - high * sin, x.slice(-1, count, half), low * sin + high * cos,
                x.slice(-1, half + count, x.size(-1))},
               -1);
  }
  /// By theta, of a rotated x and its gradient: [b, h, c, ranks, angles].
  static Tensor turning(const Tensor& x, const Tensor& grad, int64_t count) {
    const int64_t half = x.size(-1) / 2;
    return x.narrow(-1, 0, count) * grad.narrow(-1, half, count) -
           x.narrow(-1, half, count) * grad.narrow(-1, 0, count);
  }

  Tensor projected(const Tensor& t, const Tensor& bias, const Tensor& theta, int64_t begin,
                   int64_t length) const {
    const Tensor per_head =
        t.narrow(1, begin, length).to(wide_).repeat_interleave(heads_per_group_, 3);
    return rows(rotate(per_head.permute({0, 3, 1, 2, 4}) + beside(bias), theta));
  }

  /// The gradient of out, with a rank axis: [b, h, c, ranks or 1, p].
  Tensor grad_tokens(int64_t begin, int64_t length) const {
    if (in_.mimo_o) return tokens(grad_out_, begin, length);
    return grad_out_.narrow(1, begin, length).to(wide_).permute({0, 3, 1, 2, 4});
  }

  Chunk chunk_of(const Sequence& sequence, int64_t begin, int64_t length) const {
    Chunk c{.begin = begin, .length = length};
    c.theta = tokens(in_.angles, begin, length);
    c.q = projected(in_.q, in_.q_bias, c.theta, begin, length);
    c.k = projected(in_.k, in_.k_bias, c.theta, begin, length);
    c.x = rows(tokens(in_.v, begin, length) * beside(in_.mimo_v));
    Tensor g = grad_tokens(begin, length);
    if (in_.mimo_o) g = g * beside(*in_.mimo_o);
    if (in_.z) g = g * (tokens(*in_.z, begin, length) * beside(*in_.mimo_z)).silu();
    c.g = rows(g);

    const Tensor gam = gamma(begin, length);
    Tensor next = zeros_like(gam);
    const int64_t following = std::min(length, sequence.begin + sequence.length - begin - 1);
    next.narrow(2, 0, following).copy_(late(begin + 1, following));
    c.s = gam + next;
    const Tensor cs = in_.adt.narrow(2, begin, length).cumsum(-1);
    const Tensor end = cs.narrow(-1, length - 1, 1);
    c.decay_in = per_row(cs.exp());
    c.decay_out = per_row((end - cs).exp());
    c.whole = end.exp().unsqueeze(-1);
    // Twice lower triangular: e^{cs_i - cs_j} above the diagonal may be infinite.
    c.decay = (cs.unsqueeze(-1) - cs.unsqueeze(-2)).tril(-1).exp().tril(-1);
    c.mask = (c.decay * c.s.unsqueeze(-2) + gam.diag_embed())
                 .repeat_interleave(ranks_, 2)
                 .repeat_interleave(ranks_, 3);
    return c;
  }

  Tensor lambda(int64_t begin, int64_t length) const {
    return in_.trap.narrow(2, begin, length).to(wide_).sigmoid();
  }
  /// l dt, and (1 - l) dt.
  Tensor gamma(int64_t begin, int64_t length) const {
    return lambda(begin, length) * in_.dt.narrow(2, begin, length);
  }
  Tensor late(int64_t begin, int64_t length) const {
    return (1 - lambda(begin, length)) * in_.dt.narrow(2, begin, length);
  }

  void run(const Sequence& sequence) {
    std::vector<Chunk> chunks;
    std::vector<Tensor> states;
    Tensor state = zeros({in_.q.size(0), in_.v.size(2), in_.v.size(3), in_.q.size(4)}, in_.adt);
    for (int64_t at = 0; at < sequence.length; at += chunk_) {
      chunks.push_back(
          chunk_of(sequence, sequence.begin + at, std::min(chunk_, sequence.length - at)));
      const Chunk& c = chunks.back();
      states.push_back(state);
      state = state * c.whole + (c.x * c.decay_out * per_row(c.s)).mT().matmul(c.k);
    }
    grad_s_ = zeros_like(in_.adt.narrow(2, sequence.begin, sequence.length));
    grad_own_ = zeros_like(grad_s_);
    Tensor grad_state = zeros_like(state);
    for (size_t i = chunks.size(); i-- > 0;) {
      const Chunk& c = chunks[i];
      backward(sequence, c, states[i], grad_state);
      grad_state = grad_state * c.whole + (c.g * c.decay_in).mT().matmul(c.q);
    }
    finish_steps(sequence);
  }

  void backward(const Sequence& sequence, const Chunk& c, const Tensor& state,
                const Tensor& grad_state) {
    const Tensor e = c.g.matmul(c.x.mT()), t = c.q.matmul(c.k.mT());
    const Tensor masked_e = e * c.mask, masked_t = t * c.mask;
    const Tensor scale = c.decay_out * per_row(c.s);
    const Tensor carried_q = c.g.matmul(state) * c.decay_in;
    const Tensor carried_k = c.x.matmul(grad_state);
    const Tensor grad_q = carried_q + masked_e.matmul(c.k);
    const Tensor grad_k = carried_k * scale + masked_e.mT().matmul(c.q);
    Tensor grad_x = c.k.matmul(grad_state.mT()) * scale + masked_t.mT().matmul(c.g);
    Tensor y = c.q.matmul(state.mT()) * c.decay_in + masked_t.matmul(c.x);
    if (in_.d) {
      const Tensor d = in_.d->view({1, -1, 1, 1});
      grad_x = grad_x + d * c.g;
      y = y + d * c.x;
      to_.d.add_((c.g * c.x).sum(Ints{0, 2, 3}));
    }
    put_projections(c, y, grad_x);
    put_rotated(c, grad_q, grad_k);
    put_scalars(sequence, c, e * t, per_token(c.q * carried_q),
                per_token(c.k * carried_k * c.decay_out),
                (state * grad_state).sum(Ints{-2, -1}).unsqueeze(-1) * c.whole.squeeze(-1));
  }

  /// v, mimo_v from grad_x; z, mimo_z, mimo_o from y.
  void put_projections(const Chunk& c, const Tensor& y_rows, const Tensor& grad_x_rows) {
    const auto put = [&](const Tensor& to, const Tensor& by_rank) {
      to.narrow(1, c.begin, c.length).copy_(by_rank.sum(Ints{3}).transpose(1, 2));
    };
    const Ints tokens_axes = {0, 2};
    const Tensor v = tokens(in_.v, c.begin, c.length), grad_x = by_token(grad_x_rows);
    put(to_.v, grad_x * beside(in_.mimo_v));
    to_.mimo_v.add_((grad_x * v).sum(tokens_axes));
    const Tensor y = by_token(y_rows);
    Tensor grad = grad_tokens(c.begin, c.length);
    Tensor gate = full(y.shape(), 1, y);
    Tensor z, u, sigmoid;
    if (in_.z) {
      z = tokens(*in_.z, c.begin, c.length);
      u = z * beside(*in_.mimo_z);
      sigmoid = u.sigmoid();
      gate = u * sigmoid;
    }
    if (in_.mimo_o) {
      to_.mimo_o.add_((grad * y * gate).sum(tokens_axes));
      grad = grad * beside(*in_.mimo_o);
    }
    if (!in_.z) return;
    const Tensor grad_u = grad * y * sigmoid * (1 + u * (1 - sigmoid));
    put(to_.z, grad_u * beside(*in_.mimo_z));
    to_.mimo_z.add_((grad_u * z).sum(tokens_axes));
  }

  /// q, k, their biases and the angles, from the gradients of the rotated rows.
  void put_rotated(const Chunk& c, const Tensor& grad_q, const Tensor& grad_k) {
    const int64_t count = in_.angles.size(3);
    const auto one = [&](const Tensor& rotated, const Tensor& grad_rows, const Tensor& to,
                         const Tensor& bias) {
      const Tensor grad = by_token(grad_rows);
      const Tensor back = rotate(grad, -c.theta);
      bias.add_(back.sum(Ints{0, 2}));
      to.narrow(1, c.begin, c.length)
          .copy_(back.unflatten(1, {-1, heads_per_group_}).sum(Ints{2}).permute({0, 2, 3, 1, 4}));
      return turning(by_token(rotated), grad, count).sum(Ints{3});
    };
    const Tensor angles = one(c.q, grad_q, to_.q, to_.q_bias) + one(c.k, grad_k, to_.k, to_.k_bias);
    to_.angles.narrow(1, c.begin, c.length).copy_(angles.transpose(1, 2));
  }

  /// adt, and what finish_steps makes dt and trap of. `read` is e^{cs} <g, S0 q>, `written` e^{rev}
  /// <x, dS k>, `passed` e^{cs_end} <S0, dS>.
  void put_scalars(const Sequence& sequence, const Chunk& c, const Tensor& e_t, const Tensor& read,
                   const Tensor& written, const Tensor& passed) {
    const Tensor pairs = e_t.unflatten(3, {-1, ranks_}).unflatten(2, {-1, ranks_}).sum(Ints{3, 5});
    const Tensor off = pairs * c.decay;
    const Tensor columns = off.sum(Ints{-2});
    const Tensor r = read + (off * c.s.unsqueeze(-2)).sum(Ints{-1}) - c.s * columns;
    const Tensor w = c.s * written;
    to_.adt.narrow(2, c.begin, c.length)
        .copy_(passed + r.flip({-1}).cumsum(-1).flip({-1}) + (w.cumsum(-1) - w));
    const int64_t at = c.begin - sequence.begin;
    grad_s_.narrow(2, at, c.length).copy_(written + columns);
    grad_own_.narrow(2, at, c.length).copy_(pairs.diagonal(0, -2, -1));
  }

  /// dt and trap of a sequence: s_t takes l_t dt_t and, from the token behind, (1 - l) dt.
  void finish_steps(const Sequence& sequence) {
    const Tensor l = lambda(sequence.begin, sequence.length);
    const Tensor dt = in_.dt.narrow(2, sequence.begin, sequence.length);
    const Tensor grad_gamma = grad_s_ + grad_own_;
    Tensor before = zeros_like(grad_s_);
    before.narrow(2, 1, sequence.length - 1).copy_(grad_s_.narrow(2, 0, sequence.length - 1));
    to_.dt.narrow(2, sequence.begin, sequence.length).copy_(grad_gamma * l + before * (1 - l));
    to_.trap.narrow(2, sequence.begin, sequence.length)
        .copy_((grad_gamma - before) * dt * l * (1 - l));
  }

  const MimoOperands& in_;
  const MimoResults& to_;
  ScalarType wide_;
  int64_t ranks_, heads_per_group_, chunk_;
  const Tensor& grad_out_;
  Tensor grad_s_, grad_own_;  // of s and of the own gam, [b, h, length], of one sequence
};

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
