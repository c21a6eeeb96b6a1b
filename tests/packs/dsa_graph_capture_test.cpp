// patchbench::topk_to_index_mask against a loop over every element, on every device of this machine
// and on its native and plain paths. A mask holds 0 and -inf alone, so every comparison is bitwise.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <limits>

#include "dsa_graph_capture/op.h"
#include "harness/compare.h"
#include "harness/inputs.h"
#include "packs/op_test.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::topk_mask_test {
namespace {

using op_test::devices;
using op_test::refusal;
using ops::dsa_graph_capture::topk_to_index_mask;
using ops::dsa_graph_capture::topk_to_index_mask_;

constexpr double kClosed = -std::numeric_limits<double>::infinity();

struct MaskCase {
  std::string name;
  int64_t batch = 2, seqlen_q = 5, seqlen_k = 24, topk = 8;
  double negatives = 0;  ///< share of slots that name no key
  bool has_duplicates = false;
};

/// [batch, seqlen_q, topk] int64: distinct keys per row (or drawn with repeats), a share negative.
/// Row 0 names nothing where there are negatives, row 1 names key 0 and a -1.
at::Tensor indices_of(const MaskCase& c) {
  const harness::Draw draw(7, c.name);
  const std::vector<int64_t> shape = {c.batch, c.seqlen_q, c.topk};
  at::Tensor indices;
  if (c.has_duplicates || c.topk > c.seqlen_k) {
    indices = draw.integers(shape, 0, c.seqlen_k);
  } else {
    indices = draw.uniform({c.batch, c.seqlen_q, c.seqlen_k}, 0, 1)
                  .argsort(int64_t{-1})
                  .narrow(-1, 0, c.topk);
  }
  indices = indices.clone();
  if (c.negatives == 0 || c.topk == 0) return indices;
  const at::Tensor is_none = harness::Draw(7, c.name + "/none").mask(shape, c.negatives);
  indices.masked_fill_(is_none, -1);
  indices.select(1, 0).fill_(-7);
  if (c.seqlen_q > 1 && c.topk > 1) {
    indices.select(1, 1).select(-1, 0).fill_(0);
    indices.select(1, 1).select(-1, 1).fill_(-1);
  }
  return indices;
}

/// The definition, element by element; `before` is what the mask held.
at::Tensor brute_force(const at::Tensor& indices, const at::Tensor& before) {
  at::Tensor mask = before.clone();
  const auto index = indices.accessor<int64_t, 3>();
  for (int64_t b = 0; b < indices.size(0); ++b) {
    for (int64_t s = 0; s < indices.size(1); ++s) {
      for (int64_t k = 0; k < indices.size(2); ++k) {
        if (index[b][s][k] >= 0 && index[b][s][k] < mask.size(2)) mask[b][s][index[b][s][k]] = 0;
      }
    }
  }
  return mask;
}

at::Tensor closed_mask(const MaskCase& c, at::ScalarType dtype) {
  return torch::full({c.batch, c.seqlen_q, c.seqlen_k}, kClosed, dtype);
}

bool same(const at::Tensor& got, const at::Tensor& wanted) {
  return harness::compare_bitwise("mask", got.cpu(), wanted).pass;
}

std::vector<MaskCase> mask_cases() {
  return {
      {.name = "dense"},
      {.name = "negatives", .negatives = 0.3},
      {.name = "all_negative", .negatives = 1},
      {.name = "duplicates", .negatives = 0.2, .has_duplicates = true},
      {.name = "more_slots_than_keys", .seqlen_k = 3, .topk = 16, .negatives = 0.5},
      {.name = "one_key", .batch = 1, .seqlen_q = 1, .seqlen_k = 1, .topk = 1},
      {.name = "odd", .batch = 1, .seqlen_q = 7, .seqlen_k = 1031, .topk = 33, .negatives = 0.3},
      {.name = "whole_words", .batch = 1, .seqlen_q = 9, .seqlen_k = 1024, .topk = 64},
      {.name = "two_segments",
       .batch = 1,
       .seqlen_q = 2,
       .seqlen_k = 65536 + 40,
       .topk = 96,
       .negatives = 0.1},
      {.name = "no_slots", .topk = 0},
      {.name = "no_keys", .seqlen_k = 0, .topk = 0},
      {.name = "no_rows", .batch = 0}};
}

/// device, path ("native" or "plain"), dtype of the mask, dtype of the indices, case
using Point = std::tuple<std::string, std::string, at::ScalarType, at::ScalarType, MaskCase>;

class PathScope {
 public:
  explicit PathScope(const std::string& path) {
    if (path == "plain") setenv("PATCHBENCH_OP_FALLBACK", "other_pack,dsa_graph_capture", 1);
  }
  ~PathScope() { unsetenv("PATCHBENCH_OP_FALLBACK"); }
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;
};

class TopkMask : public testing::TestWithParam<Point> {};

std::string point_name(const testing::TestParamInfo<Point>& info) {
  const auto& [device, path, dtype, index_dtype, c] = info.param;
  return device.substr(0, device.find(':')) + "_" + path +
         (dtype == at::kFloat ? "_fp32" : "_bf16") +
         (index_dtype == at::kInt ? "_int32_" : "_int64_") + c.name;
}

TEST_P(TopkMask, IsBitwiseTheDefinition) {
  const auto& [device, path, dtype, index_dtype, c] = GetParam();
  const PathScope scope(path);
  const at::Tensor indices = indices_of(c);
  const at::Tensor here = indices.to(index_dtype).to(at::Device(device));
  EXPECT_TRUE(same(topk_to_index_mask(here, c.seqlen_k, dtype),
                   brute_force(indices, closed_mask(c, dtype))));
}

TEST_P(TopkMask, InPlaceKeepsWhatWasOpen) {
  const auto& [device, path, dtype, index_dtype, c] = GetParam();
  const PathScope scope(path);
  const at::Tensor indices = indices_of(c);
  at::Tensor before = closed_mask(c, dtype);
  if (c.seqlen_k > 0) before.select(-1, 0).fill_(0);
  if (c.seqlen_k > 2) before.select(-1, 2).fill_(-3.5);
  at::Tensor mask = before.to(at::Device(device));
  const at::Tensor& returned =
      topk_to_index_mask_(mask, indices.to(index_dtype).to(at::Device(device)));
  EXPECT_TRUE(returned.is_same(mask));
  EXPECT_TRUE(same(mask, brute_force(indices, before)));
}

TEST_P(TopkMask, AnIndexBeyondTheKeysIsSkippedAndReportedForGood) {
  const auto& [device, path, dtype, index_dtype, c] = GetParam();
  if (c.topk == 0 || c.batch == 0) return;
  const PathScope scope(path);
  at::Tensor indices = indices_of(c);
  const at::Tensor flag = torch::zeros({1}, at::TensorOptions(at::kInt).device(at::Device(device)));
  const auto mask_of = [&] {
    return topk_to_index_mask(indices.to(index_dtype).to(at::Device(device)), c.seqlen_k, dtype,
                              flag);
  };
  EXPECT_TRUE(same(mask_of(), brute_force(indices, closed_mask(c, dtype))));
  EXPECT_EQ(flag.item<int>(), 0);
  indices[0][0][0] = c.seqlen_k;
  EXPECT_TRUE(same(mask_of(), brute_force(indices, closed_mask(c, dtype))));
  EXPECT_EQ(flag.item<int>(), 1);
  indices[0][0][0] = 0;
  mask_of();
  EXPECT_EQ(flag.item<int>(), 1) << "nothing but the caller clears it";
}

INSTANTIATE_TEST_SUITE_P(Cases, TopkMask,
                         testing::Combine(testing::ValuesIn(devices()),
                                          testing::Values("native", "plain"),
                                          testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values(at::kInt, at::kLong),
                                          testing::ValuesIn(mask_cases())),
                         point_name);

TEST(TopkMaskOp, OnTheCpuAnUnreportedIndexBeyondTheKeysRaises) {
  const at::Tensor indices = torch::tensor({{{0, 5}}}, at::kLong);
  EXPECT_THROW(topk_to_index_mask(indices, 5), std::out_of_range);
  EXPECT_NO_THROW(topk_to_index_mask(indices, 6));
}

TEST(TopkMaskOp, TakesStridedIndices) {
  const MaskCase c{.name = "strided", .negatives = 0.3};
  const at::Tensor indices = indices_of(c);
  const at::Tensor strided = indices.transpose(1, 2).contiguous().transpose(1, 2);
  ASSERT_FALSE(strided.is_contiguous());
  EXPECT_TRUE(same(topk_to_index_mask(strided, c.seqlen_k),
                   brute_force(indices, closed_mask(c, at::kFloat))));
}

TEST(TopkMaskOp, RefusesInOneLine) {
  const at::Tensor indices = torch::zeros({1, 2, 3}, at::kLong);
  const at::Tensor flag = torch::zeros({1}, at::kInt);
  EXPECT_EQ(refusal([&] { topk_to_index_mask(indices[0], 4); }),
            "topk_to_index_mask: topk_indices must have 3 axes [batch, seqlen_q, topk], got 2");
  EXPECT_EQ(refusal([&] { topk_to_index_mask(indices.to(at::kShort), 4); }),
            "topk_to_index_mask: topk_indices must have dtype int32 or int64, got int16");
  EXPECT_EQ(refusal([&] { topk_to_index_mask(indices, 4, at::kHalf); }),
            "topk_to_index_mask: the mask must have dtype float32 or bfloat16, got float16");
  EXPECT_NE(refusal([&] { topk_to_index_mask(indices, -1); }).find("seqlen_k must lie in [0, "),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              topk_to_index_mask(indices, 4, {}, flag.to(at::kLong));
            }).find("out_of_range must be one int32"),
            std::string::npos);
  at::Tensor narrow = torch::zeros({1, 3, 4}), strided = torch::zeros({1, 2, 8}).slice(2, 0, 8, 2);
  EXPECT_NE(refusal([&] { topk_to_index_mask_(narrow, indices); }).find("[1, 2, seqlen_k]"),
            std::string::npos);
  EXPECT_NE(refusal([&] { topk_to_index_mask_(strided, indices); }).find("contiguous"),
            std::string::npos);
}

