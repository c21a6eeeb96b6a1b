// patchbench::flce against torch's own composition in fp64, on every device of this machine and on
// both of its elementwise paths.
#include "packs/liger_flce_none_bwd_reference.h"

#include <gtest/gtest.h>

#include <cstdlib>
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::flce_test {
namespace {

/// The native path of the device, or the plain torch form.
enum class ForcedPath { kNative, kPlain };

/// Sets PATCHBENCH_OP_FALLBACK for one scope.
class PathScope {
 public:
  explicit PathScope(ForcedPath path) {
    if (path == ForcedPath::kPlain)
      setenv("PATCHBENCH_OP_FALLBACK", "other_pack,liger_flce_none_bwd", 1);
  }
  ~PathScope() { unsetenv("PATCHBENCH_OP_FALLBACK"); }
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;
};

std::string short_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16"
         : dtype == at::kHalf   ? "fp16"
         : dtype == at::kDouble ? "fp64"
                                : "fp32";
}

/// Every reduction with each feature alone, with none and with all, in tiles of a few rows or
/// classes.
std::vector<FlceCase> feature_cases() {
  std::vector<FlceCase> cases;
  for (const char* reduction : {"none", "mean", "sum"}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const std::string feature :
           {"bare", "bias", "smoothing", "z_loss", "softcap", "class_weight", "all"}) {
        const bool all = feature == "all";
        FlceCase c{.name = std::string(reduction) + "_" + feature + "_" + short_name(dtype),
                   .reduction = reduction};
        c.dtype = dtype;
        c.has_bias = all || feature == "bias";
        c.has_class_weight = all || feature == "class_weight";
        c.label_smoothing = all || feature == "smoothing" ? 0.1 : 0;
        c.lse_square_scale = all || feature == "z_loss" ? 0.01 : 0;
        c.softcap = all || feature == "softcap" ? 2.5 : 0;
        c.chunk_bytes = 67 * 5 * 4;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

/// Sizes at their limits, the tile's edges, patterns of grad_output, layouts; with every feature
/// on, in fp32 and bf16.
std::vector<FlceCase> shape_cases() {
  const std::vector<FlceCase> bases = {
      {.name = "one_row", .tokens = 1},
      {.name = "one_class", .vocab = 1},
      {.name = "one_feature", .hidden = 1},
      {.name = "three_classes", .vocab = 3},
      {.name = "vocab_is_one_word", .vocab = 8},
      {.name = "vocab_is_odd", .tokens = 9, .vocab = 1001},
      {.name = "vocab_beyond_a_segment", .tokens = 3, .vocab = 20011},
      {.name = "model_shape_scaled",
       .tokens = 128,
       .hidden = 128,
       .vocab = 4096,
       .chunk_bytes = 1 << 18},
      {.name = "ragged_last_tile_by_class", .tokens = 32, .vocab = 67, .chunk_bytes = 32 * 10 * 4},
      {.name = "ragged_last_tile_by_row", .tokens = 70, .vocab = 20, .chunk_bytes = 20 * 8 * 4},
      {.name = "tile_below_one_row", .tokens = 20, .vocab = 30, .chunk_bytes = 1},
      {.name = "one_hot", .grad_output = "one_hot"},
      {.name = "uniform_stride_0", .grad_output = "uniform"},
      {.name = "strided_grad", .grad_output = "strided"},
      {.name = "ignore_index_is_a_class", .ignore_index = 5},
      {.name = "nothing_ignored", .ignored = "none"},
      {.name = "all_ignored", .ignored = "all"},
      {.name = "column_major", .layout = "transposed", .chunk_bytes = 67 * 5 * 4},
      {.name = "rows_off_alignment", .layout = "offset", .chunk_bytes = 67 * 5 * 4},
  };
  std::vector<FlceCase> cases;
  for (FlceCase c : bases) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      FlceCase full = c;
      full.name = c.name + "_" + short_name(dtype);
      full.dtype = dtype;
      full.has_bias = full.has_class_weight = true;
      full.label_smoothing = 0.1;
      full.lse_square_scale = 0.01;
      full.softcap = 8;
      cases.push_back(full);
    }
  }
  return cases;
}

using Point = std::tuple<std::string, ForcedPath, FlceCase>;

/// Makes gtest name a failing case instead of printing its bytes.
[[maybe_unused]] void PrintTo(ForcedPath path, std::ostream* out) {
  *out << (path == ForcedPath::kPlain ? "plain" : "native");
}

std::string point_name(const testing::TestParamInfo<Point>& info) {
  const auto& [device, path, c] = info.param;
  return device.substr(0, device.find(':')) +
         (path == ForcedPath::kPlain ? "_plain_" : "_native_") + c.name;
}

class FlceGradients : public testing::TestWithParam<Point> {};

TEST_P(FlceGradients, StayWithinTheToleranceOfTheFp64Composition) {
  const auto& [device, path, c] = GetParam();
  const Tensors inputs = inputs_of(c);
  const Tensors here = moved(inputs, device);
  const PathScope scope(path);
  EXPECT_EQ(failure(c, op_of(c, here), oracle_of(c, inputs), plain_of(c, here)), "");
}

const auto kPaths = testing::Values(ForcedPath::kNative, ForcedPath::kPlain);
INSTANTIATE_TEST_SUITE_P(Features, FlceGradients,
                         testing::Combine(testing::ValuesIn(devices()), kPaths,
                                          testing::ValuesIn(feature_cases())),
                         point_name);
INSTANTIATE_TEST_SUITE_P(Shapes, FlceGradients,
                         testing::Combine(testing::ValuesIn(devices()), kPaths,
                                          testing::ValuesIn(shape_cases())),
                         point_name);

std::string plain_name(const testing::TestParamInfo<std::string>& param) {
  return param.param.substr(0, param.param.find(':'));
}

class FlceOnDevice : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Devices, FlceOnDevice, testing::ValuesIn(devices()), plain_name);

