// Pack mamba3_mimo_smem_2d: whether the MIMO backward's kernels lower with TMA on, whether they
// then use it, and the source that comes of it.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/axes.h"
#include "harness/program.h"

namespace patchbench::mamba3_mimo_smem_2d {
namespace {

using harness::choice;
using harness::extent;
using harness::flag;
using harness::Judgement;
using harness::Tensors;

bool is_code(const Case& item) { return choice(item, "site", {"lowering", "code"}) == "code"; }
bool wants_tma(const Case& item) { return item.axes.contains("tma") && flag(item, "tma"); }

constexpr const char* kYesOrNo = "it lowers or not, it uses TMA or not";
const harness::Tolerances kExact = {
    {0, 0, kYesOrNo}, {0, 0, kYesOrNo}, {0, 0, kYesOrNo}, {0, 0, kYesOrNo}};

/// What lowering ends in, by the compiler's function that raises or calls what raises.
struct Failure {
  const char* function;
  const char* failure_class;
};
constexpr std::array kFailures = {
    Failure{"CopyNode::LowerBulkCopy", "tma_lowering_fails"},
    Failure{"LayoutNode::Reshape", "staged_reshape_fails"},
    Failure{"ReduceOpNode::Lower", "reduce_lowering_fails"},
    Failure{"MakeReduceOwnershipPlan", "reduce_lowering_fails"},
    Failure{"tvm::floormod", "layout_inference_fails"},
    Failure{"ParallelOpNode::InferLayout", "layout_inference_fails"},
};

class SmemPack : public harness::Pack {
 public:
  std::string slug() const override { return "mamba3_mimo_smem_2d"; }

  void check(const Case& item) const override {
    std::vector<std::string> known = {"site",         "kernel",      "is_varlen",  "arch",
                                      "batch",        "seqlen",      "num_ranks",  "num_groups",
                                      "num_heads",    "head_dim_qk", "head_dim_v", "chunk",
                                      "angle_divisor"};
    for (const char* name : {"tma", "nvcc", "num_stages", "num_sequences"}) {
      if (item.axes.contains(name)) known.emplace_back(name);
    }
    harness::check_axes(item, known);
    choice(item, "kernel", {"bwd_fwd", "bwd_bwd"});
    choice(item, "arch", {"sm_80", "sm_90a", "sm_100a", "sm_120a"});
    flag(item, "is_varlen");
    is_code(item);
    wants_tma(item);
    for (const char* name : {"batch", "seqlen", "num_ranks", "num_groups", "num_heads",
                             "head_dim_qk", "head_dim_v", "chunk", "angle_divisor"})
      extent(item, name);
  }

  at::ScalarType dtype(const Case&) const override { return at::kFloat; }
  Tensors inputs(const Case&, uint64_t) const override { return {}; }

  /// It lowers, and with TMA on it loads through it.
  Tensors oracle(const Case& item, const Tensors&) const override {
    if (is_code(item)) return {};
    Tensors values = {{"lowers", torch::ones({})}};
    if (wants_tma(item)) values["uses_tma"] = torch::ones({});
    return values;
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return oracle(item, inputs);
  }
  harness::Tolerances tolerances(const Case&, const std::string&) const override { return kExact; }

  std::map<std::string, harness::InProcessSubject> subjects() const override { return {}; }

  std::string classify(const Case&, const Judgement& judgement) const override {
    return judgement.is_right("lowers") && !judgement.is_right("uses_tma") ? "tma_not_used" : "";
  }

  /// An error of the compiler, by the innermost of its functions that are known here.
  std::string classify_error(const Case&, const Json& exception) const override {
    if (exception.value("type", "") != "tvm.error.InternalError") return "";
    std::string found;
    for (const Json& frame : exception.value("frames", Json::array())) {
      const std::string function = frame.value("function", "");
      for (const Failure& failure : kFailures) {
        if (function.find(failure.function) != std::string::npos) found = failure.failure_class;
      }
    }
    return found;
  }
};

}  // namespace
}  // namespace patchbench::mamba3_mimo_smem_2d

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::mamba3_mimo_smem_2d::SmemPack());
}
