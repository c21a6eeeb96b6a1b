// Pack megatron_float16_cast: modules of which some tensors have to stay in float32, what the
// wrapper's cast leaves of them, and dt_bias after an optimizer's steps. Either the real mixers,
// which make some of their parameters in float32 whatever the model's dtype is, or a module of our
// own whose dt_bias, A_log, D and a buffer may be marked to stay so.
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

using Names = std::set<std::string>;

const std::vector<std::string> kUpdates = {"none", "in_place", "main_params"};

/// What is marked to stay by the axis `marked`.
const std::map<std::string, Names> kMarked = {
    {"none", {}},
    {"dt_bias", {"dt_bias"}},
    {"A_log+D", {"A_log", "D"}},
    {"dt_bias+A_log+D", {"A_log", "D", "dt_bias"}},
    {"running", {"running"}},
    {"dt_bias+A_log+D+running", {"A_log", "D", "dt_bias", "running"}}};

/// A mixer of the axis `module`: what it makes in float32 by its own choice, and else.
struct Mixer {
  Names own, others;
};
/// Measured on the releases (packs/megatron_float16_cast/README.md).
const Names kMamba3 = {"B_bias", "C_bias", "D", "dt_bias"};
const Names kMamba3Mimo = {"B_bias", "C_bias", "D", "dt_bias", "mimo_o", "mimo_x", "mimo_z"};
const std::map<std::string, Mixer> kMixers = {
    {"MambaMixer", {{"A_log", "D"}, {"dt_bias"}}},
    {"MambaMixer_subclass", {{"A_log", "D"}, {"dt_bias"}}},
    {"Mamba3", {kMamba3, {}}},
    {"Mamba3_MIMO", {kMamba3Mimo, {}}}};
/// What every mixer of a case has besides: two weights and two buffers.
const Names kAnyMixers = {"counts", "norm", "running", "weight"};
/// The tensors of a module of our own.
const Names kOurs = {"A_log", "D", "counts", "dt_bias", "running", "weight"};

/// Odd, and more than float16 holds: a cast of the whole numbers from here on is seen.
constexpr int64_t kCount = (1 << 20) + 1;

/// A case's axes, checked.
struct Axes : Problem {
  std::string mixer;  ///< "" for a module of our own
  int64_t heads, depth, hidden, tokens, layers, head_dim, state_dim, num_ranks = 1;
  double values_times, step_size = 0;
  bool has_gradients;

  /// The sizes of one mixer's tensor; a tensor of the case has its layers before them.
  std::vector<int64_t> shape_of(const std::string& name) const {
    if (name == "counts") return {8};
    if (name == "weight") return {heads * head_dim / 2, heads * head_dim};
    if (name == "norm") return {mixer.starts_with("Mamba3") ? state_dim : heads * head_dim};
    if (name == "B_bias" || name == "C_bias") return {heads, num_ranks, state_dim};
    if (name.starts_with("mimo_")) return {heads, num_ranks, head_dim};
    return {heads};
  }
};

Names joined(Names names, const Names& others) {
  names.insert(others.begin(), others.end());
  return names;
}

template <class Value>
std::vector<std::string> keys_of(const std::map<std::string, Value>& values) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values) keys.push_back(key);
  return keys;
}

/// The axes that only a case with a mixer has.
void read_mixer(const Case& item, std::vector<std::string>& known, Axes& axes) {
  axes.mixer = harness::choice(item, "module", keys_of(kMixers));
  const Mixer& mixer = kMixers.at(axes.mixer);
  axes.own = mixer.own;
  axes.tensors = joined(joined(mixer.own, mixer.others), kAnyMixers);
  axes.layers = extent(item, "layers");
  axes.head_dim = extent(item, "head_dim");
  axes.state_dim = extent(item, "state_dim");
  axes.is_frozen = harness::flag(item, "frozen");
  const std::string params_dtype =
      harness::choice(item, "params_dtype", {"of_the_model", "float32"});
  harness::choice(item, "tied", {"none", "before", "after"});
  extent(item, "wraps");
  known.insert(known.end(), {"module", "layers", "head_dim", "state_dim", "frozen", "params_dtype",
                             "tied", "wraps"});
  if (axes.mixer == "Mamba3_MIMO") {
    axes.num_ranks = extent(item, "num_ranks");
    known.push_back("num_ranks");
  }
  if (axes.head_dim % 2 != 0) harness::refuse(item, "axis 'head_dim' must be even");
  if (mixer.others.contains("dt_bias") && axes.marked.contains("dt_bias") &&
      params_dtype != "float32")
    harness::refuse(item, "a dt_bias that is made in 16 bits cannot stay in float32");
  if (axes.state_dim < 4) harness::refuse(item, "axis 'state_dim' must be at least 4");
}

