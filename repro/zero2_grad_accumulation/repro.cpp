// Pack zero2_grad_accumulation: inputs, oracle, defect model and failure class. The subject trains
// with two ranks in one sandbox.
#include <algorithm>

#include "harness/axes.h"
#include "harness/program.h"
#include "zero2_grad_accumulation/model.h"

namespace patchbench::zero2_grad_accumulation {
namespace {

using harness::Draw;
using harness::in_fp64;
using harness::Judgement;
using harness::Tensors;

constexpr int64_t kRanks = 2;

constexpr const char* kOrder = "ranks and micro-batches are added in another order than plain's";
constexpr harness::Tolerances kFp32 = {Tolerance{2, 16, kOrder}, Tolerance{2, 16, kOrder},
                                       Tolerance{2, 1e-3, kOrder}, Tolerance{2, 4, kOrder}};
constexpr const char* kCarried =
    "what one step rounds the next ones carry on: need 331 (after 5 steps, 1 of 1000 drawn cases)";
constexpr harness::Tolerances kFp32Steps = {Tolerance{2, 512, kCarried},
                                            Tolerance{2, 512, kCarried}, Tolerance{2, 1, kCarried},
                                            Tolerance{2, 512, kCarried}};
// In bf16 what is added is rounded after each micro-batch, and each rank's sum once more.
constexpr harness::Tolerances kBf16 = {Tolerance{2, 2, kOrder}, Tolerance{2, 2, kOrder},
                                       Tolerance{2, 1e-2, kOrder}, Tolerance{2, 1, kOrder}};
constexpr const char* kMany =
    "need 1.26: of few elements the roundings after more than 4 micro-batches come to a factor (3 "
    "of 1000 drawn cases)";
constexpr harness::Tolerances kBf16Many = {kBf16.element, kBf16.row, kBf16.cosine,
                                           Tolerance{2, 1.75, kMany}};
// In a gradient of many elements they do not, so that an error of 1 % is seen.
constexpr int64_t kFewest = 32;
constexpr harness::Tolerances kBf16Large = {kBf16.element, kBf16.row, kBf16.cosine,
                                            Tolerance{2, 0.5, kOrder}};

/// A case's axes, checked. What only the release reads (buckets, parameter groups) is checked, too.
struct Axes {
  int64_t stage = 0, micro_batches = 0, steps = 0, rows = 0, features = 0, hidden = 0, outputs = 0;
  double times = 1;
  int64_t silent = -1;  ///< the micro-batch of each step whose loss is times 0; -1: none
  at::ScalarType dtype = at::kFloat;
};

Axes axes_of(const Case& item) {
  const std::vector<std::string> known = {"stage",
                                          "micro_batches",
                                          "steps",
                                          "rows",
                                          "features",
                                          "hidden",
                                          "outputs",
                                          "dtype",
                                          "loss_times",
                                          "parameter_groups",
                                          "bucket",
                                          "overlap_comm",
                                          "contiguous_gradients",
                                          "round_robin"};
  harness::check_axes(item, harness::with_optional(item, known, "silent"));
  Axes axes;
  axes.stage = harness::extent(item, "stage");
  axes.micro_batches = harness::extent(item, "micro_batches");
  axes.steps = harness::extent(item, "steps");
  axes.rows = harness::extent(item, "rows");
  axes.features = harness::extent(item, "features");
  axes.hidden = harness::extent(item, "hidden");
  axes.outputs = harness::extent(item, "outputs");
  axes.times = harness::amount(item, "loss_times");
  if (item.axes.contains("silent")) {
    const Json& silent = item.axes.at("silent");
    if (!silent.is_number_unsigned() || silent >= axes.micro_batches)
      harness::refuse(item, "axis 'silent' wants the index of a micro-batch");
    axes.silent = silent.get<int64_t>();
  }
  if (axes.stage > 2) harness::refuse(item, "axis 'stage' wants 1 or 2");
  if (axes.times <= 0) harness::refuse(item, "axis 'loss_times' wants a number above 0");
  if (harness::extent(item, "parameter_groups") > 2)
    harness::refuse(item, "axis 'parameter_groups' wants 1 or 2");
  static_cast<void>(harness::extent(item, "bucket"));
  for (const char* name : {"overlap_comm", "contiguous_gradients", "round_robin"})
    static_cast<void>(harness::flag(item, name));
  const std::string dtype = harness::choice(item, "dtype", {"float32", "bfloat16"});
  axes.dtype = dtype == "float32" ? at::kFloat : at::kBFloat16;
  return axes;
}

Tensors run_model(const Case& item, const Tensors& inputs, Kept kept) {
  const Axes axes = axes_of(item);
  return trained(inputs, axes.times, axes.stage == 1 ? Kept::kAll : kept, axes.silent);
}

class Zero2Pack final : public harness::Pack {
 public:
  std::string slug() const override { return "zero2_grad_accumulation"; }
  void check(const Case& item) const override { static_cast<void>(axes_of(item)); }
  at::ScalarType dtype(const Case& item) const override { return axes_of(item).dtype; }
  /// The subject computes with torch, which rounds.
  bool rounds_all_bf16_on_cpu() const override { return true; }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    const Axes axes = axes_of(item);
    const auto draw = [&](const char* name) { return Draw(seed, item.name + "/" + name); };
    const auto weight = [&](const char* name, int64_t rows, int64_t columns) {
      return (draw(name).normal({rows, columns}) / std::sqrt(columns))
          .to(axes.dtype)
          .to(at::kFloat);
    };
    const auto bias = [&](const char* name, int64_t rows) {
      return (draw(name).normal({rows}) * 0.25).to(axes.dtype).to(at::kFloat);
    };
    const std::vector<int64_t> outer = {kRanks, axes.steps, axes.micro_batches, axes.rows};
    const auto batch = [&](const char* name, int64_t width) {
      std::vector<int64_t> sizes = outer;
      sizes.push_back(width);
      return draw(name).normal(sizes);
    };
    // Targets far from what the net gives at first: the micro-batches' gradients differ in size.
    return {{"x", batch("x", axes.features).to(axes.dtype)},
            {"y", (batch("y", axes.outputs) * 2).to(at::kFloat)},
            {"w1", weight("w1", axes.hidden, axes.features)},
            {"b1", bias("b1", axes.hidden)},
            {"w2", weight("w2", axes.outputs, axes.hidden)},
            {"b2", bias("b2", axes.outputs)}};
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return run_model(item, in_fp64(inputs), Kept::kAll);
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return run_model(item, inputs, Kept::kAll);
  }

