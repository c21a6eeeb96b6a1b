// Pack dsa_graph_capture: inputs, oracles and failure classes of the sites that a captured step
// passes. Every case gives its values and, as one more output, how often it would break a capture;
// the right number is 0.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "dsa_graph_capture/model.h"
#include "dsa_graph_capture/op.h"
#include "harness/axes.h"
#include "harness/host_reads.h"
#include "harness/program.h"

namespace patchbench::dsa_graph_capture {
namespace {

using at::Tensor;
using harness::axis;
using harness::choice;
using harness::Draw;
using harness::extent;
using harness::flag;
using harness::Judgement;
using harness::refuse;
using harness::Tensors;

constexpr double kClosed = -std::numeric_limits<double>::infinity();

/// The axes of each site; a case has exactly the axes of its site.
const std::map<std::string, std::vector<std::string>> kAxes = {
    {"index_mask",
     {"batch", "column_zero", "detect", "index_dtype", "pattern", "seqlen_k", "seqlen_q", "topk"}},
    {"loss_forward",
     {"batch", "detect", "head_dim", "num_heads", "pattern", "seqlen", "sparse_loss", "topk"}},
    {"loss_backward",
     {"batch", "detect", "head_dim", "num_heads", "pattern", "seqlen", "sparse_loss", "topk"}},
    {"loss_scale", {"batch", "head_dim", "is_set", "seqlen"}},
    {"packed_positions", {"cp_rank", "cp_size", "padding", "seqlens"}},
    {"unsized_positions", {"cp_rank", "cp_size", "seqlens"}},
    {"context_parallel", {"ranks"}},
    {"varlen_bounds", {"batch", "ineligible_by", "seqlen"}},
    {"eager_bounds", {"batch", "ineligible_by", "seqlen"}},
    {"eligible_bounds", {"batch", "given", "seqlen"}}};

std::string site_of(const Case& item) {
  return choice(
      item, "site",
      {"context_parallel", "eager_bounds", "eligible_bounds", "index_mask", "loss_backward",
       "loss_forward", "loss_scale", "packed_positions", "unsized_positions", "varlen_bounds"});
}
std::vector<int64_t> seqlens_of(const Case& item) {
  const Json& list = axis(item, "seqlens");
  if (!list.is_array() || list.empty()) refuse(item, "axis 'seqlens' wants a list of lengths");
  const int64_t unit = 2 * extent(item, "cp_size");
  std::vector<int64_t> seqlens;
  for (const Json& length : list) {
    if (!length.is_number_integer() || length.get<int64_t>() < 0 ||
        length.get<int64_t>() % unit != 0)
      refuse(item, fmt::format("axis 'seqlens' wants multiples of 2 cp_size = {}", unit));
    seqlens.push_back(length.get<int64_t>());
  }
  return seqlens;
}

// ---- inputs ----

double softmax_scale(int64_t head_dim) { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }

/// [batch, rows, topk] int64, distinct keys per row, the first slot the row's own key (so that no
/// row of a causal loss is without one). By pattern: "sentinels": a third of the slots is -1, row 1
/// has key 0 and a -1; "all_negative": every slot; "duplicates": keys drawn with repeats.
Tensor topk_indices(const Case& item, uint64_t seed, int64_t rows, int64_t keys, bool is_causal) {
  const int64_t batch = extent(item, "batch"), topk = extent(item, "topk");
  const std::string pattern =
      choice(item, "pattern", {"dense", "sentinels", "all_negative", "duplicates"});
  const Draw draw(seed, item.name + "/topk_indices");
  if (pattern == "all_negative") return torch::full({batch, rows, topk}, -1, at::kLong);
  if (pattern == "duplicates") return draw.integers({batch, rows, topk}, 0, keys);
  if (topk > keys) refuse(item, "topk is larger than the number of keys");
  Tensor order = draw.uniform({batch, rows, keys}, 0, 1);
  if (is_causal) order.diagonal(0, 1, 2).fill_(-1);
  Tensor indices = order.argsort(int64_t{-1}).narrow(-1, 0, topk).clone();
  if (pattern == "dense") return indices;
  Tensor is_none = Draw(seed, item.name + "/none").mask({batch, rows, topk}, 1.0 / 3);
  is_none.select(-1, 0).fill_(false);
  is_none.select(-1, topk - 1).fill_(true);
  indices.masked_fill_(is_none, -1);
  if (rows > 1) {
    indices.select(1, 1).fill_(-1);
    indices.select(1, 1).select(-1, 0).fill_(0);
  }
  return indices;
}

Tensor causal(int64_t seqlen) {  // true: may be seen
  return torch::ones({seqlen, seqlen}, at::kBool).tril();
}

Tensors mask_inputs(const Case& item, uint64_t seed) {
  const int64_t rows = extent(item, "seqlen_q"), keys = extent(item, "seqlen_k");
  Tensor indices = topk_indices(item, seed, rows, keys, false);
  if (choice(item, "index_dtype", {"int32", "int64"}) == "int32") indices = indices.to(at::kInt);
  Tensor mask = torch::full({extent(item, "batch"), rows, keys}, kClosed, at::kFloat);
  if (choice(item, "column_zero", {"closed", "open"}) == "open") mask.select(-1, 0).fill_(0);
  return {{"topk_indices", indices}, {"index_mask", mask}};
}

Tensors loss_inputs(const Case& item, uint64_t seed, bool is_backward) {
  const int64_t batch = extent(item, "batch"), s = extent(item, "seqlen"),
                heads = extent(item, "num_heads"), d = extent(item, "head_dim");
  const auto normal = [&](const char* name, const std::vector<int64_t>& shape) {
    return Draw(seed, item.name + "/" + name).normal(shape).to(at::kFloat);
  };
  const double times = harness::factor(item, "logits_times");
  Tensors inputs = {{"topk_indices", topk_indices(item, seed, s, s, true)},
                    {"query", normal("query", {s, batch, heads, d}) * times},
                    {"key", normal("key", {s, batch, heads, d})}};
  if (is_backward) {
    inputs["q"] = normal("q", {s, batch, heads, d});
    // Small, so that no probability of the index comes near 1e-10: releases before 0.19 add that to
    // it in the gradient, which is another matter.
    inputs["weights"] = normal("weights", {s, batch, heads}) * softmax_scale(d);
    inputs["k"] = normal("k", {s, batch, d});
    inputs["grad_loss"] = torch::full({}, 1.5, at::kFloat);
  } else {
    inputs["index_scores"] = (normal("index_scores", {batch, s, s}) * times)
                                 .masked_fill(causal(s).logical_not(), kClosed);
  }
  return inputs;
}

/// What the fused indexer takes: keys in order, a causal mask, or the same one for each batch
/// entry.
Tensors eligible_bounds_inputs(const Case& item) {
  const int64_t s = extent(item, "seqlen"), batch = extent(item, "batch");
  const std::string given = choice(item, "given", {"key_positions", "mask", "batch_masks"});
  if (given == "key_positions") {
    return {{"key_positions", torch::arange(s, at::kLong)},
            {"varlen_starts", torch::zeros({s}, at::kLong)},
            {"varlen_ends", torch::arange(1, s + 1, at::kLong)}};
  }
  const Tensor mask =
      torch::zeros({s, s}, at::kFloat).masked_fill(causal(s).logical_not(), kClosed);
  if (given == "mask") return {{"mask", mask}};
  return {{"mask", mask.unsqueeze(0).repeat({std::max<int64_t>(batch, 2), 1, 1})}};
}

Tensors bounds_inputs(const Case& item) {
  const int64_t s = extent(item, "seqlen"), batch = extent(item, "batch");
  const std::string by = choice(item, "ineligible_by", {"key_order", "hole", "batch"});
  const Tensor mask =
      torch::zeros({s, s}, at::kFloat).masked_fill(causal(s).logical_not(), kClosed);
  if (by == "key_order") {
    const Tensor order = torch::arange(s, at::kLong).flip(0);
    const Tensor starts = torch::zeros({s}, at::kLong), ends = torch::arange(1, s + 1, at::kLong);
    return {{"key_positions", order}, {"varlen_starts", starts}, {"varlen_ends", ends}};
  }
  if (by == "hole") {
    Tensor holed = mask.clone();
    holed[s - 1][s / 2] = kClosed;
    return {{"mask", holed}};
  }
  Tensor batched = mask.unsqueeze(0).repeat({std::max<int64_t>(batch, 2), 1, 1});
  batched[1][s - 1][s - 1] = kClosed;
  return {{"mask", batched}};
}

// ---- the right values ----

Tensor right_mask(const Tensors& inputs) {
  Tensor mask = inputs.at("index_mask").to(at::kDouble).clone();
  const Tensor indices = inputs.at("topk_indices").to(at::kLong);
  const auto index = indices.accessor<int64_t, 3>();
  for (int64_t b = 0; b < index.size(0); ++b) {
    for (int64_t s = 0; s < index.size(1); ++s) {
      for (int64_t k = 0; k < index.size(2); ++k) {
        if (index[b][s][k] >= 0) mask[b][s][index[b][s][k]] = 0;
      }
    }
  }
  return mask;
}

/// [batch, s, s] bool: the slots over which both distributions run.
Tensor valid_slots(const Tensors& inputs, int64_t s, bool is_sparse) {
  const Tensor indices = inputs.at("topk_indices").to(at::kCPU, at::kLong);
  Tensor valid = causal(s).unsqueeze(0).expand({indices.size(0), s, s});
  if (!is_sparse) return valid;
  // One column more than there are keys takes the slots that name none.
  const Tensor named = torch::zeros({indices.size(0), s, s + 1}, at::kBool)
                           .scatter(-1, torch::where(indices.lt(0), s, indices), true)
                           .narrow(-1, 0, s);
  return valid.logical_and(named);
}

/// The two distributions of the loss over the valid slots, [batch, s, s]: T, the attention summed
/// over the heads and normalised, and the logarithm of P, the softmax of the index scores; log_p is
/// 0 at slots that are not valid. In the dtype of the scores. Derived from the definition, not from
/// any release.
struct Distributions {
  Tensor target, log_p, valid;
};

Distributions distributions(const Tensors& inputs, const Tensor& index_scores, double scale,
                            bool is_sparse) {
  const Tensor query = inputs.at("query").to(index_scores), key = inputs.at("key").to(index_scores);
  const int64_t s = query.size(0);
  const Tensor valid = valid_slots(inputs, s, is_sparse).to(index_scores.device());
  const Tensor has_any = valid.any(-1, true);
  const auto closed = [](const Tensor& scores, const Tensor& open) {
    return scores.masked_fill(open.logical_not(), kClosed);
  };
  const Tensor scores = torch::einsum("sbhd,tbhd->bhst", {query, key}) * scale;
  const Tensor attention =
      torch::where(has_any.unsqueeze(1), closed(scores, valid.unsqueeze(1)), 0.0).softmax(-1);
  Tensor target = attention.sum(1);
  target = target / target.sum(-1, true);
  const Tensor log_p = torch::where(has_any, closed(index_scores, valid), 0.0)
                           .log_softmax(-1)
                           .masked_fill(valid.logical_not(), 0);
  return {target, log_p, valid};
}

/// Whether the loss is the sum over rows, in place of their mean.
bool is_per_token(const Case& item) {
  return item.axes.contains("is_per_token") && flag(item, "is_per_token");
}
double loss_coeff(const Case& item) {
  return item.axes.contains("loss_coeff") ? harness::amount(item, "loss_coeff") : 0.7;
}

/// KL(T || P) times its coefficient; rows without a valid slot give 0. Mean or sum over batch x
/// rows.
Tensor kl_loss(const Case& item, const Distributions& of) {
  const auto& [target, log_p, valid] = of;
  const Tensor terms = torch::where(valid, torch::xlogy(target, target) - target * log_p, 0.0);
  const Tensor rows = terms.sum(-1);
  return loss_coeff(item) * (is_per_token(item) ? rows.sum() : rows.mean());
}

/// The output of the attention, to which the loss is tied, the gradient that arrives there, and the
/// loss's scale where the optimizer has set one.
Tensors scale_inputs(const Case& item, uint64_t seed) {
  const std::vector<int64_t> shape = {extent(item, "seqlen"), extent(item, "batch"),
                                      extent(item, "head_dim")};
  const auto normal = [&](const std::string& name, const std::vector<int64_t>& of) {
    return Draw(seed, item.name + "/" + name).normal(of).to(at::kFloat);
  };
  Tensors inputs = {{"output", normal("output", shape)},
                    {"indexer_loss", normal("indexer_loss", {}).abs()},
                    {"arriving", normal("arriving", shape)}};
  if (flag(item, "is_set")) inputs["scale"] = torch::full({}, 1024.0, at::kFloat);
  return inputs;
}

/// The output's gradient as it came, and the loss's: the scale, 1 where none was set. That of a
/// capture is not kept.
Tensors scaled(const Tensors& inputs, at::ScalarType type) {
  const Tensor passed_on = inputs.at("arriving").to(type);
  if (inputs.contains("scale"))
    return {{"passed_on", passed_on}, {"scale", inputs.at("scale").to(type)}};
  return {{"passed_on", passed_on},
          {"scale", torch::ones({}, type)},
          {"kept_from_capture", torch::zeros({}, type)}};
}

Distributions distributions_of(const Case& item, const Tensors& inputs, const Tensor& scores) {
  return distributions(inputs, scores, softmax_scale(extent(item, "head_dim")),
                       flag(item, "sparse_loss"));
}

Tensor loss_forward(const Case& item, const Tensors& inputs, at::ScalarType type) {
  const Tensor scores = inputs.at("index_scores").to(type);
  return kl_loss(item, distributions_of(item, inputs, scores));
}

/// The index scores, [batch, s, s]: sum over h of weights_h relu(<q_h, k>).
Tensor scores_of(const Tensor& q, const Tensor& weights, const Tensor& k) {
  return (torch::einsum("sbhd,tbd->bsht", {q, k}).relu() * weights.transpose(0, 1).unsqueeze(-1))
      .sum(2);
}

/// What the terms of an output's sums come to: of the loss T ln T and T ln P, of a gradient those
/// with T and with P, of which it is the difference. T and P may be nearly equal.
double size_of_terms(const Case& item, const Tensors& inputs, const std::string& tensor) {
  const auto wide = [&](const char* name) { return inputs.at(name).to(at::kDouble); };
  const double coeff = loss_coeff(item);
  const auto largest = [&](const Tensor& x) { return coeff * x.abs().max().item<double>(); };
  if (tensor == "loss") {
    const auto [target, log_p, valid] = distributions_of(item, inputs, wide("index_scores"));
    const Tensor rows = (torch::xlogy(target, target).abs() - target * log_p).sum(-1);
    return largest(is_per_token(item) ? rows.sum() : rows.mean());
  }
  const Tensor q = wide("q"), weights = wide("weights"), k = wide("k");
  const auto [target, log_p, valid] = distributions_of(item, inputs, scores_of(q, weights, k));
  const Tensor both =
      torch::where(valid, target + log_p.exp(), 0.0) * wide("grad_loss").abs() /
      (is_per_token(item) ? 1.0 : static_cast<double>(target.size(0) * target.size(1)));
  const Tensor products = torch::einsum("sbhd,tbd->bsht", {q, k}).relu();
  if (tensor == "grad_weights") return largest(torch::einsum("bst,bsht->sbh", {both, products}));
  const Tensor factors =
      torch::einsum("bst,sbh,bsht->bsht", {both, weights.abs(), products.gt(0).to(at::kDouble)});
  return largest(tensor == "grad_q" ? torch::einsum("bsht,tbd->sbhd", {factors, k.abs()})
                                    : torch::einsum("bsht,sbhd->tbd", {factors, q.abs()}));
}

Tensors loss_backward(const Case& item, const Tensors& inputs, at::ScalarType type) {
  const auto leaf = [&](const char* name) {
    return inputs.at(name).to(type).detach().clone().requires_grad_();
  };
  const Tensor q = leaf("q"), weights = leaf("weights"), k = leaf("k");
  const Tensor loss = kl_loss(item, distributions_of(item, inputs, scores_of(q, weights, k)));
  const auto grads =
      torch::autograd::grad({loss}, {q, weights, k}, {inputs.at("grad_loss").to(loss)});
  return {{"grad_q", grads[0]}, {"grad_weights", grads[1]}, {"grad_k", grads[2]}};
}

/// Zigzag: of each sequence a rank holds its chunk from the front and the mirrored one from the
/// back, one after the other. Padding rows come last, after all real tokens, each rank's apart from
/// the others': from total + cp_rank * output_size on (Megatron-LM 0.19.2, dsa_layout.py).
Tensor right_positions(const Case& item) {
  const int64_t size = extent(item, "cp_size"), rank = axis(item, "cp_rank").get<int64_t>();
  std::vector<int64_t> positions;
  int64_t start = 0;
  for (const int64_t length : seqlens_of(item)) {
    const int64_t half = length / (2 * size);
    for (int64_t i = 0; i < half; ++i) positions.push_back(start + rank * half + i);
    for (int64_t i = 0; i < half; ++i) positions.push_back(start + length - (rank + 1) * half + i);
    start += length;
  }
  const int64_t padding = item.axes.value("padding", int64_t{0});
  const int64_t first = start + rank * (start / size + padding);
  for (int64_t i = 0; i < padding; ++i) positions.push_back(first + i);
  return torch::tensor(positions, at::kLong);
}

Tensors right_values(const Case& item, const Tensors& inputs, at::ScalarType type) {
  const std::string site = site_of(item);
  if (site == "index_mask") return {{"index_mask", right_mask(inputs).to(type)}};
  if (site == "loss_forward") return {{"loss", loss_forward(item, inputs, type)}};
  if (site == "loss_backward") return loss_backward(item, inputs, type);
  if (site == "loss_scale") return scaled(inputs, type);
  if (site == "context_parallel") return {{"uneven_rejected", torch::ones({}, type)}};
  if (site.ends_with("_positions")) return {{"positions", right_positions(item).to(type)}};
  if (site == "eager_bounds") return {{"accepted_eager", torch::zeros({}, type)}};
  if (site == "eligible_bounds") return {{"declined_capturing", torch::zeros({}, type)}};
  return {{"accepted_eager", torch::zeros({}, type)},
          {"accepted_capturing", torch::zeros({}, type)}};
}

/// Whether the case asks how often its path would break a capture: all but the controls and the
/// eager calls do.
bool is_detecting(const Case& item) {
  if (site_of(item) == "eager_bounds") return false;
  return !item.axes.contains("detect") || flag(item, "detect");
}

Tensors with_breaks(const Case& item, Tensors values, at::ScalarType type) {
  if (is_detecting(item)) values["capture_breaks"] = torch::zeros({}, type);
  return values;
}

// ---- subjects of this process ----

using Scatter = void (*)(const Tensor&, const Tensor&);

harness::InProcessSubject scatter_subject(Scatter scatter) {
  return [scatter](const Case& item, const Tensors& inputs) -> Tensors {
    if (site_of(item) != "index_mask")
      throw harness::UnsupportedCase(
          "only the scatter is modelled; the other sites are run on the release");
    const Tensor mask = inputs.at("index_mask").clone();
    const harness::HostReadCounter reads;
    scatter(mask, inputs.at("topk_indices"));
    Tensors outputs = with_breaks(item, {{"index_mask", mask}}, at::kFloat);
    if (is_detecting(item)) outputs.at("capture_breaks").fill_(static_cast<double>(reads.count()));
    return outputs;
  };
}

void op_scatter(const Tensor& index_mask, const Tensor& topk) {
  Tensor mask = index_mask;
  ops::dsa_graph_capture::topk_to_index_mask_(mask, topk);
}

const harness::Tolerances kExact = {{0, 0, "the values are 0, -inf or whole numbers"},
                                    {0, 0, "the values are 0, -inf or whole numbers"},
                                    {0, 0, "the values are 0, -inf or whole numbers"},
                                    {0, 0, "the values are 0, -inf or whole numbers"}};
constexpr const char* kSums =
    "twice plain fp32; the floor is for sums over at most 48 keys in another order";
const harness::Tolerances kFp32 = {{2, 8, kSums},
                                   {2, 32,
                                    "twice plain fp32; releases before 0.19 form P T / (P + 1e-10) "
                                    "- P in fp32, whose worst row was "
                                    "measured at 4.4e-6 (37 ulp) where plain has 0.7e-6"},
                                   {2, 8, kSums},
                                   {2, 8, kSums}};

class DsaPack : public harness::Pack {
 public:
  std::string slug() const override { return "dsa_graph_capture"; }

