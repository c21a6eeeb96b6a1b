#pragma once
#include <torch/torch.h>

#include <array>
#include <memory>
#include <type_traits>
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#endif

/// A matrix product by an algorithm of our choice. For tiles.h alone; nothing here checks its
/// arguments. The symbols of cublasLt come with libtorch_cuda, which is linked with it.
namespace patchbench::ops::liger_flce_none_bwd {

using at::Tensor;

#ifdef PATCHBENCH_CUDA

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    kDestroy(handle);
  }
};
template <typename Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;
using OwnedProduct = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using OwnedLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using OwnedPreference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// A bfloat16 matrix of which one stride is 1, as cublasLt sees it: columns contiguous.
struct Operand {
  OwnedLayout layout;
  cublasOperation_t operation;

  explicit Operand(const Tensor& matrix) {
    const bool is_row_major = matrix.stride(1) == 1;
    operation = is_row_major ? CUBLAS_OP_N : CUBLAS_OP_T;
    const int64_t length = matrix.size(is_row_major ? 1 : 0);
    const int64_t count = matrix.size(is_row_major ? 0 : 1);
    cublasLtMatrixLayout_t made = nullptr;
    cublasLtMatrixLayoutCreate(&made, CUDA_R_16BF, static_cast<uint64_t>(length),
                               static_cast<uint64_t>(count), matrix.stride(is_row_major ? 0 : 1));
    layout.reset(made);
  }
};

/// The largest power of two, up to 256, that the address is a multiple of.
inline uint32_t alignment_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

/// A product's candidates are those that need no more memory than this, nor more alignment than its
/// operands have.
inline OwnedPreference preference_of(const Tensor& out, const Tensor& a, const Tensor& b,
                                     uint64_t workspace_bytes) {
  cublasLtMatmulPreference_t made = nullptr;
  cublasLtMatmulPreferenceCreate(&made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    cublasLtMatmulPreferenceSetAttribute(made, which, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(out));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(out));
  return OwnedPreference(made);
}

inline bool has_tile(const cublasLtMatmulHeuristicResult_t& found, int tile) {
  int has = 0;
  std::size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&found.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &has, sizeof(has),
                                       &written);
  return has == tile;
}

/// out = beta * out + left @ right, bfloat16 on CUDA, by the best of the library's own candidates
/// that has this tile; false, and nothing is done, where there is none.
inline bool product_with_tile(const Tensor& out, const Tensor& left, const Tensor& right,
                              float beta, cublasLtMatmulTile_t tile) {
  // Row-major matrices are the transposed of column-major ones: out' = right' left'.
  const Operand a(right), b(left), d(out);
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const OwnedProduct owned(product);
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &a.operation,
                                 sizeof(a.operation));
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &b.operation,
                                 sizeof(b.operation));
  const Tensor workspace = at::empty({1024}, out.options().dtype(at::kByte));
  const OwnedPreference preference = preference_of(out, right, left, workspace.nbytes());
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  std::array<cublasLtMatmulHeuristicResult_t, 16> found = {};
  int count = 0;
  if (cublasLtMatmulAlgoGetHeuristic(handle, product, a.layout.get(), b.layout.get(),
                                     d.layout.get(), d.layout.get(), preference.get(),
                                     static_cast<int>(found.size()), found.data(),
                                     &count) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  const float alpha = 1;
  for (int i = 0; i < count; ++i) {
    if (!has_tile(found[i], tile)) continue;
    return cublasLtMatmul(handle, product, &alpha, right.const_data_ptr(), a.layout.get(),
                          left.const_data_ptr(), b.layout.get(), &beta, out.const_data_ptr(),
                          d.layout.get(), out.mutable_data_ptr(), d.layout.get(), &found[i].algo,
                          workspace.mutable_data_ptr(), workspace.nbytes(),
                          c10::cuda::getCurrentCUDAStream()) == CUBLAS_STATUS_SUCCESS;
  }
  return false;
}

#endif  // PATCHBENCH_CUDA

/// The products for which the library's own first choice is slower: see the pack's README.
enum class Product {
  kLogits,     ///< of whole rows
  kRoundedSum  ///< a tile's part of grad_weight, which is read as well as written but for the first
};

/// out = beta * out + left @ right by tiles of 176 x 128 or 128 x 160, in bfloat16 on CUDA and
/// where the work is worth the choice; false, and nothing is done, elsewhere.
inline bool product_by_own_tiles([[maybe_unused]] Product which, [[maybe_unused]] const Tensor& out,
                                 [[maybe_unused]] const Tensor& left,
                                 [[maybe_unused]] const Tensor& right,
                                 [[maybe_unused]] float beta) {
#ifdef PATCHBENCH_CUDA
  constexpr int64_t kLeastWork = int64_t{1} << 36;
  const auto is_dense = [](const Tensor& t) { return t.stride(0) == 1 || t.stride(1) == 1; };
  if (!out.is_cuda() || out.scalar_type() != at::kBFloat16 || !is_dense(left) || !is_dense(right) ||
      out.numel() * left.size(1) < kLeastWork) {
    return false;
  }
  return product_with_tile(
      out, left, right, beta,
      which == Product::kLogits ? CUBLASLT_MATMUL_TILE_176x128 : CUBLASLT_MATMUL_TILE_128x160);
#else
  return false;
#endif
}

}  // namespace patchbench::ops::liger_flce_none_bwd