#ifdef PATCHBENCH_CUDA
TEST(TopkMaskCudaGraph, IsCapturedInEveryModeAndReplaysOnOtherIndices) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const MaskCase c{
      .name = "graph", .batch = 1, .seqlen_q = 257, .seqlen_k = 1031, .topk = 33, .negatives = 0.3};
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {
    at::Tensor buffer = indices_of(c).to(at::kInt).cuda();
    const at::Tensor flag = torch::zeros({1}, at::TensorOptions(at::kInt).device(at::kCUDA));
    const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
    topk_to_index_mask(buffer, c.seqlen_k, {}, flag);
    c10::cuda::device_synchronize();
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, mode);
    const at::Tensor mask = topk_to_index_mask(buffer, c.seqlen_k, {}, flag);
    graph.capture_end();
    for (int replay = 0; replay < 3; ++replay) {
      MaskCase other = c;
      other.name += std::to_string(replay);
      at::Tensor indices = indices_of(other);
      if (replay == 2) indices[0][3][5] = c.seqlen_k + 4;
      buffer.copy_(indices);
      graph.replay();
      c10::cuda::device_synchronize();
      EXPECT_TRUE(same(mask, brute_force(indices, closed_mask(c, at::kFloat)))) << replay;
      EXPECT_EQ(flag.item<int>(), replay == 2 ? 1 : 0);
    }
  }
}
#endif

}  // namespace
}  // namespace patchbench::topk_mask_test