  std::map<std::string, int64_t> extents(const Case& item) const override {
    const Axes axes = axes_of(item);
    return {
        {"micro_batches", axes.micro_batches}, {"steps", axes.steps},   {"rows", axes.rows},
        {"features", axes.features},           {"hidden", axes.hidden}, {"outputs", axes.outputs}};
  }

  /// Terms of both signs are added, one for each row and output of the step: a gradient may be far
  /// smaller than the root of the sum of their squares, which this estimates (the terms of w1 and
  /// b1 pass through w2), and than what a rank has added up so far, which is rounded at its own
  /// size.
  double least_size(const Case& item, const Tensors& inputs, const Tensors&,
                    const std::string& tensor) const override {
    if (!tensor.starts_with("grad_")) return 0;
    const Axes axes = axes_of(item);
    const auto rms = [&](const char* name) {
      return inputs.at(name).square().mean().sqrt().item<double>();
    };
    const auto num_terms =
        static_cast<double>(kRanks * axes.micro_batches * axes.rows * axes.outputs);
    const double terms =
        axes.times * rms("y") / std::sqrt(num_terms) * (tensor.ends_with("1") ? rms("w2") : 1);
    std::map<std::string, double> largest;
    trained(in_fp64(inputs), axes.times, Kept::kAll, axes.silent, &largest);
    return std::max(terms, largest.at(tensor));
  }

  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    const Axes axes = axes_of(item);
    if (axes.dtype == at::kFloat) return axes.steps > 1 ? kFp32Steps : kFp32;
    const int64_t num_elements = tensor == "grad_w1"   ? axes.hidden * axes.features
                                 : tensor == "grad_w2" ? axes.outputs * axes.hidden
                                                       : 1;
    if (num_elements >= kFewest) return kBf16Large;
    return axes.micro_batches > 4 ? kBf16Many : kBf16;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    const auto model = [](Kept kept) {
      return
          [kept](const Case& item, const Tensors& inputs) { return run_model(item, inputs, kept); };
    };
    return {{"model", model(Kept::kLast)},
            {"model_fixed", model(Kept::kAll)},
            {"model_mutant:first_micro_batch", model(Kept::kFirst)},
            {"model_mutant:not_cleared", model(Kept::kEveryStep)}};
  }

  /// "last_micro_batch": the gradients are the last micro-batch's alone, divided by the number of
  /// micro-batches. "ranks_not_reduced": every element is that of one rank alone, of all its
  /// micro-batches or of the last.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const Axes axes = axes_of(item);
    if (axes.stage != 2) return "";
    const Tensors inputs = in_fp64(judgement.inputs);
    const double near = axes.dtype == at::kFloat ? 1e-3 : 0.1;
    const Tensors last = run_model(item, inputs, Kept::kLast);
    if (axes.micro_batches > 1 && are_of_either(judgement, last, last, near))
      return "last_micro_batch";
    for (const Kept kept : {Kept::kAll, Kept::kLast}) {
      const Tensors first = run_model(item, of_rank(inputs, 0), kept),
                    second = run_model(item, of_rank(inputs, 1), kept);
      if (are_of_either(judgement, first, second, near)) return "ranks_not_reduced";
    }
    return "";
  }

 private:
  /// Whether each element of the gradients is that of one of the two.
  static bool are_of_either(const Judgement& judgement, const Tensors& one, const Tensors& other,
                            double near) {
    return std::all_of(kParameters.begin(), kParameters.end(), [&](const std::string& parameter) {
      const std::string name = "grad_" + parameter;
      const auto got = judgement.got.find(name);
      if (got == judgement.got.end() || got->second.sizes() != one.at(name).sizes()) return false;
      const at::Tensor value = got->second.to(at::kDouble);
      const auto off = [&](const Tensors& from) { return (value - from.at(name)).abs(); };
      const at::Tensor nearest = at::where(off(one) <= off(other), one.at(name), other.at(name));
      return harness::errors_of(got->second, nearest).element <= near;
    });
  }
};

}  // namespace
}  // namespace patchbench::zero2_grad_accumulation

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::zero2_grad_accumulation::Zero2Pack());
}
