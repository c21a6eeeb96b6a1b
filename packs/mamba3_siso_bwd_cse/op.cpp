#include "op.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "../op_fallback.h"
#include "kernel.cuh"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_siso_bwd_cse";
constexpr const char* kNeeds =
    "bfloat16 or float16, chunk_size 64, head dims of 32, 64 or 128, and compute capability 8.0 "
    "with "
    "150 KiB of shared memory a CTA";

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

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
  if (in.q.is_cuda() && in.chunk_size == kChunk && (type == at::kBFloat16 || type == at::kHalf)) {
    const SisoBackward problem = extents_of(in);
    const auto* device = at::cuda::getDeviceProperties(in.q.get_device());
    return is_served(problem) && device->major >= 8 &&
           static_cast<int64_t>(device->sharedMemPerBlockOptin) >= shared_bytes(problem);
  }
#else
  static_cast<void>(in);
#endif
  return false;
}

// ---- checks: on symbolic sizes, so that Meta and the real devices share them ----

using Shape = std::vector<c10::SymInt>;

/// One tensor against its shape, dtype and q's device.
void check_tensor(const char* op, const char* name, const Tensor& tensor, const Shape& shape,
                  at::ScalarType type, const Tensor& q) {
  TORCH_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), op, ": ", name, " must have shape ",
              c10::SymIntArrayRef(shape), ", got ", tensor.sym_sizes());
  TORCH_CHECK(tensor.scalar_type() == type, op, ": ", name, " must have dtype ", dtype_name(type),
              ", got ", dtype_name(tensor.scalar_type()));
  TORCH_CHECK(tensor.device() == q.device(), op, ": ", name, " must be on ", q.device(), ", got ",
              tensor.device());
}

void check_inputs(const char* op, const SisoInputs& in) {
  const auto& [q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size] = in;
  TORCH_CHECK(q.dim() == 4, op,
              ": q must have 4 axes [batch, seqlen, num_heads, head_dim_qk], got ", q.dim());
  const auto type = q.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, op,
              ": q must have dtype float32, bfloat16 or float16, got ", dtype_name(type));
  const auto b = q.sym_size(0), s = q.sym_size(1), h = q.sym_size(2);
  check_tensor(op, "k", k, {b, s, h, q.sym_size(3)}, type, q);
  TORCH_CHECK(v.dim() == 4 && v.sym_sizes().slice(0, 3) == q.sym_sizes().slice(0, 3), op,
              ": v must have shape [", b, ", ", s, ", ", h, ", head_dim_v], got ", v.sym_sizes());
  check_tensor(op, "v", v, {b, s, h, v.sym_size(3)}, type, q);
  check_tensor(op, "adt", adt, {b, h, s}, at::kFloat, q);
  check_tensor(op, "qk_dot", qk_dot, {b, h, s}, at::kFloat, q);
  if (d) check_tensor(op, "d", *d, {h}, at::kFloat, q);
  if (cu_seqlens) {
    TORCH_CHECK(cu_seqlens->dim() == 1 && cu_seqlens->sym_size(0) >= 1, op,
                ": cu_seqlens must have shape [num_sequences + 1], got ", cu_seqlens->sym_sizes());
    check_tensor(op, "cu_seqlens", *cu_seqlens, {cu_seqlens->sym_size(0)}, at::kInt, q);
    TORCH_CHECK(b == 1, op, ": cu_seqlens needs batch 1, got ", b);
  }
  TORCH_CHECK(chunk_size >= 1, op, ": chunk_size must be at least 1, got ", chunk_size);
}

c10::SymInt num_sequences(const SisoInputs& in) {
  return in.cu_seqlens ? in.cu_seqlens->sym_size(0) - 1 : in.q.sym_size(0);
}

Shape state_shape(const SisoInputs& in) {
  return {num_sequences(in), in.q.sym_size(2), in.v.sym_size(3), in.q.sym_size(3)};
}

