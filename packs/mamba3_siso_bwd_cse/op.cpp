// patchbench::mamba3_siso_* on torch's stable ABI. What its functions do: op.h.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "kernel.cuh"

namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

using OptionalTensor = std::optional<Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_siso_bwd_cse";
constexpr const char* kNeeds =
    "bfloat16 or float16, chunk_size 64, head dims of 32, 64 or 128, and compute capability 8.0 "
    "with "
    "150 KiB of shared memory a CTA";

/// The arguments of the ops: op.h.
struct SisoInputs {
  Tensor q, k, v, adt, qk_dot;
  OptionalTensor d, cu_seqlens;
  int64_t chunk_size = 64;
};
struct SisoSaved {
  Tensor grad_out, states;
  OptionalTensor grad_final_state;
};

#ifdef PATCHBENCH_CUDA
/// The extents alone.
SisoBackward extents_of(const SisoInputs& in) {
  SisoBackward problem;
  problem.batch = in.q.size(0);
  problem.seqlen = in.q.size(1);
  problem.num_heads = in.q.size(2);
  problem.head_dim_qk = in.q.size(3);
  problem.head_dim_v = in.v.size(3);
  problem.num_sequences = in.cu_seqlens ? in.cu_seqlens->size(0) - 1 : problem.batch;
  problem.num_chunks = (in.cu_seqlens ? problem.num_sequences : 1) + problem.seqlen / kChunk;
  return problem;
}
#endif

bool has_kernel(const SisoInputs& in) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  const auto type = in.q.scalar_type();
  if (in.q.is_cuda() && in.chunk_size == kChunk && (type == kBFloat16 || type == kHalf)) {
    const SisoBackward problem = extents_of(in);
    const Gpu gpu = gpu_of(in.q);
    return is_served(problem) && gpu.major >= 8 && gpu.shared_bytes >= shared_bytes(problem);
  }
#else
  static_cast<void>(in);
#endif
  return false;
}

// ---- checks ----

void check_inputs(const char* op, const SisoInputs& in) {
  const auto& [q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size] = in;
  check_axes(op, "q", q, 4, "[batch, seqlen, num_heads, head_dim_qk]");
  const auto type = q.scalar_type();
  PB_CHECK(type == kFloat || type == kBFloat16 || type == kHalf, op,
           ": q must have dtype float32, bfloat16 or float16, got ", text_of(type));
  const auto b = q.size(0), s = q.size(1), h = q.size(2);
  check_tensor(op, "k", k, {b, s, h, q.size(3)}, type, q);
  PB_CHECK(v.dim() == 4 && v.size(0) == b && v.size(1) == s && v.size(2) == h, op,
           ": v must have shape [", b, ", ", s, ", ", h, ", head_dim_v], got ", text_of(v.shape()));
  check_tensor(op, "v", v, {b, s, h, v.size(3)}, type, q);
  check_tensor(op, "adt", adt, {b, h, s}, kFloat, q);
  check_tensor(op, "qk_dot", qk_dot, {b, h, s}, kFloat, q);
  if (d) check_tensor(op, "d", *d, {h}, kFloat, q);
  if (cu_seqlens) {
    PB_CHECK(cu_seqlens->dim() == 1 && cu_seqlens->size(0) >= 1, op,
             ": cu_seqlens must have shape [num_sequences + 1], got ",
             text_of(cu_seqlens->shape()));
    check_tensor(op, "cu_seqlens", *cu_seqlens, {cu_seqlens->size(0)}, kInt, q);
    PB_CHECK(b == 1, op, ": cu_seqlens needs batch 1, got ", b);
  }
  PB_CHECK(chunk_size >= 1, op, ": chunk_size must be at least 1, got ", chunk_size);
}

int64_t num_sequences(const SisoInputs& in) {
  return in.cu_seqlens ? in.cu_seqlens->size(0) - 1 : in.q.size(0);
}

Ints state_shape(const SisoInputs& in) {
  return {num_sequences(in), in.q.size(2), in.v.size(3), in.q.size(3)};
}

/// Packed: a bound on sum ceil(length / chunk_size) that needs no look at the lengths.
int64_t num_chunks(const SisoInputs& in) {
  const auto seqlen = in.q.size(1);
  if (in.cu_seqlens) return num_sequences(in) + seqlen / in.chunk_size;
  return (seqlen + (in.chunk_size - 1)) / in.chunk_size;
}

