// Pack sparse_mla_pdp_precision: which rounding in the sparse-MLA backward costs precision, in a
// model, in patchbench::sparse_mla and in the release, and whether the cost grows with the context;
// whether the release's kernels lower, and where the compiler puts their buffers.
#include <fmt/format.h>

#include <algorithm>

#include "harness/attention.h"
#include "harness/axes.h"
#include "harness/program.h"
#include "harness/tensor_file.h"
#include "sparse_mla_dims/op.h"
#include "sparse_mla_pdp_precision/arithmetic.h"
#include "sparse_mla_pdp_precision/sweep.h"

namespace patchbench::sparse_mla_pdp_precision {
namespace {

namespace ops = patchbench::ops::sparse_mla_dims;
using harness::choice;
using harness::extent;
using harness::Judgement;
using harness::Tolerances;

/// The axes of each site; a case has exactly the axes of its site.
const std::map<std::string, std::vector<std::string>> kAxes = {
    {"sweep",
     {"site", "data", "source", "contexts", "num_heads", "head_dim_qk", "head_dim_v", "topk"}},
    {"delta",
     {"site", "data", "seqlen_q", "seqlen_k", "num_heads", "head_dim_qk", "head_dim_v", "topk"}},
    {"op",
     {"site", "data", "staging", "seqlen_q", "seqlen_k", "num_heads", "head_dim_qk", "head_dim_v",
      "topk"}},
    {"lowering", {"site", "arch", "num_heads", "head_dim_qk", "head_dim_v", "topk"}},
    {"smem_overlap",
     {"site", "arch", "num_heads", "head_dim_qk", "head_dim_v", "topk", "max_block_h", "num_stages",
      "threads", "is_merged"}}};

/// What a sweep's case switches on, by its axis `source`. "staging" is "pdp_bf16" judged against
/// fp32 sums without a cast: whether the staging costs anything, and not whether it grows.
const std::map<std::string, Source> kSources = {
    {"pdp_bf16", Source::kPdpBf16},  {"delta_bf16", Source::kDeltaBf16},
    {"staging", Source::kPdpBf16},   {"sums_fp32", Source::kSumsFp32},
    {"output_bf16", Source::kExact}, {"pdp_split", Source::kSplit},
    {"today", Source::kToday}};

std::vector<std::string> names_of(const auto& map) {
  std::vector<std::string> names;
  for (const auto& [name, value] : map) names.push_back(name);
  return names;
}

std::string site_of(const Case& item) { return choice(item, "site", names_of(kAxes)); }
std::string source_of(const Case& item) { return choice(item, "source", names_of(kSources)); }
std::string staging_of(const Case& item) { return choice(item, "staging", {"bf16", "split"}); }
std::string data_of(const Case& item) {
  return choice(item, "data", {"iid", "mean", "sink", "cancel"});
}

std::vector<int64_t> contexts_of(const Case& item) {
  const Json& list = harness::axis(item, "contexts");
  std::vector<int64_t> contexts;
  for (const Json& length : list.is_array() ? list : Json::array()) {
    const int64_t least = contexts.empty() ? tracked_key(kNumTracked) : contexts.back() + 1;
    if (!length.is_number_integer() || length.get<int64_t>() < least)
      harness::refuse(item, fmt::format("axis 'contexts' wants rising lengths from {} on",
                                        tracked_key(kNumTracked)));
    contexts.push_back(length.get<int64_t>());
  }
  if (contexts.size() < 2) harness::refuse(item, "axis 'contexts' wants two lengths or more");
  return contexts;
}

Shape shape_of(const Case& item) {
  const bool is_sweep = site_of(item) == "sweep";
  const int64_t rows = is_sweep ? contexts_of(item).back() : extent(item, "seqlen_q");
  const Shape shape{rows,
                    is_sweep ? rows : extent(item, "seqlen_k"),
                    extent(item, "num_heads"),
                    extent(item, "head_dim_qk"),
                    extent(item, "head_dim_v"),
                    extent(item, "topk")};
  if (shape.rows > shape.keys || shape.width_v > shape.width || shape.topk <= kNumSinks)
    harness::refuse(item, "wants seqlen_q <= seqlen_k, head_dim_v <= head_dim_qk, topk > 4");
  return shape;
}

/// Rows at the beginning that have no gradient: their few keys would be another question.
bool has_silent_rows(const Case& item) {
  return site_of(item) == "delta" && item.axes.contains("silent_rows");
}

/// "random_64k"
std::string tensor_name(const KeySet& set, int64_t context) {
  return fmt::format("{}_{}k", set.name, context / 1024);
}

/// The pass over a case's inputs. The last one is kept: oracle, plain and subject ask for the same,
/// and cases of other error sources for that of the same data.
const Pass& pass_of(const Case& item, const Tensors& inputs) {
  static std::string last;
  static std::unique_ptr<Pass> pass;
  const std::string key = harness::digest_of(inputs) + item.axes.at("contexts").dump();
  if (key != last) pass = std::make_unique<Pass>(inputs, contexts_of(item));
  last = key;
  return *pass;
}

Tensor of_keys(const Snapshot& snapshot, Source source, const KeySet& set) {
  return snapshot.grad_kv[static_cast<std::size_t>(source)]
      .narrow(0, set.first, set.count)
      .flatten();
}

double relative_error(const Tensor& got, const Tensor& reference) {
  return ((got - reference).norm() / reference.norm()).item<double>();
}

/// The least-squares slope of log error over log context.
double slope_of(const std::vector<std::pair<double, double>>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto count = static_cast<double>(points.size());
  for (const auto& [context, error] : points) {
    const double u = std::log(context), v = std::log(error);
    x += u;
    y += v;
    xx += u * u;
    xy += u * v;
  }
  return (count * xy - x * y) / (count * xx - x * x);
}

/// The root mean square of the relative error of rounding to bf16, of values whose logarithms are
/// spread evenly: 2^-8 / sqrt(3) at a mantissa of 1, times the mean square of 1 / mantissa over an
/// octave, sqrt(3 / (8 ln 2)).
const double kBf16Rms = 0x1p-8 / std::sqrt(3.0) * std::sqrt(3 / (8 * std::log(2.0)));

/// What a sweep's case shows: each gradient by context, `growth` = 1 + the steeper slope (1 where
/// both fall or `reference` is met exactly) and, of staging alone, `law` = the error over
/// kBf16Rms * kappa where that is furthest from 1 (1 where it is met exactly).
Tensors sweep_outputs(const Case& item, const Pass& pass, Source source, bool is_cast) {
  Tensors outputs;
  double slope = 0, law = 1;
  for (std::size_t i = 0; i < kKeySets.size(); ++i) {
    std::vector<std::pair<double, double>> points;
    double furthest = 1;
    for (const Snapshot& snapshot : pass.snapshots) {
      const Tensor right = of_keys(snapshot, Source::kExact, kKeySets[i]);
      Tensor got = of_keys(snapshot, source, kKeySets[i]);
      if (is_cast) got = to_bf16(got);
      outputs[tensor_name(kKeySets[i], snapshot.context)] = got.to(at::kFloat);
      const double error = relative_error(got, right);
      if (error > 0) points.emplace_back(snapshot.context, error);
      const double ratio = error / (kBf16Rms * snapshot.kappa[i]);
      if (std::abs(ratio - 1) > std::abs(furthest - 1)) furthest = ratio;
    }
    if (points.size() == pass.snapshots.size()) slope = std::max(slope, slope_of(points));
    if (!points.empty() && std::abs(furthest - 1) > std::abs(law - 1)) law = furthest;
  }
  if (source_of(item) == "staging") return outputs;
  outputs["growth"] = torch::full({}, 1 + slope, at::kFloat);
  if (source_of(item) == "pdp_bf16") outputs["law"] = torch::full({}, law, at::kFloat);
  return outputs;
}

/// The right answer, or with `is_cast` what is left of it in bf16; growth and law as they should
/// be.
Tensors sweep_reference(const Case& item, const Pass& pass, Source source, bool is_cast) {
  Tensors outputs = sweep_outputs(item, pass, source, is_cast);
  for (const char* name : {"growth", "law"}) {
    if (outputs.contains(name)) outputs[name].fill_(1);
  }
  return outputs;
}

bool is_backward(const std::string& site) { return site == "delta" || site == "op"; }

const std::map<std::string, Source> kMutants = {
    {"model_mutant:sums_bf16", Source::kSumsBf16},
    {"model_mutant:staged_in_4_bits", Source::kStagedCoarsely}};

harness::InProcessSubject model_subject(const std::string& name) {
  return [name](const Case& item, const Tensors& inputs) -> Tensors {
    const std::string site = site_of(item);
    if (is_backward(site) && !kMutants.contains(name))
      return backward(inputs, {.is_staged_in_bf16 = true,
                               .has_delta_of_bf16 = name == "model",
                               .is_output_bf16 = true});
    if (site != "sweep") throw harness::UnsupportedCase("this site is run on the release");
    const Source source = name == "model"         ? kSources.at(source_of(item))
                          : name == "model_fixed" ? Source::kExact
                                                  : kMutants.at(name);
    const bool is_cast = source_of(item) == "output_bf16" || source_of(item) == "today";
    return sweep_outputs(item, pass_of(item, inputs), source, is_cast);
  };
}

/// The op, forward and backward; `staging` is the case's unless it is given.
harness::InProcessSubject op_subject(const std::string& delta, const std::string& staging = "") {
  return [delta, staging](const Case& item, const Tensors& inputs) -> Tensors {
    const Tensor q = inputs.at("q").unsqueeze(0), kv = inputs.at("kv").unsqueeze(0).unsqueeze(2),
                 grad_out = inputs.at("grad_out").unsqueeze(0),
                 indices = inputs.at("indices").unsqueeze(0).unsqueeze(2);
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    const auto [out, lse, remainder] =
        ops::sparse_mla_forward(q, kv, indices, scale, grad_out.size(3));
    Tensor grad_q, grad_kv;
    for (int64_t i = 0; i < harness::backwards(item); ++i)
      std::tie(grad_q, grad_kv) =
          ops::sparse_mla_backward(grad_out, out, remainder, lse, q, kv, indices, scale, delta,
                                   staging.empty() ? staging_of(item) : staging);
    return {{"grad_q", grad_q.squeeze(0)}, {"grad_kv", grad_kv.squeeze(2).squeeze(0)}};
  };
}

constexpr const char* kYesOrNo = "it is so or not";
const Tolerances kExact = {{0, 0, kYesOrNo}, {0, 0, kYesOrNo}, {0, 0, kYesOrNo}, {0, 0, kYesOrNo}};

// The tensors of a sweep are one row each, so that the row's error is the relative Frobenius error;
// the other layers are given limits that nothing reaches.
constexpr const char* kNotAsked = "the relative Frobenius error alone is asked for";
const Tolerances kAsTheCast = {{0, 0x1p60, kNotAsked},
                               {2, 0, "twice what the cast of the output to bf16 costs by itself"},
                               {0, 0x1p60, kNotAsked},
                               {0, 0x1p60, kNotAsked}};
constexpr const char* kAsFp32Staging =
    "twice what sums in fp32 cost by themselves, without a cast: an fp32 reference backward";
const Tolerances kAsReference = {
    {0, 0x1p60, kNotAsked}, {2, 0, kAsFp32Staging}, {0, 0x1p60, kNotAsked}, {0, 0x1p60, kNotAsked}};
const Tolerances kMasked = {{0, 0x1p60, kNotAsked},
                            {1.5, 0, "a gain below 1.5 is masked by the cast that follows"},
                            {0, 0x1p60, kNotAsked},
                            {0, 0x1p60, kNotAsked}};
constexpr const char* kNoGrowth =
    "a slope of 0.05: 64 times the context would multiply the error by 1.23";
const Tolerances kGrowth = {{0, 0.05 * 0x1p23, kNoGrowth},
                            {0, 0.05 * 0x1p23, kNoGrowth},
                            {0, 0.05 * 0x1p23, kNoGrowth},
                            {0, 0.05 * 0x1p23, kNoGrowth}};
constexpr const char* kLawHolds =
    "a third: measured 0.25 where the keys share a mean; p and ds of a row are then near one "
    "another, and their mantissas no even spread over an octave";
const Tolerances kLaw = {{0, 0x1p23 / 3, kLawHolds},
                         {0, 0x1p23 / 3, kLawHolds},
                         {0, 0x1p23 / 3, kLawHolds},
                         {0, 0x1p23 / 3, kLawHolds}};
constexpr const char* kNearPlain =
    "the backward in fp64 that rounds p, ds and the outputs to bf16, and summation order";
const Tolerances kPlain = {{1.6, 0, kNearPlain},
                           {1.6, 0, kNearPlain},
                           {2, 0, "the square of the row's"},
                           {2, 0x1p-6, "and 1.2e-4: plain's own bias is near 0"}};
constexpr const char* kOneRow =
    "as above, and the summation in fp32, 1.9e-6: of one query of one head and 8 keys that share a "
    "mean grad_q was 1.74 times as far off as plain's (1 of 400 drawn cases); where one key has "
    "all of P, plain in fp64 is exact, and 1.4e-8 was seen";
const Tolerances kOp = {{2, 0.125,
                         "and 9.8e-4: need 6.5e-4 (grad_q of data with a mean, 1 of 1500 drawn "
                         "cases), where one key's dP - delta is all of an element"},
                        {2, 0x1p-12, kOneRow},
                        {2, 0.004,
                         "about the square of the row's, 4 times plain's: 3.9e-5 where plain has "
                         "1.1e-5 (grad_q of one row "
                         "of one head, 1 of 300 drawn cases)"},
                        {2, 0x1p-6, "and 1.2e-4: plain's own bias is near 0"}};
constexpr const char* kCastAlone =
    "what the cast of the gradients to bf16 costs: staging in bf16 costs as much again, 1.4 in "
    "all; and the summation in fp32, 1.9e-6";
const Tolerances kAfterCast = {{1.2, 0x1p-12, kCastAlone},
                               {1.2, 0x1p-12, kCastAlone},
                               {2, 0x1p-13,
                                "the square of the row's, and 9.5e-7: where terms cancel float32 "
                                "sums leave 3.6e-9 (1 of 600 drawn cases)"},
                               {2, 0x1p-6, "and 1.2e-4: plain's own bias is near 0"}};

/// The error of grad_q must be this many times plain's to be the loss that the pack is about. A
/// right one is within 1.6 times plain's, so that a red release and a green edit are 5 times apart.
constexpr double kLost = 8;

class PrecisionPack : public harness::Pack {
 public:
  std::string slug() const override { return "sparse_mla_pdp_precision"; }

