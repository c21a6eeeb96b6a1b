// patchbench::topk_to_index_mask on torch's stable ABI. What its functions do: op.h.
#include <atomic>
#include <limits>
#include <optional>
#include <string>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "kernel.cuh"

namespace patchbench::ops::dsa_graph_capture {
namespace {

using OptionalTensor = std::optional<Tensor>;
using torch::headeronly::BFloat16;

constexpr const char* kSlug = "dsa_graph_capture";
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;     // grid.x of the fill
constexpr int64_t kMaxSeqlenK = int64_t{65535} * 65536;  // grid.y of the fill

enum class Path { kCpu, kCuda, kPlain };

Path path_of(const Tensor& tensor) {
  if (is_fallback_forced(kSlug)) return Path::kPlain;
  if (tensor.is_cpu()) return Path::kCpu;
#ifdef PATCHBENCH_CUDA
  if (tensor.is_cuda() && gpu_of(tensor).major >= 8) return Path::kCuda;
#endif
  return Path::kPlain;
}

// ---- checks ----

void check_mask_dtype(const char* name, ScalarType type) {
  PB_CHECK(type == kFloat || type == kBFloat16, name,
           ": the mask must have dtype float32 or bfloat16, got ", text_of(type));
}

void check_inputs(const char* name, const Tensor& topk_indices, int64_t seqlen_k,
                  const OptionalTensor& out_of_range) {
  check_axes(name, "topk_indices", topk_indices, 3, "[batch, seqlen_q, topk]");
  PB_CHECK(seqlen_k >= 0 && seqlen_k <= kMaxSeqlenK, name, ": seqlen_k must lie in [0, ",
           kMaxSeqlenK, "], got ", seqlen_k);
  PB_CHECK(topk_indices.size(0) * topk_indices.size(1) <= kMaxRows, name,
           ": batch * seqlen_q must be at most ", kMaxRows);
  const ScalarType type = topk_indices.scalar_type();
  PB_CHECK(type == kInt || type == kLong, name,
           ": topk_indices must have dtype int32 or int64, got ", text_of(type));
  if (!out_of_range) return;
  check_device(name, "out_of_range", *out_of_range, topk_indices);
  PB_CHECK(out_of_range->scalar_type() == kInt && out_of_range->numel() == 1, name,
           ": out_of_range must be one int32, got ", text_of(out_of_range->shape()), " ",
           text_of(out_of_range->scalar_type()));
}

void check_mask(const Tensor& index_mask, const Tensor& topk_indices) {
  const char* name = "topk_to_index_mask_";
  PB_CHECK(index_mask.dim() == 3 && index_mask.size(0) == topk_indices.size(0) &&
               index_mask.size(1) == topk_indices.size(1),
           name, ": index_mask must have shape [", topk_indices.size(0), ", ", topk_indices.size(1),
           ", seqlen_k], got ", text_of(index_mask.shape()));
  check_device(name, "index_mask", index_mask, topk_indices);
  check_mask_dtype(name, index_mask.scalar_type());
  PB_CHECK(index_mask.is_contiguous(), name, ": index_mask must be contiguous");
}

// ---- the work ----

template <typename index_t>
MaskPass<index_t> pass_of(const Tensor& mask, const Tensor& indices, const OptionalTensor& flag) {
  return {.indices = indices.data<index_t>(),
          .mask = mask.mutable_data(),
          .out_of_range = flag ? flag->mutable_data<int32_t>() : nullptr,
          .rows = indices.size(0) * indices.size(1),
          .topk = indices.size(2),
          .seqlen_k = mask.size(2)};
}

/// Opens the hits of every row on the CPU; the mask is filled already. True if an index was out of
/// range.
template <typename index_t, typename scalar_t>
bool open_rows(const MaskPass<index_t>& pass) {
  std::atomic<bool> is_out_of_range = false;
  torch::stable::parallel_for(0, pass.rows, 16, [&](int64_t begin, int64_t end) {
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
  PB_CHECK_INDEX(flag.has_value(), name, ": an index is not below seqlen_k = ", seqlen_k,
                 "; pass out_of_range to have it skipped and reported");
  flag->mutable_data<int32_t>()[0] = 1;
}

template <typename index_t>
void open_on_cpu(const char* name, const Tensor& mask, const Tensor& indices,
                 const OptionalTensor& flag) {
  const MaskPass<index_t> pass = pass_of<index_t>(mask, indices, flag);
  const bool is_out_of_range = mask.scalar_type() == kFloat ? open_rows<index_t, float>(pass)
                                                            : open_rows<index_t, BFloat16>(pass);
  report_on_cpu(name, is_out_of_range, flag, pass.seqlen_k);
}

/// A scatter-reduce amax of 0 where a slot names a key, of -inf where it does not: exact whatever
/// the mask held before, and without a host read.
void open_plain(const Tensor& mask, const Tensor& indices, const OptionalTensor& flag) {
  const int64_t seqlen_k = mask.size(2);
  if (flag) flag->copy_(flag->maximum(indices.ge(seqlen_k).any().to(kInt).view(flag->shape())));
  if (seqlen_k == 0 || indices.size(2) == 0) return;
  const Tensor is_key = indices.ge(0).logical_and(indices.lt(seqlen_k));
  const Tensor source =
      full(indices.shape(), 0, mask)
          .masked_fill(is_key.logical_not(), -std::numeric_limits<double>::infinity());
  mask.max_at_(2, indices.clamp(int64_t{0}, seqlen_k - 1).to(kLong), source);
}

enum class Start { kFresh, kInPlace };

#ifdef PATCHBENCH_CUDA
template <typename index_t>
void run_on_cuda(const char* name, const Tensor& mask, const Tensor& indices,
                 const OptionalTensor& flag, Start start) {
  const MaskType type = mask.scalar_type() == kFloat ? MaskType::kFloat32 : MaskType::kBFloat16;
  const MaskPass<index_t> pass = pass_of<index_t>(mask, indices, flag);
  const cudaStream_t stream = current_stream(mask);
  check_cuda(name, start == Start::kFresh ? launch_mask_fill(pass, type, stream)
                                          : launch_mask_open(pass, type, stream));
}
#endif

void run(const char* name, const Tensor& mask, const Tensor& topk_indices,
         const OptionalTensor& flag, Start start) {
  const DeviceScope device(mask);
  const Tensor indices = topk_indices.contiguous();
  const bool is_int32 = indices.scalar_type() == kInt;
  const Path path = path_of(indices);
#ifdef PATCHBENCH_CUDA
  if (path == Path::kCuda) {
    return is_int32 ? run_on_cuda<int32_t>(name, mask, indices, flag, start)
                    : run_on_cuda<int64_t>(name, mask, indices, flag, start);
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

Tensor filled_mask(const Tensor& topk_indices, int64_t seqlen_k, std::optional<ScalarType> dtype,
                   const OptionalTensor& out_of_range) {
  const char* name = "topk_to_index_mask";
  const ScalarType type = dtype.value_or(kFloat);
  check_inputs(name, topk_indices, seqlen_k, out_of_range);
  check_mask_dtype(name, type);
  const Tensor mask =
      empty({topk_indices.size(0), topk_indices.size(1), seqlen_k}, topk_indices, type);
  run(name, mask, topk_indices, out_of_range, Start::kFresh);
  return mask;
}

Tensor fill_mask(const Tensor& topk_indices, int64_t seqlen_k, std::optional<ScalarType> dtype) {
  return filled_mask(topk_indices, seqlen_k, dtype, std::nullopt);
}

Tensor fill_mask_and_report(const Tensor& topk_indices, int64_t seqlen_k,
                            std::optional<ScalarType> dtype, const Tensor& out_of_range) {
  return filled_mask(topk_indices, seqlen_k, dtype, out_of_range);
}

void open_mask(const Tensor& index_mask, const Tensor& topk_indices,
               const OptionalTensor& out_of_range) {
  const char* name = "topk_to_index_mask_";
  check_inputs(name, topk_indices, 0, out_of_range);
  check_mask(index_mask, topk_indices);
  run(name, index_mask, topk_indices, out_of_range, Start::kInPlace);
}

std::string mask_path(const Tensor& topk_indices) {
  const Path path = path_of(topk_indices);
  return path == Path::kCpu ? "cpu" : path == Path::kCuda ? "cuda" : "plain";
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  // Two schemas: Inductor of torch 2.11 to 2.15 cannot lower a call that returns a tensor and
  // leaves out every tensor that it may write to (tests/python/ops_modes_test.py).
  m.def(
      "topk_to_index_mask(Tensor topk_indices, SymInt seqlen_k, *, ScalarType? dtype=None) -> "
      "Tensor");
  m.def(
      "topk_to_index_mask.out_of_range(Tensor topk_indices, SymInt seqlen_k, *, "
      "ScalarType? dtype=None, Tensor(a!) out_of_range) -> Tensor");
  m.def(
      "topk_to_index_mask_(Tensor(a!) index_mask, Tensor topk_indices, *, "
      "Tensor(b!)? out_of_range=None) -> ()");
  m.def("topk_to_index_mask_path(Tensor topk_indices) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("topk_to_index_mask_path", &boxed<mask_path>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("topk_to_index_mask", &boxed<fill_mask>);
  m.impl("topk_to_index_mask.out_of_range", &boxed<fill_mask_and_report>);
  m.impl("topk_to_index_mask_", &boxed<open_mask>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("topk_to_index_mask", &boxed<fill_mask>);
  m.impl("topk_to_index_mask.out_of_range", &boxed<fill_mask_and_report>);
  m.impl("topk_to_index_mask_", &boxed<open_mask>);
}

}  // namespace patchbench::ops::dsa_graph_capture