/// Packed: a bound on sum ceil(length / chunk_size) that needs no look at the lengths.
c10::SymInt num_chunks(const SisoInputs& in) {
  const auto seqlen = in.q.sym_size(1);
  if (in.cu_seqlens) return num_sequences(in) + seqlen / in.chunk_size;
  return (seqlen + (in.chunk_size - 1)) / in.chunk_size;
}

void check_backward(const SisoInputs& in, const SisoSaved& saved) {
  const char* op = "mamba3_siso_bwd";
  check_inputs(op, in);
  const Tensor& q = in.q;
  const auto& [grad_out, states, grad_final_state] = saved;
  const auto& v_sizes = in.v.sym_sizes();
  check_tensor(op, "grad_out", grad_out, Shape(v_sizes.begin(), v_sizes.end()), q.scalar_type(), q);
  TORCH_CHECK(states.dim() == 5, op,
              ": states must have 5 axes [batch, num_heads, num_chunks, head_dim_v, head_dim_qk], "
              "got ",
              states.dim());
  const auto chunks = in.cu_seqlens ? states.sym_size(2) : num_chunks(in);
  check_tensor(op, "states", states,
               {q.sym_size(0), q.sym_size(2), chunks, in.v.sym_size(3), q.sym_size(3)},
               q.scalar_type(), q);
  if (grad_final_state)
    check_tensor(op, "grad_final_state", *grad_final_state, state_shape(in), at::kFloat, q);
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
  const auto* at = cu.const_data_ptr<int32_t>();
  const int64_t count = cu.size(0) - 1;
  TORCH_CHECK(at[0] == 0 && at[count] == seqlen, op, ": cu_seqlens must go from 0 to ", seqlen,
              ", got ", at[0], " to ", at[count]);
  std::vector<Sequence> sequences;
  int64_t chunks = 0;
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(at[i] <= at[i + 1], op, ": cu_seqlens must not decrease, got ", at[i], " before ",
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
  Tensor cs;         // [b, h, c]
  Tensor decay_in;   // e^{cs}
  Tensor decay_out;  // e^{rev}
  Tensor whole;      // e^{cs_end} [b, h, 1, 1]
  Tensor mask;       // M [b, h, c, c]
  Tensor direct;     // d + qk_dot [b, h, c]
};

Tensor tokens(const Tensor& tensor, int64_t begin, int64_t length) {
  return tensor.narrow(1, begin, length).to(at::kFloat).transpose(1, 2);
}

ChunkTensors chunk_tensors(const SisoInputs& in, int64_t begin, int64_t length) {
  ChunkTensors c;
  c.q = tokens(in.q, begin, length);
  c.k = tokens(in.k, begin, length);
  c.v = tokens(in.v, begin, length);
  c.cs = in.adt.narrow(2, begin, length).cumsum(-1);
  const Tensor end = c.cs.narrow(-1, length - 1, 1);
  c.decay_in = c.cs.exp();
  c.decay_out = (end - c.cs).exp();
  c.whole = end.exp().unsqueeze(-1);
  // Twice lower triangular: e^{cs_i - cs_j} above the diagonal may be infinite.
  c.mask = (c.cs.unsqueeze(-1) - c.cs.unsqueeze(-2)).tril(-1).exp().tril(-1);
  c.direct = in.qk_dot.narrow(2, begin, length);
  if (in.d) c.direct = c.direct + in.d->view({1, -1, 1});
  return c;
}

/// Calls `body(chunk, tensors, begin, length)` for the chunks of one sequence, first to last or
/// last to first; `chunk` counts those of all sequences.
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
  if (states) return states->narrow(0, sequence.index, rows).to(at::kFloat);
  return at::zeros({rows, in.q.size(2), in.v.size(3), in.q.size(3)}, in.adt.options());
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
  const Tensor r = (c.q * carried_q).sum(-1) + both.sum(-1) - both.sum(-2);
  const Tensor w = (c.v * carried_v).sum(-1);
  const Tensor sigma =
      (state * grad_state).sum(at::IntArrayRef{-2, -1}) * c.whole.squeeze(-1).squeeze(-1);
  const Tensor suffix = r.flip(-1).cumsum(-1).flip(-1);
  grad_adt.narrow(2, begin, length).copy_(sigma.unsqueeze(-1) + suffix + (w.cumsum(-1) - w));
  grad_state = grad_state * c.whole + (grad_out * c.decay_in.unsqueeze(-1)).mT().matmul(c.q);
}