/// The axes that only a case with a module of our own has.
void read_ours(const Case& item, std::vector<std::string>& known, Axes& axes) {
  axes.tensors = kOurs;
  axes.hidden = extent(item, "hidden");
  axes.tokens = extent(item, "tokens");
  known.insert(known.end(), {"hidden", "tokens", "update"});
  const std::string update = harness::choice(item, "update", kUpdates);
  if (update == "none") return;
  known.insert(known.end(), {"step_size", "steps"});
  axes.update = update == "in_place" ? Update::kInPlace : Update::kMainParams;
  axes.steps = extent(item, "steps");
  axes.step_size = harness::amount(item, "step_size");
  if (!axes.marked.contains("dt_bias"))
    harness::refuse(item, "a dt_bias that is updated wants the axis 'marked' to name it");
}

Axes axes_of(const Case& item) {
  std::vector<std::string> known =
      harness::with_optional(item, {"depth", "dtype", "heads", "marked", "values_times"}, "grads");
  Axes axes{};
  axes.dtype = harness::choice(item, "dtype", {"bfloat16", "float16"}) == "bfloat16" ? at::kBFloat16
                                                                                     : at::kHalf;
  axes.marked = kMarked.at(harness::choice(item, "marked", keys_of(kMarked)));
  axes.heads = extent(item, "heads");
  axes.depth = extent(item, "depth");
  axes.values_times = harness::amount(item, "values_times");
  axes.has_gradients = item.axes.contains("grads") && harness::flag(item, "grads");
  if (item.axes.contains("module"))
    read_mixer(item, known, axes);
  else
    read_ours(item, known, axes);
  harness::check_axes(item, known);
  for (const std::string& name : axes.marked)
    if (!axes.tensors.contains(name)) harness::refuse(item, "the module has no '" + name + "'");
  return axes;
}