  void check(const Case& item) const override {
    const std::string site = site_of(item);
    std::vector<std::string> axes = kAxes.at(site);
    if (has_silent_rows(item)) axes.push_back("silent_rows");
    if (is_backward(site)) axes = harness::with_optional(item, axes, "logits_times");
    for (const char* name : {"is_batched", "is_padded", "scale_times"})
      if (site == "delta") axes = harness::with_optional(item, axes, name);
    harness::check_axes(item, axes);
    if (site == "sweep") source_of(item);
    if (site == "op") staging_of(item);
    if (site == "op" && extent(item, "head_dim_v") > 512)
      harness::refuse(item, "axis 'head_dim_v': the op takes at most 512");
    if (site == "sweep" || is_backward(site)) {
      data_of(item);
      harness::factor(item, "scale_times");
      const int64_t rows = shape_of(item).rows;
      if (has_silent_rows(item) && extent(item, "silent_rows") >= rows)
        harness::refuse(item, "axis 'silent_rows' leaves no row with a gradient");
      return;
    }
    choice(item, "arch", {"sm_90a", "sm_100a"});
    for (const char* name : {"num_heads", "head_dim_qk", "head_dim_v", "topk"}) extent(item, name);
    if (site != "smem_overlap") return;
    for (const char* name : {"max_block_h", "threads"}) extent(item, name);
    harness::amount(item, "num_stages");
    harness::flag(item, "is_merged");
  }