void backward_plain(const SisoInputs& in, const SisoSaved& saved, const Gradients& to) {
  const auto sequences = sequences_of("mamba3_siso_bwd", in);
  if (in.cu_seqlens && !sequences.empty()) {
    const Sequence& last = sequences.back();
    const int64_t needed = last.first_chunk + (last.length + in.chunk_size - 1) / in.chunk_size;
    TORCH_CHECK(saved.states.size(2) >= needed, "mamba3_siso_bwd: states must hold ", needed,
                " chunks, got ", saved.states.size(2));
  }
  for (const Sequence& sequence : sequences) {
    Tensor grad_state = state_of(saved.grad_final_state, in, sequence);
    for_chunks(in, sequence, Order::kBackwards,
               [&](int64_t chunk, const ChunkTensors& c, int64_t begin, int64_t length) {
                 backward_chunk(c, tokens(saved.grad_out, begin, length),
                                saved.states.select(2, chunk).to(at::kFloat), grad_state, to, begin,
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

/// Contiguous, and aligned to what the kernels copy at a time: a view may start anywhere.
Tensor dense(const Tensor& tensor) {
  const Tensor packed = tensor.contiguous();
  const bool is_aligned = packed.numel() == 0 || !packed.is_cuda() ||
                          reinterpret_cast<uintptr_t>(packed.const_data_ptr()) % 16 == 0;
  return is_aligned ? packed : packed.clone();
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

Gradients backward_meta(PB_SISO_INPUTS, PB_SISO_SAVED) {
  const SisoInputs in{q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size};
  check_backward(in, {grad_out, states, grad_final_state});
  const auto like = [](const Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); };
  const c10::SymInt heads = d ? q.sym_size(2) : c10::SymInt(0);
  return {like(q),
          like(k),
          like(v),
          like(adt),
          like(qk_dot),
          at::empty_symint({heads}, adt.options()),
          at::empty_symint(state_shape(in), adt.options())};
}

#ifdef PATCHBENCH_CUDA
void launch(const SisoInputs& in, const SisoSaved& saved, const Gradients& to) {
  const auto& [grad_q, grad_k, grad_v, grad_adt, grad_qk_dot, grad_d, grad_initial] = to;
  const auto pointer = [](const OptionalTensor& tensor) {
    return tensor ? tensor->const_data_ptr<float>() : nullptr;
  };
  const auto type =
      in.q.scalar_type() == at::kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat16;
  SisoBackward problem = extents_of(in);
  problem.num_chunks = saved.states.size(2);
  Tensor grad_states, spans;
  problem.q = in.q.const_data_ptr();
  problem.k = in.k.const_data_ptr();
  problem.v = in.v.const_data_ptr();
  problem.grad_out = saved.grad_out.const_data_ptr();
  problem.states = saved.states.const_data_ptr();
  problem.state_chunk = saved.states.stride(2);
  problem.state_row = saved.states.stride(3);
  problem.adt = in.adt.const_data_ptr<float>();
  problem.qk_dot = in.qk_dot.const_data_ptr<float>();
  problem.d = pointer(in.d);
  problem.grad_final_state = pointer(saved.grad_final_state);
  if (in.cu_seqlens) {
    spans = at::empty({problem.num_chunks, 3}, in.cu_seqlens->options());
    problem.cu_seqlens = in.cu_seqlens->const_data_ptr<int32_t>();
    problem.chunk_spans = spans.mutable_data_ptr<int32_t>();
  }
  problem.grad_q = grad_q.mutable_data_ptr();
  problem.grad_k = grad_k.mutable_data_ptr();
  problem.grad_v = grad_v.mutable_data_ptr();
  problem.grad_adt = grad_adt.mutable_data_ptr<float>();
  problem.grad_qk_dot = grad_qk_dot.mutable_data_ptr<float>();
  problem.grad_initial_state = grad_initial.mutable_data_ptr<float>();
  const auto* device = at::cuda::getDeviceProperties(in.q.get_device());
  if (is_walked(problem, type) && device->major == 9)
    problem.chunks_per_cta = chunks_per_cta(problem, device->multiProcessorCount);
  problem.has_scan = problem.chunks_per_cta == 0 || in.cu_seqlens.has_value() ||
                     problem.chunks_per_cta < problem.num_chunks;
  if (problem.has_scan) {
    grad_states = at::empty(saved.states.sizes(), saved.states.options());
    problem.grad_states = grad_states.mutable_data_ptr();
  }
  C10_CUDA_CHECK(launch_siso_backward(problem, type, device->multiProcessorCount,
                                      at::cuda::getCurrentCUDAStream()));
}
#endif

Gradients backward_real(PB_SISO_INPUTS, PB_SISO_SAVED) {
  const Gradients gradients = backward_meta(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size,
                                            grad_out, states, grad_final_state);
  const c10::OptionalDeviceGuard guard(q.device());
  const SisoInputs in = dense_inputs({q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size});
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
  if (d) std::get<5>(gradients).copy_(grad_qk_dot.sum(at::IntArrayRef{0, 2}));
  return gradients;
}

Triple forward_meta(PB_SISO_INPUTS, const OptionalTensor& initial_state) {
  const SisoInputs in{q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size};
  check_inputs("mamba3_siso", in);
  if (initial_state)
    check_tensor("mamba3_siso", "initial_state", *initial_state, state_shape(in), at::kFloat, q);
  return {
      at::empty_symint(v.sym_sizes(), v.options()),
      at::empty_symint(state_shape(in), adt.options()),
      at::empty_symint({q.sym_size(0), q.sym_size(2), num_chunks(in), v.sym_size(3), q.sym_size(3)},
                       v.options())};
}

Triple forward_real(PB_SISO_INPUTS, const OptionalTensor& initial_state) {
  const Triple results =
      forward_meta(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, initial_state);
  const c10::OptionalDeviceGuard guard(q.device());
  if (cu_seqlens) std::get<2>(results).zero_();
  forward_plain({q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size}, initial_state, results);
  return results;
}

Triple call_forward(PB_SISO_INPUTS, const OptionalTensor& initial_state) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_siso_forward", "")
                             .typed<decltype(forward_real)>();
  return op.call(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, initial_state);
}

Gradients call_backward(PB_SISO_INPUTS, PB_SISO_SAVED) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_siso_bwd", "")
                             .typed<decltype(backward_real)>();
  return op.call(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, grad_out, states,
                 grad_final_state);
}

Pair scan_without_grad(PB_SISO_INPUTS, const OptionalTensor& initial_state) {
  const Triple results =
      call_forward(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, initial_state);
  return {std::get<0>(results), std::get<1>(results)};
}

class SisoScan : public torch::autograd::Function<SisoScan> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                PB_SISO_INPUTS,
                                                const OptionalTensor& initial_state) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, final_state, states] =
        call_forward(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, initial_state);
    ctx->save_for_backward(
        {q, k, v, adt, qk_dot, d.value_or(Tensor()), cu_seqlens.value_or(Tensor()), states});
    ctx->saved_data["chunk_size"] = chunk_size;
    ctx->saved_data["has_initial_state"] = initial_state.has_value();
    ctx->set_materialize_grads(false);
    return {y, final_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    const Tensor& v = saved[2];
    const Tensor grad_out = grads[0].defined() ? grads[0] : at::zeros_like(v);
    const auto [grad_q, grad_k, grad_v, grad_adt, grad_qk_dot, grad_d, grad_initial] =
        call_backward(saved[0], saved[1], v, saved[3], saved[4], optional(saved[5]),
                      optional(saved[6]), ctx->saved_data["chunk_size"].toInt(), grad_out, saved[7],
                      optional(grads[1]));
    return {grad_q,
            grad_k,
            grad_v,
            grad_adt,
            grad_qk_dot,
            saved[5].defined() ? grad_d : Tensor(),
            Tensor(),
            Tensor(),
            ctx->saved_data["has_initial_state"].toBool() ? grad_initial : Tensor()};
  }
};