void check_backward(const SisoInputs& in, const SisoSaved& saved) {
  const char* op = "mamba3_siso_bwd";
  check_inputs(op, in);
  const Tensor& q = in.q;
  const auto& [grad_out, states, grad_final_state] = saved;
  check_tensor(op, "grad_out", grad_out, in.v.shape(), q.scalar_type(), q);
  check_axes(op, "states", states, 5, "[batch, num_heads, num_chunks, head_dim_v, head_dim_qk]");
  const auto chunks = in.cu_seqlens ? states.size(2) : num_chunks(in);
  check_tensor(op, "states", states, {q.size(0), q.size(2), chunks, in.v.size(3), q.size(3)},
               q.scalar_type(), q);
  if (grad_final_state)
    check_tensor(op, "grad_final_state", *grad_final_state, state_shape(in), kFloat, q);
}

// ---- the plain form ----

/// Consecutive tokens that start from one state: all batch entries alike, or one packed sequence.
struct Sequence {
  int64_t index = 0, begin = 0, length = 0, first_chunk = 0;
};

/// In order. With cu_seqlens this reads them on the host.
std::vector<Sequence> sequences_of(const char* op, const SisoInputs& in) {
  const int64_t seqlen = in.q.size(1);
  if (!in.cu_seqlens) return {{.length = seqlen}};
  const Tensor cu = in.cu_seqlens->cpu().contiguous();
  const auto* at = cu.data<int32_t>();
  const int64_t count = cu.size(0) - 1;
  PB_CHECK(at[0] == 0 && at[count] == seqlen, op, ": cu_seqlens must go from 0 to ", seqlen,
           ", got ", at[0], " to ", at[count]);
  std::vector<Sequence> sequences;
  int64_t chunks = 0;
  for (int64_t i = 0; i < count; ++i) {
    PB_CHECK(at[i] <= at[i + 1], op, ": cu_seqlens must not decrease, got ", at[i], " before ",
             at[i + 1]);
    sequences.push_back(
        {.index = i, .begin = at[i], .length = at[i + 1] - at[i], .first_chunk = chunks});
    chunks += (sequences.back().length + in.chunk_size - 1) / in.chunk_size;
  }
  return sequences;
}

/// One chunk in float32, heads before tokens.
struct ChunkTensors {
  Tensor q, k, v;    // [b, h, c, n] and [b, h, c, p]
  Tensor decay_in;   // e^{cs} [b, h, c]
  Tensor decay_out;  // e^{rev}
  Tensor whole;      // e^{cs_end} [b, h, 1, 1]
  Tensor mask;       // M [b, h, c, c]
  Tensor direct;     // d + qk_dot [b, h, c]
};

Tensor tokens(const Tensor& tensor, int64_t begin, int64_t length) {
  return tensor.narrow(1, begin, length).to(kFloat).transpose(1, 2);
}

ChunkTensors chunk_tensors(const SisoInputs& in, int64_t begin, int64_t length) {
  ChunkTensors c;
  c.q = tokens(in.q, begin, length);
  c.k = tokens(in.k, begin, length);
  c.v = tokens(in.v, begin, length);
  // Sums in float64: in float32 the difference of two has the error of the larger, which grows with
  // the chunk.
  const Tensor cs = in.adt.narrow(2, begin, length).to(kDouble).cumsum(-1);
  const Tensor end = cs.narrow(-1, length - 1, 1);
  c.decay_in = cs.to(kFloat).exp();
  c.decay_out = (end - cs).to(kFloat).exp();
  c.whole = end.to(kFloat).exp().unsqueeze(-1);
  // Twice lower triangular: e^{cs_i - cs_j} above the diagonal may be infinite.
  c.mask = (cs.unsqueeze(-1) - cs.unsqueeze(-2)).to(kFloat).tril(-1).exp().tril(-1);
  c.direct = in.qk_dot.narrow(2, begin, length);
  if (in.d) c.direct = c.direct + in.d->view({1, -1, 1});
  return c;
}