  at::ScalarType dtype(const Case& item) const override {
    return is_backward(site_of(item)) ? at::kBFloat16 : at::kFloat;
  }
  /// The kernels are run in torch there (stand_in.py).
  bool rounds_bf16_on_cpu(const Case& item) const override { return site_of(item) == "delta"; }

  /// Sweeps of the same data share their inputs: the error sources are compared on one pass. They
  /// are run in this process alone.
  Tensors inputs(const Case& item, uint64_t seed) const override {
    const std::string site = site_of(item);
    if (site == "sweep")
      return drawn_inputs(data_of(item), shape_of(item), seed, "sweep/" + data_of(item));
    if (!is_backward(site)) return {};
    Tensors drawn = drawn_inputs(data_of(item), shape_of(item), seed, item.name);
    drawn.at("q").mul_(harness::factor(item, "logits_times"));
    if (has_silent_rows(item))
      drawn.at("grad_out").narrow(0, 0, extent(item, "silent_rows")).zero_();
    return drawn;
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    const std::string site = site_of(item);
    if (site == "sweep") return sweep_reference(item, pass_of(item, inputs), Source::kExact, false);
    if (is_backward(site)) return backward(inputs, {});
    return {{site == "lowering" ? "lowers" : "disjoint", torch::ones({})}};
  }