Pair scan_with_grad(PB_SISO_INPUTS, const OptionalTensor& initial_state) {
  const auto results =
      SisoScan::apply(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, initial_state);
  return {results[0], results[1]};
}

std::string path_of(const Tensor& q, const Tensor& v, const OptionalTensor& cu_seqlens,
                    int64_t chunk_size) {
  SisoInputs in{.q = q, .v = v, .cu_seqlens = cu_seqlens, .chunk_size = chunk_size};
  return has_kernel(in) ? "cuda" : "plain";
}

}  // namespace

SisoGradients mamba3_siso_bwd(const SisoInputs& in, const SisoSaved& saved) {
  const auto [q, k, v, adt, qk_dot, d, initial_state] =
      call_backward(in.q, in.k, in.v, in.adt, in.qk_dot, in.d, in.cu_seqlens, in.chunk_size,
                    saved.grad_out, saved.states, saved.grad_final_state);
  return {q, k, v, adt, qk_dot, d, initial_state};
}

Triple mamba3_siso_forward(const SisoInputs& in, const OptionalTensor& initial_state) {
  return call_forward(in.q, in.k, in.v, in.adt, in.qk_dot, in.d, in.cu_seqlens, in.chunk_size,
                      initial_state);
}

Pair mamba3_siso(const SisoInputs& in, const OptionalTensor& initial_state) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_siso", "")
                             .typed<decltype(scan_without_grad)>();
  return op.call(in.q, in.k, in.v, in.adt, in.qk_dot, in.d, in.cu_seqlens, in.chunk_size,
                 initial_state);
}

