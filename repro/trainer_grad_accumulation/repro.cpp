// Pack trainer_grad_accumulation: inputs, oracle, defect model and failure classes.
#include <algorithm>

#include "harness/axes.h"
#include "harness/program.h"
#include "trainer_grad_accumulation/model.h"

namespace patchbench::trainer_grad_accumulation {
namespace {

using harness::choice;
using harness::Draw;
using harness::extent;
using harness::in_fp64;
using harness::Judgement;
using harness::refuse;
using harness::Tensors;

/// A case's axes, checked.
struct Axes {
  int64_t vocab = 0, hidden = 0, masked = 0;
  std::vector<int64_t> lengths;  ///< tokens of each row
  std::string forward;
  Options options;
};

/// How the model's forward takes the count of labels that the trainer hands over, and its name.
const std::vector<std::string> kForwards = {
    "reads",                   // **loss_kwargs, handed to the loss; class TinyForCausalLM
    "reads_unlisted",          // the same; class TinyLMHeadModel, a name that no loss is listed for
    "reads_unshifted",         // the same; class TinyTagger: its own loss, labels not shifted
    "reads_listed_unshifted",  // the same; class TinyForTokenClassification, a listed name
    "takes_none",              // no argument for it; a name that the causal loss is listed for
    "takes_none_unlisted",  // the same; class NoArgumentDecoder, a name that no loss is listed for
    "takes_targets",        // the same; its labels have another name
    "ignores",              // **kwargs that it does not look at
};

/// What of the trainer's the user replaces by code that is right in a release which leaves it
/// alone: the loss in a subclass or on the object, which divides by a number that the user knows or
/// by the count that the trainer hands over; or accelerate's backward.
const std::vector<std::string> kOwn = {"subclass_by_its_number", "subclass_by_the_count",
                                       "object_by_its_number", "object_by_the_count", "backward"};

Axes axes_of(const Case& item) {
  std::vector<std::string> known = {"vocab",       "hidden", "tokens", "lengths",
                                    "micro_batch", "masked", "forward"};
  for (const char* name : {"own", "gives", "is_third_step", "ranks", "counts_over_ranks"})
    known = harness::with_optional(item, known, name);
  harness::check_axes(item, known);
  Axes axes;
  axes.vocab = extent(item, "vocab");
  axes.hidden = extent(item, "hidden");
  axes.lengths = harness::lengths(item, "lengths", extent(item, "tokens"));
  axes.forward = choice(item, "forward", kForwards);
  axes.options = {
      .micro_batch = extent(item, "micro_batch"),
      .is_shifted = axes.forward != "reads_unshifted" && axes.forward != "reads_listed_unshifted"};
  const double masked = harness::amount(item, "masked");
  axes.masked = static_cast<int64_t>(masked);
  if (static_cast<double>(axes.masked) != masked)
    refuse(item, "axis 'masked' wants a whole number");
  if (item.axes.contains("own")) {
    choice(item, "own", kOwn);
    if (axes.masked == 0 || axes.forward != "reads")
      refuse(item, "axis 'own' wants 'masked' of at least 1, and 'forward' reads");
  }
  if (item.axes.contains("gives")) {
    choice(item, "gives", {"shift_labels"});
    if (axes.forward != "reads" && axes.forward != "reads_unlisted")
      refuse(item, "axis 'gives' wants a 'forward' that hands all on: reads or reads_unlisted");
  }
  if (item.axes.contains("is_third_step") && item.axes.contains("own"))
    refuse(item, "axis 'is_third_step' is not for a loss of the user's own");
  if (item.axes.contains("ranks")) {
    axes.options.num_ranks = extent(item, "ranks");
    axes.options.counts_over_ranks = harness::flag(item, "counts_over_ranks");
    const auto num_rows = static_cast<int64_t>(axes.lengths.size());
    if (num_rows % (axes.options.micro_batch * axes.options.num_ranks) != 0)
      refuse(item, "axis 'ranks' wants as many whole micro-batches on each rank");
    if (item.axes.contains("own")) refuse(item, "axis 'ranks' is not for what the user replaces");
  }
  if (axes.vocab < 2) refuse(item, "axis 'vocab' wants at least 2");
  const int64_t first = std::max(axes.masked, axes.options.is_shifted ? int64_t{1} : int64_t{0});
  if (*std::max_element(axes.lengths.begin(), axes.lengths.end()) <= first)
    refuse(item, "no label counts: axis 'lengths' wants a longer row");
  return axes;
}

/// Of a later step and of ranks the gradients alone: the trainer's loss is of all steps, and a
/// rank's is not divided as its gradient is.
Tensors that_are_told(const Case& item, Tensors outputs) {
  if (item.axes.contains("is_third_step") || item.axes.contains("ranks")) outputs.erase("loss");
  return outputs;
}

/// What a right trainer gives: the mean over all labels of the step that count, or of each rank's
/// own.
Tensors token_mean(const Case& item, const Tensors& inputs) {
  const Axes axes = axes_of(item);
  Options whole = axes.options;
  if (whole.counts_over_ranks) {
    whole.num_ranks = 1;
    whole.micro_batch = static_cast<int64_t>(axes.lengths.size());
  }
  return that_are_told(item, accumulated(inputs, Weight::kShare, whole));
}

harness::InProcessSubject model(Weight weight, bool is_divided_again = false) {
  return [weight, is_divided_again](const Case& item, const Tensors& inputs) {
    Options options = axes_of(item).options;
    options.is_divided_again = is_divided_again;
    return that_are_told(item, accumulated(inputs, weight, options));
  };
}

/// The trainer of transformers 5.24.0, the red pin.
Tensors red_pin(const Case& item, const Tensors& inputs) {
  const Axes axes = axes_of(item);
  const Weight weight = axes.forward == "reads_unlisted"     ? Weight::kFirstCounted
                        : axes.forward.starts_with("takes_") ? Weight::kMeanOfMeans
                        : axes.forward == "ignores"          ? Weight::kSum
                                                             : Weight::kShare;
  return that_are_told(item, accumulated(inputs, weight, axes.options));
}

/// One way to be wrong, by the class that it is.
struct Guess {
  const char* failure_class;
  Weight weight;
};
constexpr Guess kGuesses[] = {{"mean_of_means", Weight::kMeanOfMeans},
                              {"scaled_by_steps", Weight::kSum},
                              {"first_label_counted", Weight::kFirstCounted},
                              {"first_label_left_out", Weight::kFirstLeftOut}};

class TrainerGradAccumulationPack final : public harness::Pack {
 public:
  std::string slug() const override { return "trainer_grad_accumulation"; }
  void check(const Case& item) const override { static_cast<void>(axes_of(item)); }
  at::ScalarType dtype(const Case&) const override { return at::kFloat; }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    const Axes axes = axes_of(item);
    const auto num_rows = static_cast<int64_t>(axes.lengths.size());
    const std::vector<int64_t> shape = {
        num_rows, *std::max_element(axes.lengths.begin(), axes.lengths.end())};
    const at::Tensor ids = Draw(seed, item.name + "/ids").integers(shape, 0, axes.vocab);
    at::Tensor labels = ids.clone();
    labels.slice(1, 0, axes.masked).fill_(-100);
    for (int64_t row = 0; row < num_rows; ++row)
      labels[row].slice(0, axes.lengths[static_cast<std::size_t>(row)]).fill_(-100);
    const auto weight = [&](const char* name) {
      return Draw(seed, item.name + name).normal({axes.vocab, axes.hidden}).to(at::kFloat) * 0.5;
    };
    return {
        {"table", weight("/table")}, {"head", weight("/head")}, {"ids", ids}, {"labels", labels}};
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return token_mean(item, in_fp64(inputs));
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return token_mean(item, inputs);
  }

