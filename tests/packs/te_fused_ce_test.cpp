// patchbench::cross_entropy against torch's own composition in fp64, on every device of this
// machine and in its plain form.
#include <cmath>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "packs/op_test.h"
#include "te_fused_ce/model.h"
#include "te_fused_ce/op.h"

namespace patchbench::te_fused_ce_test {
namespace {

using harness::Tensors;
using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::te_fused_ce::cross_entropy_backward;
using ops::te_fused_ce::cross_entropy_backward_;
using ops::te_fused_ce::cross_entropy_combine;
using ops::te_fused_ce::cross_entropy_forward;
using ops::te_fused_ce::cross_entropy_loss;
using ops::te_fused_ce::cross_entropy_statistics;
using ops::te_fused_ce::CrossEntropyOptions;
using te_fused_ce::Options;
using te_fused_ce::reference;

constexpr int64_t kIgnore = -100;

/// One problem; what a name does not say is as in the first lines.
struct CeCase {
  std::string name;
  int64_t batch = 3, seqlen = 5, vocab = 67;
  std::string reduction = "none", layout = "row_major";
  double label_smoothing = 0;
  bool is_confident = false;
};

std::vector<CeCase> cases() {
  return {{.name = "none"},
          {.name = "mean", .reduction = "mean"},
          {.name = "none_smoothing", .label_smoothing = 0.1},
          {.name = "mean_smoothing_all", .reduction = "mean", .label_smoothing = 1},
          {.name = "one_class", .vocab = 1},
          {.name = "one_row", .batch = 1, .seqlen = 1, .vocab = 9},
          {.name = "beyond_a_block", .batch = 2, .seqlen = 3, .vocab = 1031},
          {.name = "model_vocab", .batch = 1, .seqlen = 4, .vocab = 32000},
          {.name = "many_rows", .batch = 43, .seqlen = 100, .vocab = 67, .reduction = "mean"},
          {.name = "odd_rows", .batch = 2, .seqlen = 5, .vocab = 8203, .label_smoothing = 0.1},
          {.name = "offset", .seqlen = 4, .vocab = 1031, .layout = "offset"},
          {.name = "transposed", .layout = "transposed"},
          {.name = "sliced", .layout = "sliced"},
          {.name = "classes_strided", .layout = "classes_strided"},
          {.name = "expanded", .layout = "expanded"},
          {.name = "confident", .is_confident = true},
          {.name = "confident_smoothing", .label_smoothing = 0.1, .is_confident = true}};
}

at::Tensor laid(const at::Tensor& x, const std::string& layout) {
  if (layout == "transposed") return x.transpose(0, 1).contiguous().transpose(0, 1);
  if (layout == "sliced") return at::cat({x, x}, 1).narrow(1, 0, x.size(1));
  if (layout == "classes_strided") return x.transpose(0, 2).contiguous().transpose(0, 2);
  if (layout == "offset")  // no row's gradient has its logits' address modulo 16
    return at::cat({x.flatten().narrow(0, 0, 1), x.flatten()}).narrow(0, 1, x.numel()).view_as(x);
  if (layout == "expanded") return x.narrow(0, 0, 1).expand_as(x);
  return x;
}

/// A third of the labels is ignored; grad_loss differs by row and is transposed in memory.
Tensors inputs_of(const CeCase& c, at::ScalarType type, const std::string& device) {
  const auto draw = [&](const char* tensor) { return harness::Draw(3, c.name + "/" + tensor); };
  at::Tensor labels = draw("labels").integers({c.batch, c.seqlen}, 0, c.vocab);
  at::Tensor x = draw("logits").normal({c.batch, c.seqlen, c.vocab});
  if (c.is_confident)
    x.scatter_add_(2, labels.unsqueeze(2), at::full({c.batch, c.seqlen, 1}, 12.0, x.options()));
  if (c.batch * c.seqlen > 1) labels.view(-1).slice(0, 1, labels.numel(), 3).fill_(kIgnore);
  at::Tensor grad = draw("grad").uniform({c.seqlen, c.batch}, -1, 1).to(at::kFloat).t();
  if (c.reduction == "mean") grad = at::full({}, 0.625);
  return {{"logits", harness::view_on(laid(x.to(type), c.layout), at::Device(device))},
          {"labels", labels.t().contiguous().t().to(device)},
          {"grad_loss", grad.to(device)}};
}

Tensors run(const Tensors& inputs, const CrossEntropyOptions& options) {
  const at::Tensor &x = inputs.at("logits"), &labels = inputs.at("labels");
  const auto [loss, statistics] = cross_entropy_forward(x, labels, options);
  return {{"loss", loss},
          {"grad_logits", cross_entropy_backward(inputs.at("grad_loss"), statistics, x, labels, 0,
                                                 x.size(2), options)}};
}

Tensors in_fp64(const Tensors& inputs) {
  Tensors wide;
  for (const auto& [name, tensor] : inputs)
    wide.emplace(name, tensor.is_floating_point() ? tensor.cpu().to(at::kDouble) : tensor.cpu());
  return wide;
}

constexpr harness::Tolerances kRight = {
    Tolerance{2, 2, "sums in another order than the plain one's"},
    Tolerance{2, 2, "sums in another order than the plain one's"},
    Tolerance{2, 1e-3, "of second order"}, Tolerance{2, 2, "a plain value that is exact"}};

void expect_right(const Tensors& got, const Tensors& inputs, const CeCase& c) {
  const Options options{c.reduction, kIgnore, c.label_smoothing};
  const Tensors right = reference(in_fp64(inputs), options), plain = reference(inputs, options);
  const auto type = inputs.at("logits").scalar_type();
  for (const auto& [name, tensor] : right) {
    if (type == at::kDouble) {
      // The reference rounds as the op does, and its p - 1 loses digits that the op's expm1 keeps.
      EXPECT_TRUE(got.at(name).cpu().allclose(tensor, 1e-10, 1e-14)) << name;
      continue;
    }
    for (const Measure& m : harness::compare(name, got.at(name).cpu(), tensor, plain.at(name).cpu(),
                                             kRight, harness::epsilon_of(type)))
      EXPECT_TRUE(m.pass) << name << " " << m.layer << " " << m.got << " > " << m.limit << " "
                          << m.where;
  }
}

using Point = std::tuple<CeCase, std::string, at::ScalarType, Form>;
class CrossEntropy : public testing::TestWithParam<Point> {};

TEST_P(CrossEntropy, IsFloat64sWithinThePlainError) {
  const auto& [c, device, type, form] = GetParam();
  const Fallback fallback("te_fused_ce", form);
  const Tensors inputs = inputs_of(c, type, device);
  const CrossEntropyOptions options{.reduction = c.reduction, .label_smoothing = c.label_smoothing};
  expect_right(run(inputs, options), inputs, c);
}

INSTANTIATE_TEST_SUITE_P(All, CrossEntropy,
                         testing::Combine(testing::ValuesIn(cases()), testing::ValuesIn(devices()),
                                          testing::Values(at::kFloat, at::kHalf, at::kBFloat16,
                                                          at::kDouble),
                                          testing::Values(Form::kChosen, Form::kPlain)),
                         op_test::point_name<testing::TestParamInfo<Point>>);

TEST(CrossEntropyOp, KeepsTheDigitsOfAConfidentRow) {
  // 1 - p is 2^-30: the difference of two rounded numbers near 1 would be 0.
  const at::Tensor x = at::tensor({20.79441541679836, 0.0}, at::kFloat).view({1, 1, 2});
  const Tensors got = run({{"logits", x},
                           {"labels", at::zeros({1, 1}, at::kLong)},
                           {"grad_loss", at::ones({}, at::kFloat)}},
                          {.reduction = "sum"});
  EXPECT_NEAR(got.at("loss").item<double>() * 0x1p30, 1, 1e-5);
  EXPECT_NEAR(got.at("grad_logits").flatten()[0].item<double>() * 0x1p30, -1, 1e-5);
}

TEST(CrossEntropyOp, SelectsIgnoredRowsAwayWhateverTheyHold) {
  for (const std::string& device : devices()) {
    for (const Form form : {Form::kChosen, Form::kPlain}) {
      const Fallback fallback("te_fused_ce", form);
      Tensors inputs = inputs_of({.name = "none"}, at::kFloat, device);
      const at::Tensor ignored = inputs.at("labels").eq(kIgnore);
      inputs["grad_loss"] = inputs.at("grad_loss").masked_fill(ignored, INFINITY);
      inputs["logits"] = inputs.at("logits").masked_fill(ignored.unsqueeze(2), NAN);
      const Tensors got = run(inputs, {.reduction = "none"});
      EXPECT_TRUE(got.at("grad_logits").isfinite().all().item<bool>());
      EXPECT_EQ(got.at("grad_logits").index({ignored}).abs().max().item<double>(), 0);
      EXPECT_EQ(got.at("loss").index({ignored}).abs().max().item<double>(), 0);
    }
  }
}

TEST(CrossEntropyOp, OfAGradientOfZeroIsZeroUnlessTheRowIsNotFinite) {
  for (const std::string& device : devices()) {
    for (const bool is_in_place : {false, true}) {
      Tensors inputs = inputs_of({.name = "none", .vocab = 1031}, at::kBFloat16, device);
      at::Tensor x = inputs.at("logits").clone(), labels = inputs.at("labels").clamp_min(0);
      at::Tensor grad_loss = inputs.at("grad_loss").clone();
      grad_loss[0].fill_(0);
      x[0][1][600] = NAN;
      const CrossEntropyOptions options{.reduction = "none"};
      const at::Tensor statistics = cross_entropy_statistics(x, labels);
      const at::Tensor got =
          is_in_place ? cross_entropy_backward_(grad_loss, statistics, x, labels, 0, 1031, options)
                      : cross_entropy_backward(grad_loss, statistics, x, labels, 0, 1031, options);
      const at::Tensor largest = got.abs().amax({2}).cpu();
      EXPECT_TRUE(largest[0][1].isnan().item<bool>());
      EXPECT_EQ(largest[0][0].item<double>(), 0);
      EXPECT_EQ(largest[0].slice(0, 2).max().item<double>(), 0);
      EXPECT_GT(largest.slice(0, 1).min().item<double>(), 0);
    }
  }
}

// A GPU gives a row 32, 256 or 1024 threads by the number and the length of the rows.
TEST(CrossEntropyOp, OfARowDoesNotDependOnTheRowsBesideIt) {
  for (const std::string& device : devices()) {
    for (const int64_t vocab : {1160, 1163, 16500}) {
      const int64_t num_rows = vocab < 2000 && device != "cpu" ? 4400 : 300;
      const CeCase c{.name = "parts", .batch = num_rows, .seqlen = 1, .vocab = vocab};
      const Tensors inputs = inputs_of(c, at::kBFloat16, device);
      const Tensors whole = run(inputs, {.reduction = "none"});
      const Tensors sum = run({{"logits", inputs.at("logits")},
                               {"labels", inputs.at("labels")},
                               {"grad_loss", at::ones({}, at::Device(device))}},
                              {.reduction = "sum"});
      EXPECT_NEAR(
          sum.at("loss").item<double>() / whole.at("loss").to(at::kDouble).sum().item<double>(), 1,
          1e-6);
      for (int64_t first = 0; first < num_rows; first += 100) {
        Tensors part;
        for (const auto& [name, tensor] : inputs) part.emplace(name, tensor.narrow(0, first, 100));
        for (const auto& [name, tensor] : run(part, {.reduction = "none"}))
          EXPECT_TRUE(at::allclose(tensor, whole.at(name).narrow(0, first, 100),
                                   name == "loss" ? 1e-6 : 0x1p-7, 1e-6))
              << device << " " << vocab << " " << first << " " << name;
      }
    }
  }
}

TEST(CrossEntropyOp, OfRowsThatAreNotFiniteIsTorchs) {
  constexpr int64_t kVocab = 4099;
  at::Tensor x = harness::Draw(3, "infinite/logits").normal({1, 4, kVocab}).to(at::kFloat);
  x[0][0].slice(0, 0, 4000).fill_(-INFINITY);
  x[0][1].fill_(-INFINITY)[7] = 2.5;
  x[0][2][600] = NAN;
  x[0][3].fill_(-INFINITY).slice(0, 8, 9).fill_(NAN);
  const at::Tensor labels =
      at::tensor({int64_t{4050}, int64_t{7}, int64_t{3}, int64_t{3}}).view({1, 4});
  for (const std::string& device : devices()) {
    const Tensors inputs = {{"logits", x.to(at::Device(device))},
                            {"labels", labels.to(at::Device(device))},
                            {"grad_loss", at::ones({1, 4}, at::Device(device))}};
    const Tensors got = run(inputs, {.reduction = "none"});
    const at::Tensor wide = x.to(at::kDouble).requires_grad_();
    const at::Tensor loss =
        at::cross_entropy_loss(wide.view({4, kVocab}), labels.view(-1), {}, at::Reduction::None);
    const at::Tensor grad = torch::autograd::grad({loss.sum()}, {wide})[0];
    EXPECT_TRUE(
        at::allclose(got.at("loss").cpu().to(at::kDouble).view(-1), loss, 1e-5, 1e-6, true));
    EXPECT_TRUE(at::allclose(got.at("grad_logits").cpu().to(at::kDouble), grad, 1e-5, 1e-8, true));
  }
}

TEST(CrossEntropyOp, OfAVocabularyOverRanksIsTheWholeOnes) {
  for (const double smoothing : {0.0, 0.1}) {
    const CeCase c{.name = "ranks", .vocab = 60, .label_smoothing = smoothing};
    const Tensors inputs = inputs_of(c, at::kFloat, "cpu");
    const at::Tensor x = inputs.at("logits"), labels = inputs.at("labels");
    const CrossEntropyOptions options{.reduction = "none", .label_smoothing = smoothing};
    std::vector<at::Tensor> statistics, grads;
    for (int64_t rank = 0; rank < 4; ++rank)
      statistics.push_back(cross_entropy_statistics(x.narrow(2, 15 * rank, 15), labels, 15 * rank));
    const at::Tensor all = cross_entropy_combine(at::stack(statistics));
    for (int64_t rank = 0; rank < 4; ++rank)
      grads.push_back(cross_entropy_backward(
          inputs.at("grad_loss"), all, x.narrow(2, 15 * rank, 15), labels, 15 * rank, 60, options));
    expect_right({{"loss", cross_entropy_loss(all, labels, 60, options)},
                  {"grad_logits", at::cat(grads, 2)}},
                 inputs, c);
  }
}

TEST(CrossEntropyOp, TakesTheLogitsPlaceWhereItIsAskedTo) {
  for (const std::string& device : devices()) {
    for (const Form form : {Form::kChosen, Form::kPlain}) {
      const Fallback fallback("te_fused_ce", form);
      const CeCase c{.name = "none"};
      const Tensors inputs = inputs_of(c, at::kBFloat16, device);
      const at::Tensor labels = inputs.at("labels"), grad_loss = inputs.at("grad_loss");
      at::Tensor x = inputs.at("logits").clone();
      const CrossEntropyOptions options{.reduction = "none"};
      const auto [loss, statistics] = cross_entropy_forward(x, labels, options);
      EXPECT_TRUE(x.equal(inputs.at("logits"))) << "forward leaves them";
      cross_entropy_backward_(grad_loss, statistics, x, labels, 0, x.size(2), options);
      expect_right({{"loss", loss}, {"grad_logits", x}}, inputs, c);
      at::Tensor strided = inputs.at("logits").transpose(0, 1).contiguous().transpose(0, 1);
      EXPECT_EQ(refusal([&, statistics = statistics] {
                  cross_entropy_backward_(grad_loss, statistics, strided, labels, 0, x.size(2),
                                          options);
                }),
                "cross_entropy: logits must be contiguous to be overwritten");
    }
  }
}

TEST(CrossEntropyOp, RefusesByName) {
  const at::Tensor x = at::zeros({2, 3, 4}), y = at::zeros({2, 3}, at::kLong);
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x[0], y); }),
            "cross_entropy: logits must have 3 axes [b, s, v], got 2");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x, y[0]); }),
            "cross_entropy: labels must have 2 axes [b, s], got 1");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x, y.t()); }),
            "cross_entropy: labels must have shape [2, 3], got [3, 2]");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x.to(at::kInt), y); }),
            "cross_entropy: logits must have dtype float32, float16, bfloat16 or float64, got "
            "int32");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x, y.to(at::kInt)); }),
            "cross_entropy: labels must have dtype int64, got int32");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x, y, {.reduction = "max"}); }),
            "cross_entropy: reduction must be none, mean or sum, got max");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x, y, {.label_smoothing = 2}); }),
            "cross_entropy: label_smoothing must lie in [0, 1], got 2");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x, y + 4); }),
            "cross_entropy: labels[0, 0] must lie in [0, 4) or be ignore_index -100, got 4");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x.narrow(2, 0, 0), y); }),
            "cross_entropy: logits must have at least 1 class, got 0");
  EXPECT_EQ(refusal([&] { cross_entropy_forward(x, y, {.ignore_index = INT64_MAX}); }),
            "cross_entropy: ignore_index must lie in [-2^53, 2^53], got 9223372036854775807");
}