std::string mamba3_siso_bwd_path(const SisoInputs& in) {
  return path_of(in.q, in.v, in.cu_seqlens, in.chunk_size);
}

#define PB_SISO_SCHEMA                                                                       \
  "Tensor q, Tensor k, Tensor v, Tensor adt, Tensor qk_dot, Tensor? d, Tensor? cu_seqlens, " \
  "int chunk_size"

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("mamba3_siso_bwd(" PB_SISO_SCHEMA
        ", Tensor grad_out, Tensor states, Tensor? grad_final_state=None) -> (Tensor grad_q, "
        "Tensor grad_k, Tensor grad_v, Tensor grad_adt, Tensor grad_qk_dot, Tensor grad_d, Tensor "
        "grad_initial_state)",
        {at::Tag::pt2_compliant_tag});
  m.def("mamba3_siso_forward(" PB_SISO_SCHEMA
        ", Tensor? initial_state=None) -> (Tensor y, Tensor final_state, Tensor states)",
        {at::Tag::pt2_compliant_tag});
  m.def("mamba3_siso(" PB_SISO_SCHEMA
        ", Tensor? initial_state=None) -> (Tensor y, Tensor final_state)",
        {at::Tag::pt2_compliant_tag});
  m.def("mamba3_siso_bwd_path(Tensor q, Tensor v, Tensor? cu_seqlens, int chunk_size) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("mamba3_siso", scan_without_grad);
  m.impl("mamba3_siso_bwd_path", path_of);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("mamba3_siso_bwd", backward_real);
  m.impl("mamba3_siso_forward", forward_real);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("mamba3_siso_bwd", backward_real);
  m.impl("mamba3_siso_forward", forward_real);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("mamba3_siso_bwd", backward_meta);
  m.impl("mamba3_siso_forward", forward_meta);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("mamba3_siso", scan_with_grad);
  m.impl("mamba3_siso_bwd", torch::autograd::autogradNotImplementedFallback());
  m.impl("mamba3_siso_forward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
