#include "op.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <atomic>
#include <limits>

#include "../op_fallback.h"
#include "kernel.cuh"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::ops::dsa_graph_capture {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kSlug = "dsa_graph_capture";
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;     // grid.x of the fill
constexpr int64_t kMaxSeqlenK = int64_t{65535} * 65536;  // grid.y of the fill

enum class Path { kCpu, kCuda, kPlain };

Path path_of(const Tensor& tensor) {
  if (is_fallback_forced(kSlug)) return Path::kPlain;
  if (tensor.is_cpu()) return Path::kCpu;
#ifdef PATCHBENCH_CUDA
  if (tensor.is_cuda() && at::cuda::getDeviceProperties(tensor.get_device())->major >= 8)
    return Path::kCuda;
#endif
  return Path::kPlain;
}

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

// ---- checks: on symbolic sizes, so that Meta and the real devices share them ----

void check_dtype(const char* name, at::ScalarType type) {
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, name,
              ": the mask must have dtype float32 or bfloat16, got ", dtype_name(type));
}

void check_inputs(const char* name, const Tensor& topk_indices, const c10::SymInt& seqlen_k,
                  const OptionalTensor& out_of_range) {
  TORCH_CHECK(topk_indices.dim() == 3, name,
              ": topk_indices must have 3 axes [batch, seqlen_q, topk], got ", topk_indices.dim());
  TORCH_CHECK(seqlen_k >= 0 && seqlen_k <= kMaxSeqlenK, name, ": seqlen_k must lie in [0, ",
              kMaxSeqlenK, "], got ", seqlen_k);
  TORCH_CHECK(topk_indices.sym_size(0) * topk_indices.sym_size(1) <= kMaxRows, name,
              ": batch * seqlen_q must be at most ", kMaxRows);
  const auto type = topk_indices.scalar_type();
  TORCH_CHECK(type == at::kInt || type == at::kLong, name,
              ": topk_indices must have dtype int32 or int64, got ", dtype_name(type));
  if (!out_of_range) return;
  TORCH_CHECK(out_of_range->device() == topk_indices.device(), name, ": out_of_range must be on ",
              topk_indices.device(), ", got ", out_of_range->device());
  TORCH_CHECK(out_of_range->scalar_type() == at::kInt && out_of_range->sym_numel() == 1, name,
              ": out_of_range must be one int32, got ", out_of_range->sym_sizes(), " ",
              dtype_name(out_of_range->scalar_type()));
}

void check_mask(const Tensor& index_mask, const Tensor& topk_indices) {
  const char* name = "topk_to_index_mask_";
  TORCH_CHECK(index_mask.dim() == 3 && index_mask.sym_size(0) == topk_indices.sym_size(0) &&
                  index_mask.sym_size(1) == topk_indices.sym_size(1),
              name, ": index_mask must have shape [", topk_indices.sym_size(0), ", ",
              topk_indices.sym_size(1), ", seqlen_k], got ", index_mask.sym_sizes());
  TORCH_CHECK(index_mask.device() == topk_indices.device(), name, ": index_mask must be on ",
              topk_indices.device(), ", got ", index_mask.device());
  check_dtype(name, index_mask.scalar_type());
  TORCH_CHECK(index_mask.is_contiguous(), name, ": index_mask must be contiguous");
}

// ---- the work ----

template <typename index_t>
MaskPass<index_t> pass_of(const Tensor& mask, const Tensor& indices, const OptionalTensor& flag) {
  return {.indices = indices.const_data_ptr<index_t>(),
          .mask = mask.mutable_data_ptr(),
          .out_of_range = flag ? flag->mutable_data_ptr<int32_t>() : nullptr,
          .rows = indices.size(0) * indices.size(1),
          .topk = indices.size(2),
          .seqlen_k = mask.size(2)};
}

/// Opens the hits of every row on the CPU; the mask is filled already. True if an index was out of
/// range.
template <typename index_t, typename scalar_t>
bool open_rows(const MaskPass<index_t>& pass) {
  std::atomic<bool> is_out_of_range = false;
  at::parallel_for(0, pass.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const index_t* indices = pass.indices + row * pass.topk;
      scalar_t* mask = static_cast<scalar_t*>(pass.mask) + row * pass.seqlen_k;
      for (int64_t k = 0; k < pass.topk; ++k) {
        if (indices[k] >= pass.seqlen_k) {
          is_out_of_range = true;
        } else if (indices[k] >= 0) {
          mask[indices[k]] = static_cast<scalar_t>(0);
        }
      }
    }
  });
  return is_out_of_range;
}

void report_on_cpu(const char* name, bool is_out_of_range, const OptionalTensor& flag,
                   int64_t seqlen_k) {
  if (!is_out_of_range) return;
  TORCH_CHECK_INDEX(flag.has_value(), name, ": an index is not below seqlen_k = ", seqlen_k,
                    "; pass out_of_range to have it skipped and reported");
  flag->mutable_data_ptr<int32_t>()[0] = 1;
}

template <typename index_t>
void open_on_cpu(const char* name, const Tensor& mask, const Tensor& indices,
                 const OptionalTensor& flag) {
  const MaskPass<index_t> pass = pass_of<index_t>(mask, indices, flag);
  const bool is_out_of_range = mask.scalar_type() == at::kFloat
                                   ? open_rows<index_t, float>(pass)
                                   : open_rows<index_t, at::BFloat16>(pass);
  report_on_cpu(name, is_out_of_range, flag, pass.seqlen_k);
}

