// Pack megatron_float16_cast: a module whose dt_bias, A_log, D and a buffer may be marked to stay
// in float32, what the wrapper's cast leaves of them, and dt_bias after an optimizer's steps.
#include <algorithm>

#include "harness/axes.h"
#include "harness/program.h"
#include "megatron_float16_cast/model.h"

namespace patchbench::megatron_float16_cast {
namespace {

using at::Tensor;
using harness::Draw;
using harness::extent;
using harness::Judgement;
using harness::Tensors;

const std::vector<std::string> kUpdates = {"none", "in_place", "main_params"};

/// What has to stay by the axis `marked`; "by_comment": nothing is marked, and what stays is what
/// a comment of Megatron's mixer says, "Keep A_log in fp32" and, at D, "Keep in fp32".
const std::map<std::string, std::set<std::string>> kMarked = {
    {"none", {}},
    {"dt_bias", {"dt_bias"}},
    {"A_log+D", {"A_log", "D"}},
    {"dt_bias+A_log+D", {"A_log", "D", "dt_bias"}},
    {"running", {"running"}},
    {"dt_bias+A_log+D+running", {"A_log", "D", "dt_bias", "running"}},
    {"by_comment", {"A_log", "D"}}};

/// Odd, and more than float16 holds: a cast of the whole numbers from here on is seen.
constexpr int64_t kCount = (1 << 20) + 1;

/// A case's axes, checked.
struct Axes : Problem {
  int64_t heads, hidden, tokens, depth;
  double values_times, step_size = 0;
};

Axes axes_of(const Case& item) {
  std::vector<std::string> known = {"depth",  "dtype",  "heads",  "hidden",
                                    "marked", "tokens", "update", "values_times"};
  const std::string update = harness::choice(item, "update", kUpdates);
  if (update != "none") known.insert(known.end(), {"step_size", "steps"});
  harness::check_axes(item, known);
  std::vector<std::string> choices;
  for (const auto& [name, kept] : kMarked) choices.push_back(name);
  Axes axes{};
  axes.dtype = harness::choice(item, "dtype", {"bfloat16", "float16"}) == "bfloat16" ? at::kBFloat16
                                                                                     : at::kHalf;
  axes.kept = kMarked.at(harness::choice(item, "marked", choices));
  axes.heads = extent(item, "heads");
  axes.hidden = extent(item, "hidden");
  axes.tokens = extent(item, "tokens");
  axes.depth = extent(item, "depth");
  axes.values_times = harness::amount(item, "values_times");
  if (update == "none") return axes;
  axes.update = update == "in_place" ? Update::kInPlace : Update::kMainParams;
  axes.steps = extent(item, "steps");
  axes.step_size = harness::amount(item, "step_size");
  if (!axes.kept.contains("dt_bias"))
    harness::refuse(item, "a dt_bias that is updated wants the axis 'marked' to name it");
  return axes;
}

/// The right values of a tensor of the module, in fp64: what it held, or what the cast makes of it.
Tensor right(const Axes& axes, const std::string& name, const Tensor& input) {
  const bool is_cast = input.is_floating_point() && !axes.kept.contains(name);
  return (is_cast ? input.to(axes.dtype) : input).to(at::kDouble);
}

constexpr const char* kCast =
    "a tensor that stays has its bits, and one that is cast is rounded once";
const harness::Tolerances kExact = {{0, 0, kCast}, {0, 0, kCast}, {0, 0, kCast}, {0, 0, kCast}};
constexpr const char* kSum =
    "twice plain float32, which adds the same steps; 4 ulp for a step of -(-x) in place of x";
const harness::Tolerances kUpdated = {{2, 4, kSum}, {2, 4, kSum}, {2, 4, kSum}, {2, 4, kSum}};
constexpr const char* kSoftplus = "twice plain float32; 8 ulp for another exp and log1p";
const harness::Tolerances kDelta = {
    {2, 8, kSoftplus}, {2, 8, kSoftplus}, {2, 8, kSoftplus}, {2, 8, kSoftplus}};

class Float16CastPack final : public harness::Pack {
 public:
  std::string slug() const override { return "megatron_float16_cast"; }
  void check(const Case& item) const override { static_cast<void>(axes_of(item)); }
  /// Ulps are of the tensors that stay in float32; a tensor that is cast has no tolerance.
  at::ScalarType dtype(const Case&) const override { return at::kFloat; }
  /// The cast is torch's own; no Triton kernel runs.
  bool rounds_all_bf16_on_cpu() const override { return true; }