/// Calls `body(chunk, tensors, begin, length)` for the chunks of one sequence, first to last or
/// last to first; `chunk` counts the chunks of all sequences.
enum class Order { kForwards, kBackwards };
template <typename Body>
void for_chunks(const SisoInputs& in, const Sequence& sequence, Order order, const Body& body) {
  const int64_t count = (sequence.length + in.chunk_size - 1) / in.chunk_size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t c = order == Order::kForwards ? i : count - 1 - i;
    const int64_t offset = c * in.chunk_size;
    const int64_t length = std::min(in.chunk_size, sequence.length - offset);
    body(sequence.first_chunk + c, chunk_tensors(in, sequence.begin + offset, length),
         sequence.begin + offset, length);
  }
}

/// The state of one sequence, [b or 1, h, p, n], which the caller may change.
Tensor state_of(const OptionalTensor& states, const SisoInputs& in, const Sequence& sequence) {
  const int64_t rows = in.cu_seqlens ? 1 : in.q.size(0);
  if (states) return states->narrow(0, sequence.index, rows).to(kFloat);
  return zeros({rows, in.q.size(2), in.v.size(3), in.q.size(3)}, in.adt);
}

void forward_plain(const SisoInputs& in, const OptionalTensor& initial_state, const Triple& to) {
  const auto& [y, final_state, states] = to;
  for (const Sequence& sequence : sequences_of("mamba3_siso", in)) {
    Tensor state = state_of(initial_state, in, sequence);
    for_chunks(in, sequence, Order::kForwards,
               [&](int64_t chunk, const ChunkTensors& c, int64_t begin, int64_t length) {
                 states.select(2, chunk).copy_(state);
                 const Tensor masked_t = c.q.matmul(c.k.mT()) * c.mask;
                 const Tensor carried = c.q.matmul(state.mT()) * c.decay_in.unsqueeze(-1);
                 const Tensor own = masked_t.matmul(c.v) + c.direct.unsqueeze(-1) * c.v;
                 y.narrow(1, begin, length).copy_((carried + own).transpose(1, 2));
                 state = state * c.whole + (c.v * c.decay_out.unsqueeze(-1)).mT().matmul(c.k);
               });
    final_state.narrow(0, sequence.index, state.size(0)).copy_(state);
  }
}

/// Gradients of one chunk; `grad_state` is that of its end and becomes that of its start.
void backward_chunk(const ChunkTensors& c, const Tensor& grad_out, const Tensor& state,
                    Tensor& grad_state, const Gradients& to, int64_t begin, int64_t length) {
  const auto& [grad_q, grad_k, grad_v, grad_adt, grad_qk_dot, grad_d, grad_initial] = to;
  const auto put = [&](const Tensor& tensor, const Tensor& value) {
    tensor.narrow(1, begin, length).copy_(value.transpose(1, 2));
  };
  const Tensor e = grad_out.matmul(c.v.mT());
  const Tensor t = c.q.matmul(c.k.mT());
  const Tensor masked_e = e * c.mask, masked_t = t * c.mask;
  const Tensor carried_q = grad_out.matmul(state) * c.decay_in.unsqueeze(-1);
  const Tensor carried_v = c.k.matmul(grad_state.mT()) * c.decay_out.unsqueeze(-1);
  const Tensor carried_k = c.v.matmul(grad_state) * c.decay_out.unsqueeze(-1);
  put(grad_q, carried_q + masked_e.matmul(c.k));
  put(grad_k, carried_k + masked_e.mT().matmul(c.q));
  put(grad_v, carried_v + masked_t.mT().matmul(grad_out) + c.direct.unsqueeze(-1) * grad_out);
  grad_qk_dot.narrow(2, begin, length).copy_(e.diagonal(0, -2, -1));
  const Tensor both = masked_e * t;
  const Tensor r = (c.q * carried_q).sum(Ints{-1}) + both.sum(Ints{-1}) - both.sum(Ints{-2});
  const Tensor w = (c.v * carried_v).sum(Ints{-1});
  const Tensor sigma = (state * grad_state).sum(Ints{-2, -1}) * c.whole.squeeze(-1).squeeze(-1);
  const Tensor suffix = r.flip({-1}).cumsum(-1).flip({-1});
  grad_adt.narrow(2, begin, length).copy_(sigma.unsqueeze(-1) + suffix + (w.cumsum(-1) - w));
  grad_state = grad_state * c.whole + (grad_out * c.decay_in.unsqueeze(-1)).mT().matmul(c.q);
}