  std::map<std::string, int64_t> extents(const Case& item) const override {
    const Axes axes = axes_of(item);
    return {{"vocab", axes.vocab},
            {"hidden", axes.hidden},
            {"rows", static_cast<int64_t>(axes.lengths.size())},
            {"micro_batch", axes.options.micro_batch}};
  }

  /// Of few classes and widths the tokens' terms may cancel in every element.
  double least_size(const Case& item, const Tensors& inputs, const Tensors&,
                    const std::string& tensor) const override {
    if (tensor == "loss") return 0;
    const bool is_shifted = axes_of(item).options.is_shifted;
    return sums_of_terms(in_fp64(inputs), is_shifted).at(tensor).max().item<double>();
  }

  harness::Tolerances tolerances(const Case&, const std::string&) const override {
    return {Tolerance{2, 8, "sums over micro-batches, where the plain one has a single batch"},
            Tolerance{2, 8, "sums over micro-batches, where the plain one has a single batch"},
            Tolerance{2, 1e-3, "of second order in the relative error"},
            Tolerance{2, 4, "a loss whose plain value happens to be exact"}};
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    return {{"model", red_pin},
            {"model_fixed", model(Weight::kShare)},
            {"model_mutant:mean_of_means", model(Weight::kMeanOfMeans)},
            {"model_mutant:scaled_by_steps", model(Weight::kSum)},
            {"model_mutant:first_label_counted", model(Weight::kFirstCounted)},
            {"model_mutant:first_label_left_out", model(Weight::kFirstLeftOut)},
            {"model_mutant:divided_twice", model(Weight::kShare, true)}};
  }

  /// The first guess whose gradients these are, where it is not right itself; then those that are
  /// divided once more, by whatever they were weighed. A right gradient with a wrong loss is
  /// "loss_wrong".
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const Axes axes = axes_of(item);
    if (judgement.is_right("grad_table") && judgement.is_right("grad_head")) return "loss_wrong";
    const Tensors wide = in_fp64(judgement.inputs);
    const auto is_as = [&](Weight weight, const Options& options) {
      const Tensors predicted = accumulated(wide, weight, options);
      return is_near(judgement.got, predicted) && !is_near(judgement.oracle, predicted);
    };
    Options again = axes.options;
    again.is_divided_again = true;
    for (const auto& [failure_class, weight] : kGuesses)
      if (is_as(weight, axes.options)) return failure_class;
    if (is_as(Weight::kShare, again)) return "divided_twice";
    for (const auto& [failure_class, weight] : kGuesses)
      if (is_as(weight, again)) return "divided_twice";
    return "";
  }

 private:
  /// Whether both gradients agree to 1e-4 of the largest element.
  static bool is_near(const Tensors& got, const Tensors& wanted) {
    return std::all_of(std::begin(kGradients), std::end(kGradients), [&](const char* name) {
      return got.at(name).sizes() == wanted.at(name).sizes() &&
             harness::errors_of(got.at(name), wanted.at(name)).element < 1e-4;
    });
  }
  static constexpr const char* kGradients[] = {"grad_table", "grad_head"};
};

}  // namespace
}  // namespace patchbench::trainer_grad_accumulation

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(
      argc, argv, patchbench::trainer_grad_accumulation::TrainerGradAccumulationPack());
}