/// A scatter-reduce amax of 0 where a slot names a key, of -inf where it does not: exact whatever
/// the mask held before, and without a host read.
void open_plain(const Tensor& mask, const Tensor& indices, const OptionalTensor& flag) {
  const int64_t seqlen_k = mask.size(2);
  if (flag) flag->copy_(at::maximum(*flag, indices.ge(seqlen_k).any().to(at::kInt).view_as(*flag)));
  if (seqlen_k == 0 || indices.size(2) == 0) return;
  const Tensor is_key = indices.ge(0).logical_and(indices.lt(seqlen_k));
  const Tensor source = at::where(is_key, 0.0, -std::numeric_limits<double>::infinity());
  mask.scatter_reduce_(2, indices.clamp(0, seqlen_k - 1).to(at::kLong),
                       source.to(mask.scalar_type()), "amax", /*include_self=*/true);
}

enum class Start { kFresh, kInPlace };

#ifdef PATCHBENCH_CUDA
template <typename index_t>
void run_on_cuda(const Tensor& mask, const Tensor& indices, const OptionalTensor& flag,
                 Start start) {
  const c10::cuda::CUDAGuard guard(indices.device());
  const MaskType type = mask.scalar_type() == at::kFloat ? MaskType::kFloat32 : MaskType::kBFloat16;
  const MaskPass<index_t> pass = pass_of<index_t>(mask, indices, flag);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(start == Start::kFresh ? launch_mask_fill(pass, type, stream)
                                        : launch_mask_open(pass, type, stream));
}
#endif

void run(const char* name, Tensor& mask, const Tensor& topk_indices, const OptionalTensor& flag,
         Start start) {
  const Tensor indices = topk_indices.contiguous();
  const bool is_int32 = indices.scalar_type() == at::kInt;
  const Path path = path_of(indices);
#ifdef PATCHBENCH_CUDA
  if (path == Path::kCuda) {
    return is_int32 ? run_on_cuda<int32_t>(mask, indices, flag, start)
                    : run_on_cuda<int64_t>(mask, indices, flag, start);
  }
#endif
  if (start == Start::kFresh) mask.fill_(-std::numeric_limits<double>::infinity());
  if (path == Path::kPlain) {
    warn_of_plain_form(kSlug, name, indices, "compute capability 8.0");
    return open_plain(mask, indices, flag);
  }
  is_int32 ? open_on_cpu<int32_t>(name, mask, indices, flag)
           : open_on_cpu<int64_t>(name, mask, indices, flag);
}

Tensor fill_meta(const Tensor& topk_indices, c10::SymInt seqlen_k,
                 std::optional<at::ScalarType> dtype, const OptionalTensor& out_of_range) {
  const char* name = "topk_to_index_mask";
  check_inputs(name, topk_indices, seqlen_k, out_of_range);
  check_dtype(name, dtype.value_or(at::kFloat));
  return at::empty_symint({topk_indices.sym_size(0), topk_indices.sym_size(1), seqlen_k},
                          topk_indices.options().dtype(dtype.value_or(at::kFloat)));
}

Tensor fill_real(const Tensor& topk_indices, int64_t seqlen_k, std::optional<at::ScalarType> dtype,
                 const OptionalTensor& out_of_range) {
  Tensor mask = fill_meta(topk_indices, seqlen_k, dtype, out_of_range);
  run("topk_to_index_mask", mask, topk_indices, out_of_range, Start::kFresh);
  return mask;
}

Tensor& open_meta(Tensor& index_mask, const Tensor& topk_indices,
                  const OptionalTensor& out_of_range) {
  check_inputs("topk_to_index_mask_", topk_indices, 0, out_of_range);
  check_mask(index_mask, topk_indices);
  return index_mask;
}

Tensor& open_real(Tensor& index_mask, const Tensor& topk_indices,
                  const OptionalTensor& out_of_range) {
  open_meta(index_mask, topk_indices, out_of_range);
  run("topk_to_index_mask_", index_mask, topk_indices, out_of_range, Start::kInPlace);
  return index_mask;
}

}  // namespace

Tensor topk_to_index_mask(const Tensor& topk_indices, int64_t seqlen_k,
                          std::optional<at::ScalarType> dtype, const OptionalTensor& out_of_range) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::topk_to_index_mask", "")
                             .typed<Tensor(const Tensor&, c10::SymInt,
                                           std::optional<at::ScalarType>, const OptionalTensor&)>();
  return op.call(topk_indices, seqlen_k, dtype, out_of_range);
}

Tensor& topk_to_index_mask_(Tensor& index_mask, const Tensor& topk_indices,
                            const OptionalTensor& out_of_range) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::topk_to_index_mask_", "")
                             .typed<Tensor&(Tensor&, const Tensor&, const OptionalTensor&)>();
  return op.call(index_mask, topk_indices, out_of_range);
}

std::string topk_to_index_mask_path(const Tensor& topk_indices) {
  const Path path = path_of(topk_indices);
  return path == Path::kCpu ? "cpu" : path == Path::kCuda ? "cuda" : "plain";
}

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "topk_to_index_mask(Tensor topk_indices, SymInt seqlen_k, *, ScalarType? dtype=None, "
      "Tensor(a!)? out_of_range=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "topk_to_index_mask_(Tensor(a!) index_mask, Tensor topk_indices, *, "
      "Tensor(b!)? out_of_range=None) -> Tensor(a!)",
      {at::Tag::pt2_compliant_tag});
  m.def("topk_to_index_mask_path(Tensor topk_indices) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("topk_to_index_mask_path", topk_to_index_mask_path);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("topk_to_index_mask", fill_real);
  m.impl("topk_to_index_mask_", open_real);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("topk_to_index_mask", fill_real);
  m.impl("topk_to_index_mask_", open_real);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("topk_to_index_mask", fill_meta);
  m.impl("topk_to_index_mask_", open_meta);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("topk_to_index_mask", torch::autograd::autogradNotImplementedFallback());
  m.impl("topk_to_index_mask_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::dsa_graph_capture