void backward_plain(const SisoInputs& in, const SisoSaved& saved, const Gradients& to) {
  const auto sequences = sequences_of("mamba3_siso_bwd", in);
  if (in.cu_seqlens && !sequences.empty()) {
    const Sequence& last = sequences.back();
    const int64_t needed = last.first_chunk + (last.length + in.chunk_size - 1) / in.chunk_size;
    PB_CHECK(saved.states.size(2) >= needed, "mamba3_siso_bwd: states must hold ", needed,
             " chunks, got ", saved.states.size(2));
  }
  for (const Sequence& sequence : sequences) {
    Tensor grad_state = state_of(saved.grad_final_state, in, sequence);
    for_chunks(in, sequence, Order::kBackwards,
               [&](int64_t chunk, const ChunkTensors& c, int64_t begin, int64_t length) {
                 backward_chunk(c, tokens(saved.grad_out, begin, length),
                                saved.states.select(2, chunk).to(kFloat), grad_state, to, begin,
                                length);
               });
    std::get<6>(to).narrow(0, sequence.index, grad_state.size(0)).copy_(grad_state);
  }
}

// ---- the dispatcher's side ----

#define PB_SISO_INPUTS                                                                        \
  const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &adt, const Tensor &qk_dot, \
      const OptionalTensor &d, const OptionalTensor &cu_seqlens, int64_t chunk_size
#define PB_SISO_SAVED \
  const Tensor &grad_out, const Tensor &states, const OptionalTensor &grad_final_state

/// in_words, which a tensor of no elements or of a CPU does not need.
Tensor dense(const Tensor& tensor) {
  return tensor.is_cuda() && tensor.numel() > 0 ? in_words(tensor) : tensor.contiguous();
}
OptionalTensor dense(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(dense(*tensor)) : std::nullopt;
}

/// The same, with chunks outside of rows or inside: which, strides tell.
Tensor dense_states(const Tensor& states) {
  const Tensor inside = states.transpose(2, 3);
  return inside.is_contiguous() ? dense(inside).transpose(2, 3) : dense(states);
}

SisoInputs dense_inputs(const SisoInputs& in) {
  return {dense(in.q),      dense(in.k), dense(in.v),          dense(in.adt),
          dense(in.qk_dot), dense(in.d), dense(in.cu_seqlens), in.chunk_size};
}

Gradients empty_gradients(const SisoInputs& in) {
  return {empty_like(in.q),
          empty_like(in.k),
          empty_like(in.v),
          empty_like(in.adt),
          empty_like(in.qk_dot),
          empty({in.d ? in.q.size(2) : 0}, in.adt),
          empty(state_shape(in), in.adt)};
}

#ifdef PATCHBENCH_CUDA
void launch(const SisoInputs& in, const SisoSaved& saved, const Gradients& to) {
  const auto& [grad_q, grad_k, grad_v, grad_adt, grad_qk_dot, grad_d, grad_initial] = to;
  const auto pointer = [](const OptionalTensor& tensor) {
    return tensor ? tensor->data<float>() : nullptr;
  };
  const auto type =
      in.q.scalar_type() == kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat16;
  SisoBackward problem = extents_of(in);
  problem.num_chunks = saved.states.size(2);
  Tensor grad_states, spans;
  problem.q = in.q.data();
  problem.k = in.k.data();
  problem.v = in.v.data();
  problem.grad_out = saved.grad_out.data();
  problem.states = saved.states.data();
  problem.state_chunk = saved.states.stride(2);
  problem.state_row = saved.states.stride(3);
  problem.adt = in.adt.data<float>();
  problem.qk_dot = in.qk_dot.data<float>();
  problem.d = pointer(in.d);
  problem.grad_final_state = pointer(saved.grad_final_state);
  if (in.cu_seqlens) {
    spans = empty({problem.num_chunks, 3}, *in.cu_seqlens);
    problem.cu_seqlens = in.cu_seqlens->data<int32_t>();
    problem.chunk_spans = spans.mutable_data<int32_t>();
  }
  problem.grad_q = grad_q.mutable_data();
  problem.grad_k = grad_k.mutable_data();
  problem.grad_v = grad_v.mutable_data();
  problem.grad_adt = grad_adt.mutable_data<float>();
  problem.grad_qk_dot = grad_qk_dot.mutable_data<float>();
  problem.grad_initial_state = grad_initial.mutable_data<float>();
  const Gpu gpu = gpu_of(in.q);
  if (is_walked(problem, type) && gpu.major == 9)
    problem.chunks_per_cta = chunks_per_cta(problem, gpu.num_processors);
  problem.has_scan = problem.chunks_per_cta == 0 || in.cu_seqlens.has_value() ||
                     problem.chunks_per_cta < problem.num_chunks;
  if (problem.has_scan) {
    grad_states = empty_like(saved.states);
    problem.grad_states = grad_states.mutable_data();
  }
  check_cuda("mamba3_siso_bwd",
             launch_siso_backward(problem, type, gpu.num_processors, current_stream(in.q)));
}
#endif