/// The right values of a tensor of the module or of its gradient, in fp64: what it held, or what
/// the cast makes of it.
Tensor right(const Axes& axes, const std::string& name, const Tensor& input) {
  const bool is_cast = input.is_floating_point() && !axes.keeps(name);
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

  Tensors inputs(const Case& item, uint64_t seed) const override {
    const Axes axes = axes_of(item);
    const auto draw = [&](const std::string& name) { return Draw(seed, item.name + "/" + name); };
    const std::vector<int64_t> per_head = {axes.heads};
    Tensors inputs;
    for (const std::string& name : axes.tensors) {
      std::vector<int64_t> shape = axes.shape_of(name);
      if (!axes.mixer.empty()) shape.insert(shape.begin(), axes.layers);
      if (axes.mixer.empty() && name == "weight") shape = {axes.heads, axes.hidden};
      const Tensor values = drawn(draw(name), name, shape);
      const bool is_count = !values.is_floating_point();
      inputs.emplace(name, is_count ? values : (values * axes.values_times).to(at::kFloat));
      if (axes.has_gradients && !is_count && name != "running")
        inputs.emplace(name + ".grad", draw(name + ".grad").normal(shape).to(at::kFloat));
    }
    if (!axes.mixer.empty()) return inputs;
    const Tensor dt = draw("dt").normal({axes.tokens, axes.heads});
    inputs.emplace("dt", dt.to(axes.dtype).to(at::kFloat));
    if (axes.update == Update::kNone) return inputs;
    const Tensor sizes = draw("sizes").uniform(per_head, 0.5, 1.5) * axes.step_size;
    const Tensor is_down = draw("is_down").mask(per_head, 0.5);
    inputs.emplace("update", at::where(is_down, -sizes, sizes).to(at::kFloat));
    return inputs;
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    const Axes axes = axes_of(item);
    Tensors outputs;
    for (const std::string& name : axes.tensors) {
      outputs.emplace(name, right(axes, name, inputs.at(name)));
      if (inputs.contains(name + ".grad"))
        outputs.emplace(name + ".grad", right(axes, name, inputs.at(name + ".grad")));
    }
    if (!axes.mixer.empty()) {
      outputs.emplace("objects", objects(axes, axes.layers).to(at::kDouble));
      return outputs;
    }
    Tensor& dt_bias = outputs.at("dt_bias");
    if (axes.update != Update::kNone) {
      dt_bias = dt_bias + static_cast<double>(axes.steps) * inputs.at("update").to(at::kDouble);
    }
    outputs.emplace("delta", at::softplus(inputs.at("dt").to(at::kDouble) + dt_bias, 1, 40));
    return outputs;
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return wrapped(inputs, axes_of(item), Cast::kAllButKept);
  }
  std::map<std::string, int64_t> extents(const Case& item) const override {
    const Axes axes = axes_of(item);
    std::map<std::string, int64_t> counts = {{"depth", axes.depth}, {"heads", axes.heads}};
    const auto add = [&](const char* name, int64_t count) { counts.emplace(name, count); };
    if (axes.mixer.empty()) {
      add("hidden", axes.hidden);
      add("tokens", axes.tokens);
      if (axes.update != Update::kNone) add("steps", axes.steps);
      return counts;
    }
    add("layers", axes.layers);
    add("head_dim", axes.head_dim);
    add("state_dim", axes.state_dim);
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
            {"model_fixed", model(Cast::kAllButKept)},
            {"model_mutant:gradients_cast", model(Cast::kGradientsOfKept)},
            {"model_mutant:marked_alone", model(Cast::kMarkedAlone)},
            {"model_mutant:widened_again", model(Cast::kEveryThenWiden)}};
  }

  /// What has to stay, and its gradient, has the 16-bit dtype and is the rounded value, and all
  /// else is right. "mixer_parameters_rounded": one that a mixer makes in float32 is among them;
  /// "fp32_lost": they were marked; an updated dt_bias is at most two roundings off.
  /// "steps_rounded": the same, but dt_bias moved by something else than the steps' sum.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const Axes axes = axes_of(item);
    bool is_lost = false, is_own = false, is_rounded = false;
    for (const auto& [output, got] : judgement.got) {
      if (judgement.is_right(output) || output == "delta") continue;
      const bool is_gradient = output.ends_with(".grad");
      const std::string name = is_gradient ? output.substr(0, output.size() - 5) : output;
      if (!axes.keeps(name) || got.scalar_type() != axes.dtype) return "";
      if (is_gradient && judgement.is_right(name)) return "";
      const Tensor start = judgement.inputs.at(output).cpu().to(axes.dtype);
      is_lost = true;
      is_own |= axes.own.contains(name);
      if (output != "dt_bias" || axes.update == Update::kNone) {
        if (!at::equal(got.cpu(), start)) return "";
        continue;
      }
      is_rounded = !moves_by_the_sum(axes, judgement, start.to(at::kDouble));
    }
    if (!is_lost) return "";
    if (is_own) return "mixer_parameters_rounded";
    return is_rounded ? "steps_rounded" : "fp32_lost";
  }

 private:
  /// dt_bias where a mixer's dt of 1e-3 to 0.1 puts it, A_log of A in 1 to 16, the factors and
  /// biases near 1: values of a trained model, which 16 bits do not hold.
  static Tensor drawn(const Draw& draw, const std::string& name,
                      const std::vector<int64_t>& shape) {
    if (name == "counts") return kCount + draw.integers(shape, 0, 4);
    if (name == "dt_bias") return draw.uniform(shape, -6.9, -2.25);
    if (name == "A_log") return draw.uniform(shape, 0, 2.77);
    if (name == "running" || name == "weight") return draw.normal(shape);
    return 1 + 0.1 * draw.normal(shape);
  }
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