  void check(const Case& item) const override {
    std::vector<std::string> known = kAxes.at(site_of(item));
    known.push_back("site");
    if (site_of(item) == "loss_forward" || site_of(item) == "loss_backward")
      for (const char* name : {"logits_times", "loss_coeff", "is_per_token"})
        known = harness::with_optional(item, known, name);
    harness::check_axes(item, known);
    if (item.axes.contains("cp_rank") && axis(item, "cp_rank") >= extent(item, "cp_size"))
      refuse(item, "axis 'cp_rank' wants a rank below cp_size");
    inputs(item, 1);
  }

  at::ScalarType dtype(const Case&) const override { return at::kFloat; }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    const std::string site = site_of(item);
    if (site == "index_mask") return mask_inputs(item, seed);
    if (site == "loss_forward" || site == "loss_backward")
      return loss_inputs(item, seed, site == "loss_backward");
    if (site == "loss_scale") return scale_inputs(item, seed);
    if (site == "varlen_bounds" || site == "eager_bounds") return bounds_inputs(item);
    if (site == "context_parallel")
      return {{"ranks", torch::tensor(extent(item, "ranks"), at::kLong)}};
    if (site == "eligible_bounds") return eligible_bounds_inputs(item);
    std::vector<int64_t> cumulative = {0};
    for (const int64_t length : seqlens_of(item)) cumulative.push_back(cumulative.back() + length);
    return {{"cu_seqlens", torch::tensor(cumulative, at::kLong)}};
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return with_breaks(item, right_values(item, inputs, at::kDouble), at::kDouble);
  }