Gradients backward(PB_SISO_INPUTS, PB_SISO_SAVED) {
  check_backward({q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size},
                 {grad_out, states, grad_final_state});
  const DeviceScope device(q);
  const SisoInputs in = dense_inputs({q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size});
  const Gradients gradients = empty_gradients(in);
  const SisoSaved saved{dense(grad_out), dense_states(states), dense(grad_final_state)};
  const Tensor& grad_qk_dot = std::get<4>(gradients);
  bool is_done = false;
#ifdef PATCHBENCH_CUDA
  if (has_kernel(in)) {
    launch(in, saved, gradients);
    is_done = true;
  }
#endif
  if (!is_done) {
    warn_of_plain_form(kSlug, "mamba3_siso_bwd", q, kNeeds);
    backward_plain(in, saved, gradients);
  }
  if (d) std::get<5>(gradients).copy_(grad_qk_dot.sum(Ints{0, 2}));
  return gradients;
}

Triple forward(PB_SISO_INPUTS, const OptionalTensor& initial_state) {
  const SisoInputs in{q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size};
  check_inputs("mamba3_siso", in);
  if (initial_state)
    check_tensor("mamba3_siso", "initial_state", *initial_state, state_shape(in), kFloat, q);
  const Ints states = {q.size(0), q.size(2), num_chunks(in), v.size(3), q.size(3)};
  const Triple results = {empty(v.shape(), v), empty(state_shape(in), adt), empty(states, v)};
  const DeviceScope device(q);
  if (cu_seqlens) std::get<2>(results).zero_();
  forward_plain(in, initial_state, results);
  return results;
}

std::string path(const Tensor& q, const Tensor& v, const OptionalTensor& cu_seqlens,
                 int64_t chunk_size) {
  SisoInputs in;
  in.q = q;
  in.v = v;
  in.cu_seqlens = cu_seqlens;
  in.chunk_size = chunk_size;
  return has_kernel(in) ? "cuda" : "plain";
}

}  // namespace

#define PB_SISO_SCHEMA                                                                       \
  "Tensor q, Tensor k, Tensor v, Tensor adt, Tensor qk_dot, Tensor? d, Tensor? cu_seqlens, " \
  "int chunk_size"

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("mamba3_siso_bwd(" PB_SISO_SCHEMA
        ", Tensor grad_out, Tensor states, Tensor? grad_final_state=None) -> (Tensor grad_q, "
        "Tensor grad_k, Tensor grad_v, Tensor grad_adt, Tensor grad_qk_dot, Tensor grad_d, Tensor "
        "grad_initial_state)");
  m.def("mamba3_siso_forward(" PB_SISO_SCHEMA
        ", Tensor? initial_state=None) -> (Tensor y, Tensor final_state, Tensor states)");
  m.def("mamba3_siso_bwd_path(Tensor q, Tensor v, Tensor? cu_seqlens, int chunk_size) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("mamba3_siso_bwd_path", &boxed<path>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("mamba3_siso_bwd", &boxed<backward>);
  m.impl("mamba3_siso_forward", &boxed<forward>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("mamba3_siso_bwd", &boxed<backward>);
  m.impl("mamba3_siso_forward", &boxed<forward>);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