  Tensors plain(const Case& item, const Tensors& inputs) const override {
    if (site_of(item) == "sweep") {
      const std::string source = source_of(item);
      const Source right = source == "today"     ? Source::kUnstaged
                           : source == "staging" ? Source::kSumsFp32
                                                 : Source::kExact;
      return sweep_reference(item, pass_of(item, inputs), right, source != "staging");
    }
    if (!is_backward(site_of(item))) return oracle(item, inputs);
    const bool is_split = site_of(item) == "op" && staging_of(item) == "split";
    return backward(inputs, {.is_staged_in_bf16 = !is_split, .is_output_bf16 = true});
  }

  double least_size(const Case& item, const Tensors& inputs, const Tensors& oracle,
                    const std::string& tensor) const override {
    static_cast<void>(oracle);
    // Data with one strong key are asked against what is left when their terms cancel.
    if (!is_backward(site_of(item)) || data_of(item) == "sink") return 0;
    // So are the releases, down to what sums in float32 leave: a limit of a hundredth of this is 80
    // float32 epsilons of the terms.
    const double share = site_of(item) == "op" ? 1 : 0x1p-10;
    const Tensor q = inputs.at("q");
    const harness::TermSizes sizes = harness::term_sizes(
        {q.unsqueeze(0), inputs.at("kv").unsqueeze(0), inputs.at("indices").unsqueeze(0),
         inputs.at("grad_out").unsqueeze(0), 1 / std::sqrt(static_cast<double>(q.size(-1)))});
    return share * (tensor == "grad_q" ? sizes.grad_q : sizes.grad_kv);
  }

  Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    const std::string site = site_of(item);
    if (site == "op") return staging_of(item) == "split" ? kAfterCast : kOp;
    if (is_backward(site)) return kPlain;
    if (site != "sweep") return kExact;
    if (tensor == "growth") return kGrowth;
    if (tensor == "law") return kLaw;
    if (source_of(item) == "staging") return kAsReference;
    return source_of(item) == "today" ? kMasked : kAsTheCast;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    std::map<std::string, harness::InProcessSubject> subjects = {
        {"op", op_subject("exact")},
        {"op_mutant:delta_of_rounded_output", op_subject("rounded")},
        {"op_mutant:staged_in_bf16", op_subject("exact", "bf16")}};
    for (const char* name : {"model", "model_fixed"}) subjects.emplace(name, model_subject(name));
    for (const auto& [name, source] : kMutants) subjects.emplace(name, model_subject(name));
    return subjects;
  }

