#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/inputs.h"

/// A small language model (a table of embeddings and a head) whose gradient is accumulated over
/// micro-batches: the fp64 oracle, and each way in which a trainer weighs the micro-batches
/// wrongly.
namespace patchbench::trainer_grad_accumulation {

/// How the rows of one optimizer step are cut and counted.
struct Options {
  int64_t micro_batch = 1;
  /// The model predicts the next token: the label at position i + 1 belongs to the logits at i.
  bool is_shifted = true;
  /// The defect of a second place that divides: the gradient, and not the loss, is divided by the
  /// number of micro-batches once more.
  bool is_divided_again = false;
  /// Ranks take the micro-batches in turn; their gradients are averaged.
  int64_t num_ranks = 1;
  /// The labels of a step are counted over all ranks, else each rank's loss is a mean of its own.
  bool counts_over_ranks = true;
};

/// The factor of a micro-batch's mean loss. n: its labels that count, N: the step's labels that
/// count, m and M: the same with the first label of each row, S: the number of micro-batches. Where
/// each rank counts by itself N, M and S are the rank's, and the factor is divided by the ranks.
enum class Weight {
  kShare,         ///< n / N: right
  kMeanOfMeans,   ///< 1 / S
  kSum,           ///< 1: S times the mean of means
  kFirstCounted,  ///< n / M, where the loss shifts the labels
  kFirstLeftOut,  ///< n / (labels that would count after a shift), where the loss does not shift
};

/// The labels that the loss compares with, and the logits that they belong to.
inline at::Tensor targets_of(const at::Tensor& labels, bool is_shifted) {
  return is_shifted ? labels.slice(1, 1) : labels;
}

inline int64_t counted(const at::Tensor& labels) { return labels.ne(-100).sum().item<int64_t>(); }

/// The factor of a micro-batch, from its labels and the labels of the step.
inline double factor(Weight weight, const at::Tensor& part, const at::Tensor& all,
                     int64_t num_micro_batches, const Options& options) {
  const bool is_shifted = options.is_shifted;
  const auto share_of = [&](bool is_count_shifted) {
    return static_cast<double>(counted(targets_of(part, is_shifted))) /
           static_cast<double>(counted(targets_of(all, is_count_shifted)));
  };
  switch (weight) {
    case Weight::kShare:
      return share_of(is_shifted);
    case Weight::kMeanOfMeans:
      return 1.0 / static_cast<double>(num_micro_batches);
    case Weight::kSum:
      return 1;
    case Weight::kFirstCounted:
      return share_of(false);
    case Weight::kFirstLeftOut:
      return share_of(true);
  }
  return 0;
}

/// The labels of the rank that has a micro-batch, or of all ranks where they count together.
inline at::Tensor counted_with(const at::Tensor& labels, int64_t micro_batch,
                               const Options& options) {
  if (options.num_ranks == 1 || options.counts_over_ranks) return labels;
  std::vector<at::Tensor> parts;
  for (int64_t i = micro_batch % options.num_ranks; i * options.micro_batch < labels.size(0);
       i += options.num_ranks)
    parts.push_back(labels.slice(0, i * options.micro_batch, (i + 1) * options.micro_batch));
  return at::cat(parts);
}

/// sum over micro-batches of factor * mean cross entropy, and its gradients. One micro-batch of all
/// rows with Weight::kShare is the plain mean over the tokens. A micro-batch without a label that
/// counts adds nothing. Dtype of the table.
///   inputs: table [v, h], head [v, h], ids [rows, seqlen] int64, labels [rows, seqlen] int64
///   returns loss [], grad_table [v, h], grad_head [v, h]
inline harness::Tensors accumulated(const harness::Tensors& inputs, Weight weight,
                                    const Options& options) {
  const at::Tensor table = inputs.at("table").detach().requires_grad_(),
                   head = inputs.at("head").detach().requires_grad_();
  const at::Tensor ids = inputs.at("ids"), labels = inputs.at("labels");
  const int64_t num_rows = ids.size(0), vocab = table.size(0);
  const int64_t num_micro_batches = (num_rows + options.micro_batch - 1) / options.micro_batch;
  const int64_t num_counts = options.counts_over_ranks ? 1 : options.num_ranks;
  at::Tensor loss = at::zeros({}, table.options());
  for (int64_t begin = 0; begin < num_rows; begin += options.micro_batch) {
    const int64_t end = std::min(begin + options.micro_batch, num_rows);
    const at::Tensor part = labels.slice(0, begin, end);
    const at::Tensor targets = targets_of(part, options.is_shifted);
    if (counted(targets) == 0) continue;
    at::Tensor logits = at::linear(at::embedding(table, ids.slice(0, begin, end)), head);
    if (options.is_shifted) logits = logits.slice(1, 0, -1);
    const at::Tensor mean =
        at::cross_entropy_loss(logits.reshape({-1, vocab}), targets.reshape({-1}));
    const at::Tensor all = counted_with(labels, begin / options.micro_batch, options);
    const double by = factor(weight, part, all, num_micro_batches / num_counts, options);
    loss = loss + mean * by / static_cast<double>(num_counts);
  }
  const auto grads = torch::autograd::grad({loss}, {table, head});
  const int64_t num_own = num_micro_batches / options.num_ranks;
  const auto by = static_cast<double>(options.is_divided_again ? num_own : 1);
  return {{"loss", loss.detach()}, {"grad_table", grads[0] / by}, {"grad_head", grads[1] / by}};
}

/// What the terms of the right gradients' elements come to: the sum over the tokens that count of
/// |grad_logits| |what it is multiplied by|, [v, h] each. Arguments as in `accumulated`.
inline harness::Tensors sums_of_terms(const harness::Tensors& inputs, bool is_shifted) {
  const at::Tensor table = inputs.at("table"), head = inputs.at("head");
  const int64_t last = inputs.at("ids").size(1) - (is_shifted ? 1 : 0);
  const at::Tensor ids = inputs.at("ids").slice(1, 0, last).flatten();
  const at::Tensor labels = targets_of(inputs.at("labels"), is_shifted).flatten();
  const at::Tensor counts = labels.ne(-100);
  const at::Tensor hidden = at::embedding(table, ids);
  const at::Tensor label = at::one_hot(labels.clamp_min(0), table.size(0));
  const at::Tensor grad_logits =
      (at::linear(hidden, head).softmax(-1) - label).abs() * counts.unsqueeze(1) / counts.sum();
  const at::Tensor grad_hidden = at::matmul(grad_logits, head.abs());
  return {{"grad_table", at::zeros_like(table).index_add(0, ids, grad_hidden)},
          {"grad_head", at::matmul(grad_logits.t(), hidden.abs())}};
}

}  // namespace patchbench::trainer_grad_accumulation