  /// dt_bias where a mixer's dt of 1e-3 to 0.1 puts it, A_log of A in 1 to 16, D near 1: values of
  /// a trained model, which 16 bits do not hold.
  Tensors inputs(const Case& item, uint64_t seed) const override {
    const Axes axes = axes_of(item);
    const auto draw = [&](const char* name) { return Draw(seed, item.name + "/" + name); };
    const auto scaled = [&](const Tensor& values) {
      return (values * axes.values_times).to(at::kFloat);
    };
    const std::vector<int64_t> per_head = {axes.heads};
    Tensors inputs = {
        {"dt_bias", scaled(draw("dt_bias").uniform(per_head, -6.9, -2.25))},
        {"A_log", scaled(draw("A_log").uniform(per_head, 0, 2.77))},
        {"D", scaled(1 + 0.1 * draw("D").normal(per_head))},
        {"running", scaled(draw("running").normal(per_head))},
        {"weight", scaled(draw("weight").normal({axes.heads, axes.hidden}))},
        {"counts", kCount + draw("counts").integers({8}, 0, 4)},
        {"dt", draw("dt").normal({axes.tokens, axes.heads}).to(axes.dtype).to(at::kFloat)}};
    if (axes.update == Update::kNone) return inputs;
    const Tensor sizes = draw("sizes").uniform(per_head, 0.5, 1.5) * axes.step_size;
    const Tensor is_down = draw("is_down").mask(per_head, 0.5);
    inputs.emplace("update", at::where(is_down, -sizes, sizes).to(at::kFloat));
    return inputs;
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    const Axes axes = axes_of(item);
    Tensors outputs;
    for (const std::string& name : kTensors)
      outputs.emplace(name, right(axes, name, inputs.at(name)));
    Tensor& dt_bias = outputs.at("dt_bias");
    if (axes.update != Update::kNone) {
      dt_bias = dt_bias + static_cast<double>(axes.steps) * inputs.at("update").to(at::kDouble);
    }
    outputs.emplace("delta", at::softplus(inputs.at("dt").to(at::kDouble) + dt_bias, 1, 40));
    return outputs;
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return wrapped(inputs, axes_of(item), Cast::kUnmarked);
  }
  std::map<std::string, int64_t> extents(const Case& item) const override {
    const Axes axes = axes_of(item);
    std::map<std::string, int64_t> counts = {{"depth", axes.depth},
                                             {"heads", axes.heads},
                                             {"hidden", axes.hidden},
                                             {"tokens", axes.tokens}};
    if (axes.update != Update::kNone) counts.emplace("steps", axes.steps);
    return counts;
  }
  /// A delta below float32's normal numbers is 0 to who divides by it.
  double least_size(const Case&, const Tensors&, const Tensors&,
                    const std::string& tensor) const override {
    return tensor == "delta" ? 0x1p-126 : 0;
  }
  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    if (tensor == "delta") return kDelta;
    const bool is_updated = axes_of(item).update != Update::kNone;
    return tensor == "dt_bias" && is_updated ? kUpdated : kExact;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    const auto model = [](Cast cast) {
      return [cast](const Case& item, const Tensors& inputs) {
        return wrapped(inputs, axes_of(item), cast);
      };
    };
    return {{"model", model(Cast::kEvery)},
            {"model_fixed", model(Cast::kUnmarked)},
            {"model_mutant:widened_again", model(Cast::kEveryThenWiden)}};
  }

  /// "fp32_lost": what has to stay has the 16-bit dtype and is the rounded value, and all else is
  /// right; an updated dt_bias is at most two roundings off. "steps_rounded": the same, but
  /// dt_bias moved by something else than the steps' sum.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const Axes axes = axes_of(item);
    bool is_lost = false, is_rounded = false;
    for (const auto& [name, got] : judgement.got) {
      if (judgement.is_right(name) || name == "delta") continue;
      const Tensor input = judgement.inputs.at(name).cpu();
      if (!axes.kept.contains(name) || got.scalar_type() != axes.dtype) return "";
      const Tensor start = input.to(axes.dtype);
      is_lost = true;
      if (name != "dt_bias" || axes.update == Update::kNone) {
        if (!at::equal(got.cpu(), start)) return "";
        continue;
      }
      is_rounded = !moves_by_the_sum(axes, judgement, start.to(at::kDouble));
    }
    if (!is_lost) return "";
    return is_rounded ? "steps_rounded" : "fp32_lost";
  }

 private:
  /// Whether dt_bias went from `start` by the sum of its updates, but for one rounding at its end.
  static bool moves_by_the_sum(const Axes& axes, const Judgement& judgement, const Tensor& start) {
    const Tensor end = judgement.got.at("dt_bias").cpu().to(at::kDouble);
    const Tensor sum =
        static_cast<double>(axes.steps) * judgement.inputs.at("update").cpu().to(at::kDouble);
    const Tensor bound = harness::epsilon_of(axes.dtype) * at::maximum(start.abs(), end.abs());
    return (end - start - sum).abs().le(bound).all().item<bool>();
  }
};

}  // namespace
}  // namespace patchbench::megatron_float16_cast

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::megatron_float16_cast::Float16CastPack());
}
