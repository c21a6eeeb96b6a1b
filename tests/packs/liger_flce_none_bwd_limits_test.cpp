// patchbench::flce at its limits: refused arguments, frozen inputs, non-finite gradients, memory;
// and deliberately wrong backwards, each of which the tolerance of the gradient tests turns down.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "packs/liger_flce_none_bwd_reference.h"

namespace patchbench::flce_test {
namespace {

using ops::liger_flce_none_bwd::flce;

FlceCase full_case(const std::string& name) {
  FlceCase c{.name = name, .tokens = 33, .hidden = 16, .vocab = 67};
  c.has_bias = c.has_class_weight = true;
  c.label_smoothing = 0.1;
  c.lse_square_scale = 0.01;
  c.softcap = 2.5;
  c.chunk_bytes = 33 * 10 * 4;
  return c;
}

// ---- wrong backwards ----

/// A backward in torch from the per-token gradient of the logits. A mutant spoils one stage: what
/// is composed and differentiated, how the rows are scaled, or what was projected.
struct Mutant {
  std::string name;
  std::function<void(FlceCase&, Tensors&)> composed = [](FlceCase&, Tensors&) {};
  std::function<at::Tensor(const at::Tensor& rows, const at::Tensor& grad)> scaled =
      [](const at::Tensor& rows, const at::Tensor& grad) { return rows * grad.unsqueeze(1); };
  std::function<void(const at::Tensor& rows, const Tensors& inputs, Tensors& outputs)> projected =
      [](const at::Tensor&, const Tensors&, Tensors&) {};
};

/// The gradient of each token's loss by its own logits, unscaled: [tokens, vocab].
at::Tensor unscaled_rows(const FlceCase& c, const Tensors& inputs) {
  Tensors logits = inputs;
  const at::Tensor z =
      torch::nn::functional::linear(inputs.at("hidden"), inputs.at("weight"), inputs.at("bias"));
  logits["hidden"] = z.detach().to(at::kFloat).requires_grad_(true);
  logits["weight"] = torch::eye(c.vocab, at::kFloat);
  logits.erase("bias");
  return torch::autograd::grad({composed_loss(c, logits).sum()}, {logits.at("hidden")})[0];
}

Tensors mutant_of(const FlceCase& c, const Tensors& inputs, const Mutant& mutant) {
  FlceCase spoiled = c;
  Tensors used = inputs;
  mutant.composed(spoiled, used);
  const at::Tensor rows = unscaled_rows(spoiled, used);
  const at::Tensor scaled = mutant.scaled(rows, inputs.at("grad_output")).to(c.dtype);
  Tensors outputs = {{"loss", plain_of(c, inputs).at("loss")},
                     {"grad_hidden", scaled.mm(inputs.at("weight"))},
                     {"grad_weight", scaled.t().mm(inputs.at("hidden"))},
                     {"grad_bias", scaled.to(at::kFloat).sum(0).to(c.dtype)}};
  mutant.projected(rows, inputs, outputs);
  return outputs;
}

std::vector<Mutant> mutants() {
  using T = at::Tensor;
  std::vector<Mutant> m(14);
  m[0] = {.name = "first_rows_gradient_for_all"};
  m[0].scaled = [](const T& rows, const T& grad) { return rows * grad[0]; };
  m[1] = {.name = "rows_shifted_by_one"};
  m[1].scaled = [](const T& rows, const T& grad) { return rows * grad.roll(1).unsqueeze(1); };
  m[2] = {.name = "gradient_not_applied"};
  m[2].scaled = [](const T& rows, const T&) { return rows.clone(); };
  m[3] = {.name = "divided_by_tokens"};
  m[3].scaled = [](const T& rows, const T& grad) {
    return rows * grad.unsqueeze(1) / grad.size(0);
  };
  m[4] = {.name = "sum_of_gradients_for_all"};
  m[4].scaled = [](const T& rows, const T& grad) { return rows * grad.sum(); };
  m[5] = {.name = "magnitude_without_sign"};
  m[5].scaled = [](const T& rows, const T& grad) { return rows * grad.abs().unsqueeze(1); };
  m[6] = {.name = "grad_weight_unscaled"};
  m[6].projected = [](const T& rows, const Tensors& in, Tensors& out) {
    out["grad_weight"] = rows.to(in.at("hidden").scalar_type()).t().mm(in.at("hidden"));
  };
  m[7] = {.name = "grad_bias_unscaled"};
  m[7].projected = [](const T& rows, const Tensors& in, Tensors& out) {
    out["grad_bias"] = rows.sum(0).to(in.at("hidden").scalar_type());
  };
  m[8] = {.name = "last_row_of_grad_hidden_missing"};
  m[8].projected = [](const T&, const Tensors&, Tensors& out) { out["grad_hidden"][-1].zero_(); };
  m[9] = {.name = "ignored_rows_counted"};
  m[9].composed = [](FlceCase& c, Tensors& in) {
    in["target"] = in["target"].masked_fill(in["target"].eq(c.ignore_index), 0);
  };
  m[10] = {.name = "smoothing_left_out"};
  m[10].composed = [](FlceCase& c, Tensors&) { c.label_smoothing = 0; };
  m[11] = {.name = "z_loss_left_out"};
  m[11].composed = [](FlceCase& c, Tensors&) { c.lse_square_scale = 0; };
  m[12] = {.name = "softcap_left_out"};
  m[12].composed = [](FlceCase& c, Tensors&) { c.softcap = 0; };
  m[13] = {.name = "class_weight_left_out"};
  m[13].composed = [](FlceCase&, Tensors& in) { in.erase("class_weight"); };
  return m;
}

class FlceTolerance : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, FlceTolerance, testing::Values(at::kFloat, at::kBFloat16),
                         [](const testing::TestParamInfo<at::ScalarType>& param) {
                           return param.param == at::kFloat ? "fp32" : "bf16";
                         });

TEST_P(FlceTolerance, TakesTheUnspoiledBackwardAndTurnsEveryMutantDown) {
  FlceCase c = full_case("mutants");
  c.dtype = GetParam();
  const Tensors inputs = inputs_of(c), oracle = oracle_of(c, inputs), plain = plain_of(c, inputs);
  EXPECT_EQ(failure(c, mutant_of(c, inputs, {.name = "none"}), oracle, plain), "");
  for (const Mutant& mutant : mutants()) {
    EXPECT_NE(failure(c, mutant_of(c, inputs, mutant), oracle, plain), "") << mutant.name;
  }
}

// ---- devices ----

class FlceLimits : public testing::TestWithParam<std::string> {
 protected:
  Tensors inputs(const FlceCase& c) const { return moved(inputs_of(c), GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, FlceLimits, testing::ValuesIn(devices()),
                         [](const testing::TestParamInfo<std::string>& param) {
                           return param.param.substr(0, param.param.find(':'));
                         });

TEST_P(FlceLimits, GivesEachWantedGradientAloneAndLeavesTheOthersUndefined) {
  for (const int64_t tokens : {33, 90}) {
    FlceCase c = full_case("frozen");
    c.tokens = tokens;
    const Tensors all_inputs = inputs(c);
    const Tensors whole = op_of(c, all_inputs);
    for (const char* name : {"hidden", "weight", "bias"}) {
      Tensors leaves = leaves_of(all_inputs, c.dtype);
      for (const char* other : {"hidden", "weight", "bias"}) {
        if (std::string(other) != name) leaves[other] = leaves[other].detach();
      }
      const at::Tensor loss = flce(leaves.at("hidden"), leaves.at("weight"), leaves.at("target"),
                                   options_of(c, leaves));
      loss.backward(leaves.at("grad_output"));
      const auto errors =
          harness::errors_of(leaves.at(name).grad(), whole.at(std::string("grad_") + name));
      EXPECT_LT(errors.row, 1e-4) << name << " alone, " << tokens << " tokens";
      for (const char* other : {"hidden", "weight", "bias"}) {
        EXPECT_EQ(leaves.at(other).grad().defined(), std::string(other) == name);
      }
    }
  }
}

TEST_P(FlceLimits, NeedsNoGraphWhereNothingRequiresGrad) {
  const FlceCase c = full_case("no_grad");
  const Tensors here = inputs(c);
  const at::Tensor loss =
      flce(here.at("hidden"), here.at("weight"), here.at("target"), options_of(c, here));
  EXPECT_FALSE(loss.requires_grad());
  const torch::InferenceMode inference;
  EXPECT_TRUE(torch::equal(
      flce(here.at("hidden"), here.at("weight"), here.at("target"), options_of(c, here)), loss));
}

TEST_P(FlceLimits, StaysFiniteWhereAnIgnoredRowHasANonFiniteGradient) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const FlceCase c = full_case("infinite");
    Tensors here = inputs(c);
    const Tensors wanted = op_of(c, here);
    here["grad_output"] =
        here.at("grad_output").masked_fill(here.at("target").eq(c.ignore_index), bad);
    for (const auto& [name, tensor] : op_of(c, here)) {
      EXPECT_TRUE(torch::equal(tensor, wanted.at(name))) << name;
    }
  }
}

TEST_P(FlceLimits, ReturnsEmptyAndZeroForNoTokens) {
  FlceCase c = full_case("empty");
  c.tokens = 0;
  c.ignored = "none";
  const Tensors outputs = op_of(c, inputs(c));
  EXPECT_EQ(outputs.at("loss").sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(outputs.at("grad_hidden").sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(outputs.at("grad_weight").abs().max().item<double>(), 0);
  EXPECT_EQ(outputs.at("grad_bias").sizes(), at::IntArrayRef({67}));
}

/// The most bytes alive at once on one device, above what was alive at its birth; counted by
/// torch's own allocators.
class PeakMeter : public c10::MemoryReportingInfoBase {
 public:
  explicit PeakMeter(const std::string& device) : device_(device) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() != device_.type()) return;
    alive_ += bytes;
    peak_ = std::max(peak_, alive_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  c10::Device device_;
  int64_t alive_ = 0, peak_ = 0;
};

TEST_P(FlceLimits, NeverHoldsMoreThanATileOfLogits) {
  FlceCase c{.name = "memory", .dtype = at::kBFloat16, .tokens = 512, .hidden = 8, .vocab = 16384};
  c.has_bias = true;
  c.softcap = 8;
  c.chunk_bytes = 1 << 20;
  const int64_t logits_bytes = c.tokens * c.vocab * 2;
  const Tensors here = inputs(c);
  at::set_num_threads(1);  // the CPU's GEMM packs its operands anew in each
  op_of(c, here);          // what libraries allocate once is not counted
  const auto meter = std::make_shared<PeakMeter>(GetParam());
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    op_of(c, here);
  }
  // A tile, grad_weight in bf16, grad_hidden in bf16 and fp32, grad_bias and rows of scalars; and
  // what the CPU's GEMM packs its operands into (0.5 MiB measured).
  const int64_t gradients = c.vocab * c.hidden * 2 + c.tokens * c.hidden * 6 + c.vocab * 8;
  const int64_t bound = c.chunk_bytes + gradients + (1 << 16) + (1 << 20);
  EXPECT_GT(meter->peak(), c.chunk_bytes) << "the meter does not see the op's allocations";
  EXPECT_LE(meter->peak(), bound);
  EXPECT_LT(bound, logits_bytes / 4) << "the bound would not notice the whole logits";
}

// ---- refusals ----

/// The first line of the error that `call` throws, or "" if it throws nothing.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  }
  return "";
}

TEST_P(FlceLimits, RefusesEachWrongArgumentInOneLineThatNamesIt) {
  const FlceCase c = full_case("wrong");
  const Tensors good = inputs(c);
  const auto refused = [&](const std::function<void(Tensors&, FlceOptions&)>& spoil) {
    Tensors t = good;
    FlceOptions o = options_of(c, good);
    spoil(t, o);
    return refusal([&] { flce(t.at("hidden"), t.at("weight"), t.at("target"), o); });
  };
  const auto narrow = [](const at::Tensor& t) { return t.narrow(0, 0, 3); };
  EXPECT_EQ(refused([](Tensors&, FlceOptions&) {}), "");
  EXPECT_EQ(refused([](Tensors&, FlceOptions& o) { o.reduction = "avg"; }),
            "flce: reduction must be none, mean or sum, got avg");
  EXPECT_EQ(refused([](Tensors&, FlceOptions& o) { o.label_smoothing = 1.5; }),
            "flce: label_smoothing must lie in [0, 1], got 1.5");
  EXPECT_EQ(refused([](Tensors&, FlceOptions& o) { o.softcap = -1; }),
            "flce: softcap must be finite and > 0, got -1");
  EXPECT_EQ(refused([](Tensors&, FlceOptions& o) { o.chunk_bytes = 0; }),
            "flce: chunk_bytes must be > 0, got 0");
  EXPECT_EQ(refused([](Tensors&, FlceOptions& o) { o.keep_bytes = -1; }),
            "flce: keep_bytes must be >= 0, got -1");
  EXPECT_EQ(refused([](Tensors&, FlceOptions& o) { o.lse_square_scale = std::nan(""); }),
            "flce: lse_square_scale must be finite, got nan");
  EXPECT_EQ(refused([](Tensors& t, FlceOptions&) { t["hidden"] = t["hidden"].unsqueeze(0); }),
            "flce: hidden must have 2 axes [tokens, hidden], got 3");
  EXPECT_EQ(refused([](Tensors& t, FlceOptions&) { t["weight"] = t["weight"].narrow(1, 0, 5); }),
            "flce: weight must have shape [vocab, 16], got [67, 5]");
  EXPECT_EQ(refused([](Tensors& t, FlceOptions&) { t["weight"] = t["weight"].narrow(0, 0, 0); }),
            "flce: weight must have at least one class and one feature, got [0, 16]");
  EXPECT_EQ(refused([&](Tensors& t, FlceOptions&) { t["target"] = narrow(t["target"]); }),
            "flce: target must have shape [33], got [3]");
  EXPECT_EQ(refused([](Tensors& t, FlceOptions&) { t["target"] = t["target"].to(at::kInt); }),
            "flce: target must have dtype int64, got int32");
  EXPECT_EQ(refused([](Tensors& t, FlceOptions&) { t["hidden"] = t["hidden"].to(at::kInt); }),
            "flce: hidden must have dtype float32, bfloat16, float16 or float64, got int32");
  EXPECT_EQ(refused([](Tensors& t, FlceOptions&) { t["weight"] = t["weight"].to(at::kBFloat16); }),
            "flce: weight must have hidden's dtype float32, got bfloat16");
  EXPECT_EQ(refused([&](Tensors&, FlceOptions& o) { o.bias = narrow(*o.bias); }),
            "flce: bias must have shape [67], got [3]");
  EXPECT_EQ(
      refused([](Tensors&, FlceOptions& o) { o.class_weight = o.class_weight->to(at::kLong); }),
      "flce: class_weight must have a floating dtype, got int64");
  EXPECT_EQ(refused([](Tensors&, FlceOptions& o) {
              o.class_weight = o.class_weight->detach().requires_grad_(true);
            }),
            "flce: class_weight must not require grad: the loss is not differentiated by it; pass "
            "class_weight.detach()");
}

TEST_P(FlceLimits, AnswersATargetBeyondTheVocabularyLoudly) {
  const FlceCase c = full_case("out_of_range");
  Tensors here = inputs(c);
  here["target"][1] = 67;
  if (at::Device(GetParam()).is_cpu()) {
    EXPECT_EQ(refusal([&] { op_of(c, here); }),
              "flce: target[1] must lie in [0, 67) or be ignore_index -100, got 67");
    return;
  }
  const Tensors outputs = op_of(c, here);
  EXPECT_TRUE(outputs.at("loss")[1].isnan().item<bool>());
  EXPECT_EQ(outputs.at("loss").isnan().sum().item<int64_t>(), 1);
  EXPECT_TRUE(outputs.at("grad_hidden")[1].isnan().all().item<bool>());
  EXPECT_TRUE(outputs.at("grad_hidden").narrow(0, 2, 31).isfinite().all().item<bool>());
}

TEST_P(FlceLimits, RefusesAGradOutputOfAnotherShape) {
  const FlceCase c = full_case("grad_shape");
  const Tensors t = inputs(c);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("patchbench::flce_backward", "");
  const at::Tensor lse = torch::zeros({2, 33}, t.at("hidden").options());
  torch::jit::Stack stack = {t.at("grad_output").narrow(0, 0, 1),
                             lse,
                             t.at("hidden"),
                             t.at("weight"),
                             t.at("target"),
                             c10::IValue(),
                             c10::IValue(),
                             "none",
                             -100,
                             0.0,
                             0.0,
                             c10::IValue(),
                             c10::IValue(),
                             c10::List<bool>({true, true, false})};
  EXPECT_EQ(refusal([&] { op.callBoxed(stack); }),
            "flce: grad_output must have shape [33], got [1]");
}

TEST_P(FlceLimits, RaisesForASecondDerivative) {
  const FlceCase c = full_case("second_derivative");
  const Tensors leaves = leaves_of(inputs(c), c.dtype);
  const at::Tensor loss =
      flce(leaves.at("hidden"), leaves.at("weight"), leaves.at("target"), options_of(c, leaves));
  const auto grads = torch::autograd::grad({loss.sum()}, {leaves.at("hidden")}, {}, true, true);
  const std::string why =
      refusal([&] { torch::autograd::grad({grads[0].sum()}, {leaves.at("hidden")}); });
  EXPECT_NE(why.find("patchbench::flce_backward"), std::string::npos) << why;
}

}  // namespace
}  // namespace patchbench::flce_test