  /// fp32, but positions are int64: the wanted dtypes.
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    const auto type = site_of(item).ends_with("_positions") ? at::kLong : at::kFloat;
    Tensors on_cpu;
    for (const auto& [name, tensor] : inputs) on_cpu.emplace(name, tensor.cpu());
    return with_breaks(item, right_values(item, on_cpu, type), at::kFloat);
  }

  double least_size(const Case& item, const Tensors& inputs, const Tensors&,
                    const std::string& tensor) const override {
    return tensor == "loss" || tensor.starts_with("grad_") ? size_of_terms(item, inputs, tensor)
                                                           : 0;
  }

  harness::Tolerances tolerances(const Case&, const std::string& tensor) const override {
    return tensor == "loss" || tensor.starts_with("grad_") ? kFp32 : kExact;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    return {{"model", scatter_subject(branching_scatter)},
            {"model_fixed", scatter_subject(amax_scatter)},
            {"op", scatter_subject(op_scatter)},
            {"op_mutant:clamped", scatter_subject(clamped_scatter)},
            {"op_mutant:branching", scatter_subject(branching_scatter)},
            {"op_mutant:column_zero_closed", scatter_subject(scatter_closing_column_zero)}};
  }

  /// "ineligible_accepted": taken while capturing, declined in eager. "validation_lost": taken in
  /// eager. "eligible_declined": taken in eager, declined by a capture that works.
  /// "first_capture_illegal", "capture_illegal": every value is right and the path breaks a
  /// capture, of the first where no backward ran before it, and any.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const std::string site = site_of(item);
    if (site == "varlen_bounds" || site == "eager_bounds") {
      if (!judgement.is_right("accepted_eager")) return "validation_lost";
      if (!judgement.is_right("accepted_capturing")) return "ineligible_accepted";
    }
    if (site == "eligible_bounds" && judgement.is_right("capture_breaks"))
      return judgement.is_right("declined_capturing") ? "" : "eligible_declined";
    if (site == "eligible_bounds") return "capture_illegal";
    const std::set<std::string> of_capture = {"capture_breaks", "kept_from_capture"};
    bool is_capture_right = true;
    for (const auto& [name, tensor] : judgement.got) {
      if (judgement.is_right(name)) continue;
      if (!of_capture.contains(name)) return "";
      is_capture_right = false;
    }
    if (is_capture_right) return "";
    return site == "loss_scale" ? "first_capture_illegal" : "capture_illegal";
  }

  /// "sentinel_index_rejected": the scatter in the release's dsa.py raises for a case that holds
  /// -1.
  std::string classify_error(const Case& item, const Json& exception) const override {
    const std::string site = site_of(item);
    if (site != "loss_forward" && site != "loss_backward") return "";
    if (choice(item, "pattern", {"dense", "sentinels", "all_negative", "duplicates"}) == "dense")
      return "";
    const std::string type = exception.value("type", "");
    const bool is_bounds_error = type == "RuntimeError" || type == "IndexError" ||
                                 exception.value("cuda_code", Json()) == 710;
    const Json frames = exception.value("frames", Json::array());
    const bool is_in_dsa =
        !frames.empty() &&
        frames.back()
            .value("file", "")
            .ends_with("megatron/core/transformer/experimental_attention_variant/dsa.py");
    return is_bounds_error && is_in_dsa ? "sentinel_index_rejected" : "";
  }
};

}  // namespace
}  // namespace patchbench::dsa_graph_capture

int main(int argc, char** argv) {
  // The products are small: threads that wait for one another cost more than they give.
  at::set_num_threads(1);
  return patchbench::harness::run_reproducer(argc, argv, patchbench::dsa_graph_capture::DsaPack());
}