TEST(CrossEntropyOp, RefusesABackwardByName) {
  const at::Tensor x = at::zeros({2, 3, 4}), y = at::zeros({2, 3}, at::kLong);
  const at::Tensor statistics = cross_entropy_statistics(x, y), one = at::ones({});
  const auto refused = [&](const at::Tensor& grad, const at::Tensor& s, int64_t vocab_total) {
    return refusal([&] { cross_entropy_backward(grad, s, x, y, 0, vocab_total, {}); });
  };
  EXPECT_EQ(refused(one, statistics, 4), "nothing was refused");
  EXPECT_EQ(refused(one.expand({2, 3}), statistics, 4),
            "cross_entropy: grad_output must have shape [], got [2, 3]");
  EXPECT_EQ(refused(one.to(at::kInt), statistics, 4),
            "cross_entropy: grad_output must have dtype float32, float16, bfloat16 or float64, got "
            "int32");
  EXPECT_EQ(refused(one, statistics[0], 4),
            "cross_entropy: statistics must have shape [4, 2, 3], got [2, 3]");
  EXPECT_EQ(refused(one, statistics.to(at::kDouble), 4),
            "cross_entropy: statistics must have dtype float32, got float64");
  EXPECT_EQ(refused(one, statistics, 3),
            "cross_entropy: logits must have classes in [0, vocab_total) = [0, 3), got [0, 4)");
  EXPECT_EQ(refusal([&] { cross_entropy_statistics(x, y, -1); }),
            "cross_entropy: vocab_begin must be at least 0, got -1");
  EXPECT_EQ(refusal([&] { cross_entropy_loss(statistics, y, 0); }),
            "cross_entropy: vocab_total must be at least 1, got 0");
  EXPECT_EQ(refusal([&] { cross_entropy_combine(statistics); }),
            "cross_entropy: statistics must have shape [ranks, 4, b, s], got [4, 2, 3]");
}