  std::string classify(const Case& item, const Judgement& judgement) const override {
    const std::string site = site_of(item);
    if (site == "smem_overlap") return "buffers_overlap";
    if (site == "lowering") return "";
    // With all other roundings, the question is the cost of one, not its growth.
    if (site == "sweep")
      return judgement.is_right("growth") || source_of(item) == "today" ? "precision_lost"
                                                                        : "drift";
    // Of another shape it is wrong in another way.
    if (!judgement.got.at("grad_q").sizes().equals(judgement.oracle.at("grad_q").sizes()))
      return "";
    const auto error_of = [&](const Tensors& tensors) {
      return relative_error(tensors.at("grad_q").to(at::kDouble), judgement.oracle.at("grad_q"));
    };
    if (site == "op") return "precision_lost";
    return error_of(judgement.got) > kLost * error_of(judgement.plain) ? "precision_lost" : "";
  }

  /// "patch_does_not_compile": TileLang turns away the operands of a matrix product.
  std::string classify_error(const Case& item, const Json& exception) const override {
    if (site_of(item) != "lowering" && site_of(item) != "delta") return "";
    const std::string type = exception.value("type", "");
    if (type != "AssertionError" && type != "ValueError") return "";
    for (const Json& frame : exception.value("frames", Json::array())) {
      const std::string file = frame.value("file", "");
      if (file.starts_with("tilelang/") && file.find("gemm") != std::string::npos)
        return "patch_does_not_compile";
    }
    return "";
  }
};

}  // namespace
}  // namespace patchbench::sparse_mla_pdp_precision

int main(int argc, char** argv) {
  // The products are small: threads that wait for one another cost more than they give.
  at::set_num_threads(1);
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::sparse_mla_pdp_precision::PrecisionPack());
}