TEST_P(FlceOnDevice, NamesThePathThatItTakes) {
  const at::Tensor hidden = torch::zeros({1, 1}, at::Device(GetParam()));
  EXPECT_EQ(ops::liger_flce_none_bwd::flce_path(hidden),
            at::Device(GetParam()).is_cpu() ? "cpu" : "cuda");
  const PathScope scope(ForcedPath::kPlain);
  EXPECT_EQ(ops::liger_flce_none_bwd::flce_path(hidden), "plain");
}

TEST_P(FlceOnDevice, RepeatsItselfBitwise) {
  FlceCase c{.name = "repeat", .dtype = at::kBFloat16, .tokens = 64, .hidden = 64, .vocab = 1001};
  c.has_bias = true;
  c.chunk_bytes = 64 * 256 * 2;
  const Tensors here = moved(inputs_of(c), GetParam());
  const Tensors first = op_of(c, here), second = op_of(c, here);
  for (const auto& [name, tensor] : first) {
    EXPECT_TRUE(harness::compare_bitwise(name, second.at(name), tensor).pass) << name;
  }
}

TEST_P(FlceOnDevice, GivesTheSameGradientsTwiceFromOneRetainedGraph) {
  FlceCase c{.name = "retained", .reduction = "mean"};
  const Tensors leaves = leaves_of(moved(inputs_of(c), GetParam()), c.dtype);
  const at::Tensor loss = ops::liger_flce_none_bwd::flce(
      leaves.at("hidden"), leaves.at("weight"), leaves.at("target"), options_of(c, leaves));
  const at::Tensor grad = torch::full({}, 0.37, loss.options());
  const auto first = torch::autograd::grad({loss}, {leaves.at("weight")}, {grad}, true);
  const auto second = torch::autograd::grad({loss}, {leaves.at("weight")}, {grad}, true);
  EXPECT_TRUE(torch::equal(first[0], second[0]));
}

TEST_P(FlceOnDevice, KeepsTheDigitsOfConfidentTokens) {
  // The target is 9 ahead of eight logits of 120: p_t - 1 is about -1e-3, and one fp32 number for
  // lse = 129 would be off by up to 7.6e-6, which is 1e-2 of it; a sum that holds the target's own
  // 1 is off by up to 8 x 6e-8, which is 5e-4 of it.
  FlceCase c{.name = "confident", .tokens = 8, .hidden = 1, .vocab = 9, .ignored = "none"};
  Tensors inputs = inputs_of(c);
  inputs["hidden"].fill_(1.0);
  inputs["weight"].fill_(120.0);
  inputs["weight"][3].fill_(129.0);
  inputs["target"].fill_(3);
  const Tensors got = op_of(c, moved(inputs, GetParam()));
  const Tensors oracle = oracle_of(c, inputs);
  EXPECT_LT(harness::errors_of(got.at("grad_weight"), oracle.at("grad_weight")).row, 3e-6);
  EXPECT_LT(harness::errors_of(got.at("loss"), oracle.at("loss")).element, 3e-6);
}

#ifdef PATCHBENCH_CUDA
/// Calls that would wait for the device raise while it lives.
class NoSync {
 public:
  NoSync() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoSync() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
};

FlceCase captured_case(const std::string& reduction) {
  FlceCase c{.name = "captured_" + reduction,
             .reduction = reduction,
             .dtype = at::kBFloat16,
             .tokens = 96,
             .hidden = 64};
  c.vocab = 1000;
  c.has_bias = c.has_class_weight = true;
  c.label_smoothing = 0.1;
  c.lse_square_scale = 0.01;
  c.softcap = 8;
  c.chunk_bytes = 96 * 256 * 2;
  return c;
}

class FlceCudaGraph : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlceCudaGraph);
INSTANTIATE_TEST_SUITE_P(Reductions, FlceCudaGraph,
                         testing::ValuesIn(torch::cuda::is_available()
                                               ? std::vector<std::string>{"none", "mean", "sum"}
                                               : std::vector<std::string>{}),
                         plain_name);

TEST_P(FlceCudaGraph, ReplaysForwardAndBackwardOnOtherValuesWithoutAnySync) {
  const FlceCase c = captured_case(GetParam());
  FlceCase other = c;
  other.name += "_other";
  Tensors buffers = moved(inputs_of(c), "cuda:0");
  const Tensors other_inputs = inputs_of(other);
  const Tensors values = moved(other_inputs, "cuda:0");
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
  op_of(c, buffers);  // cuBLAS takes its workspace outside the capture
  c10::cuda::device_synchronize();
  Tensors captured;
  at::cuda::CUDAGraph graph;
  {
    const NoSync no_sync;
    graph.capture_begin();
    captured = op_of(c, buffers);
    graph.capture_end();
  }
  for (auto& [name, tensor] : buffers) tensor.copy_(values.at(name));
  graph.replay();
  c10::cuda::device_synchronize();
  EXPECT_EQ(failure(other, captured, oracle_of(other, other_inputs), plain_of(other, values)), "");
}
#endif

}  // namespace
}  // namespace patchbench::flce_test