TEST(CrossEntropyOp, OfNoRowsIsEmpty) {
  for (const std::string& device : devices()) {
    for (const Form form : {Form::kChosen, Form::kPlain}) {
      const Fallback fallback("te_fused_ce", form);
      Tensors inputs = {{"logits", at::zeros({0, 3, 4}, at::Device(device))},
                        {"labels", at::zeros({0, 3}, at::device(device).dtype(at::kLong))},
                        {"grad_loss", at::zeros({0, 3}, at::Device(device))}};
      const Tensors got = run(inputs, {.reduction = "none"});
      EXPECT_EQ(got.at("loss").sizes(), (std::vector<int64_t>{0, 3}));
      EXPECT_EQ(got.at("grad_logits").sizes(), (std::vector<int64_t>{0, 3, 4}));
      inputs["grad_loss"] = at::ones({}, at::Device(device));
      EXPECT_TRUE(run(inputs, {.reduction = "mean"}).at("loss").isnan().item<bool>());
      EXPECT_EQ(run(inputs, {.reduction = "sum"}).at("loss").item<double>(), 0);
    }
  }
}

// The defects of the releases, one by one: each is red on the inputs of its class alone.
TEST(FusedModel, WithoutADefectIsTheReference) {
  for (const CeCase& c : cases()) {
    const Tensors inputs = inputs_of(c, at::kDouble, "cpu");
    const Options options{c.reduction, kIgnore, c.label_smoothing};
    const Tensors right = reference(inputs, options), got = fused(inputs, options, {});
    for (const auto& [name, tensor] : right)
      EXPECT_TRUE(got.at(name).allclose(tensor, 1e-10, 1e-12)) << c.name << " " << name;
    EXPECT_TRUE(got.at("logits_after").equal(inputs.at("logits"))) << c.name;
  }
}

}  // namespace
}  // namespace patchbench::te_fused_ce_test
