#include "harness/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "harness/axes.h"
#include "harness/compare.h"
#include "harness/corrupt.h"
#include "harness/guard_bands.h"
#include "harness/layouts.h"
#include "harness/scenario.h"
#include "harness/tensor_file.h"

namespace patchbench::harness {
namespace {

Tensors on_device(const Tensors& tensors, const std::string& device) {
  if (device == "cpu") return tensors;
  Tensors moved;
  for (const auto& [name, tensor] : tensors)
    moved.emplace(name, view_on(tensor, at::Device(device)));
  return moved;
}

/// Why the outputs are not the set that was asked for, or "".
std::string wrong_set(const Tensors& got, const Tensors& wanted) {
  for (const auto& [name, tensor] : wanted) {
    if (!got.contains(name)) return "output '" + name + "' is missing";
  }
  for (const auto& [name, tensor] : got) {
    if (!wanted.contains(name)) return "output '" + printable(name, 60) + "' was not asked for";
  }
  return "";
}

/// An upstream gradient with what the harness's own axes change in it: rows that are 0, a factor,
/// then how it is stored.
at::Tensor gradient_of(const Case& item, at::Tensor gradient) {
  constexpr double kExpanded = 0.75;
  const double factor = gradient_times(item);
  const std::string layout = item.axes.value("grad_layout", "");
  const bool is_expanded = layout == "expanded";
  if (item.axes.contains("grad_mask")) gradient = masked(gradient, item.axes.at("grad_mask"));
  if (factor != 1 || is_expanded) {
    const auto strides = gradient.strides();
    const bool is_one_value =
        is_expanded || (gradient.dim() > 0 && std::all_of(strides.begin(), strides.end(),
                                                          [](int64_t step) { return step == 0; }));
    const at::Tensor values = is_one_value ? gradient.flatten()[0].clone() : gradient;
    const at::Tensor unscaled = is_expanded ? at::full_like(values, kExpanded) : values;
    const at::Tensor scaled = (unscaled.to(at::kDouble) * factor).to(gradient.scalar_type());
    gradient = is_one_value ? scaled.expand_as(gradient) : scaled;
  }
  return layout.empty() || is_expanded ? gradient : laid_out(gradient, layout);
}

/// Applies --corrupt; the reason why the case cannot be judged with it, or "".
std::string spoil(const Pack& pack, const PreparedCase& prepared, const Request& request,
                  Tensors& outputs) {
  CorruptionMaterial material{prepared.inputs, {}, pack.dtype(*prepared.item)};
  const Tensors other_inputs = inputs_of(pack, *prepared.item, request.seed + 1);
  for (auto& [name, tensor] : pack.plain(*prepared.item, other_inputs))
    material.other.emplace(name, tensor.cpu());
  return corrupt(request.corruption, material, outputs) ? "" : no_effect_reason(request.corruption);
}

std::vector<Measure> deciding_only(const std::vector<Measure>& measures) {
  std::vector<Measure> chosen;
  for (std::size_t i = 0; i < measures.size();) {
    std::vector<Measure> layers;
    const std::string tensor = measures[i].tensor;
    for (; i < measures.size() && measures[i].tensor == tensor; ++i) layers.push_back(measures[i]);
    chosen.push_back(deciding(layers));
  }
  return chosen;
}

bool is_truncated_by_interpreter(const Request& request, const Tensors& plain) {
  const bool has_bf16 = std::any_of(plain.begin(), plain.end(), [](const auto& entry) {
    return entry.second.scalar_type() == at::kBFloat16;
  });
  return has_bf16 && request.device == "cpu" && !request.subject.is_in_process();
}

/// The layer "linear" of one output; `element` is its layer of that name.
Measure linear(const std::string& name, const at::Tensor& got, const at::Tensor& base,
               double factor, const Measure& element, double epsilon) {
  constexpr double kMostEpsilons = 16;
  Measure measure{name,  "linear", 0, 0, std::min(element.limit, kMostEpsilons * epsilon),
                  false, ""};
  measure.got = INFINITY;
  if (got.sizes() == base.sizes()) {
    const at::Tensor wanted = base.to(at::kDouble) * factor;
    const double size = wanted.abs().max().item<double>();
    const double error = (got.to(at::kDouble) - wanted).abs().max().item<double>();
    measure.got = size > 0 ? error / size : error;
  }
  measure.pass = measure.got <= measure.limit;
  return measure;
}

/// Sets seen, class and reason from the judged layers.
void conclude(const Pack& pack, const PreparedCase& prepared, const Request& request,
              Judgement&& judgement, Observation& observation) {
  const auto failing = std::find_if(judgement.measures.begin(), judgement.measures.end(),
                                    [](const Measure& m) { return !m.pass; });
  observation.measures =
      request.wants_all_layers ? judgement.measures : deciding_only(judgement.measures);
  if (is_truncated_by_interpreter(request, prepared.plain) &&
      !pack.rounds_bf16_on_cpu(*prepared.item)) {
    observation.status = CaseStatus::kUnjudged;
    observation.reason = "interpreter truncates bf16 stores";
    return;
  }
  if (failing == judgement.measures.end()) {
    observation.status = CaseStatus::kAbsent;
    return;
  }
  const std::string failure =
      fmt::format("{} {} {:.3g} > {:.3g} {}", failing->tensor, failing->layer, failing->got,
                  failing->limit, failing->where);
  const std::string failure_class = pack.classify(*prepared.item, judgement);
  if (failure_class.empty()) {
    // Wrong in a way that the pack does not name: red for a fix or a mutant, and no bug of this
    // pack.
    observation.status = CaseStatus::kPresent;
    observation.failure_class = "undeclared";
    observation.reason = failure;
  } else if (std::find(request.classes.begin(), request.classes.end(), failure_class) ==
             request.classes.end()) {
    observation.reason =
        "failure class '" + failure_class + "' is not in the case file: " + failure;
  } else {
    observation.status = CaseStatus::kPresent;
    observation.failure_class = failure_class;
  }
}

/// A subject that raised: present if the pack names the error, else it stays unresolved.
void conclude_error(const Pack& pack, const Case& item, const Request& request,
                    Observation& observation) {
  const std::string failure_class =
      pack.classify_error(item, observation.self_reported.at("exception"));
  const bool is_declared = std::find(request.classes.begin(), request.classes.end(),
                                     failure_class) != request.classes.end();
  if (!is_declared) return;
  observation.status = CaseStatus::kPresent;
  observation.failure_class = failure_class;
}

/// What is known of a case before its outputs are looked at.
Observation begun(const PreparedCase& prepared, const Request& request, int repeat,
                  Answer& answer) {
  const Case& item = *prepared.item;
  Observation observation;
  observation.slug = request.slug;
  observation.subject = request.subject;
  observation.case_name = item.name;
  observation.role = item.role;
  observation.device = request.device;
  observation.seed = request.seed;
  observation.repeat = repeat;
  observation.counts = item.counts_on(request.device_kind());
  observation.inputs_sha256 = prepared.inputs_sha256;
  observation.self_reported = std::move(answer.self_reported);
  observation.outside = std::move(answer.outside);
  observation.reason = answer.reason;
  return observation;
}

}  // namespace

Tensors inputs_of(const Pack& pack, const Case& item, uint64_t seed) {
  Case drawn = item;
  drawn.name = item.axes.value("scaled_from", item.name);
  Tensors inputs = pack.inputs(drawn, seed);
  for (auto& [name, tensor] : inputs) {
    if (!tensor.is_floating_point()) continue;
    if (name.starts_with("grad_")) {
      tensor = gradient_of(item, tensor);
      continue;
    }
    if (item.axes.contains("input_times")) tensor = tensor * factor(item, "input_times");
    if (item.axes.contains("input_layout")) tensor = laid_out(tensor, item.axes.at("input_layout"));
  }
  return inputs;
}

PreparedCase prepare_case(const Pack& pack, const Case& item, const Request& request) {
  return prepare_inputs(pack, item, inputs_of(pack, item, request.seed), request);
}

PreparedCase prepare_inputs(const Pack& pack, const Case& item, Tensors inputs,
                            const Request& request) {
  PreparedCase prepared;
  prepared.item = &item;
  prepared.inputs = std::move(inputs);
  if (item.is_isolated) prepared.bands = lay_bands(prepared.inputs, item.name, request.seed);
  prepared.inputs_sha256 = digest_of(prepared.inputs);
  prepared.oracle = pack.oracle(item, prepared.inputs);
  prepared.plain = plain_of(pack, item, prepared.inputs, request);
  return prepared;
}

double least_size_of(const Pack& pack, const PreparedCase& prepared, const std::string& tensor) {
  constexpr double kSmallestNormalHalf = 0x1p-14;
  const auto known = prepared.least_sizes.find(tensor);
  if (known != prepared.least_sizes.end()) return known->second;
  const double terms = pack.least_size(*prepared.item, prepared.inputs, prepared.oracle, tensor);
  const double size =
      pack.dtype(*prepared.item) == at::kHalf ? std::max(terms, kSmallestNormalHalf) : terms;
  return prepared.least_sizes[tensor] = size;
}

Tensors plain_of(const Pack& pack, const Case& item, const Tensors& inputs,
                 const Request& request) {
  Tensors outputs;
  for (auto& [name, tensor] : pack.plain(item, on_device(inputs, request.judge_device)))
    outputs.emplace(name, tensor.cpu());
  return outputs;
}

Observation judge_case(const Pack& pack, const PreparedCase& prepared, const Request& request,
                       int repeat, Answer answer, const Related* base,
                       const std::vector<Measure>& relations) {
  const Case& item = *prepared.item;
  Observation observation = begun(prepared, request, repeat, answer);
  if (answer.state == Answer::State::kUnsupported) observation.status = CaseStatus::kUnsupported;
  if (answer.state == Answer::State::kUnresolved && observation.self_reported.contains("exception"))
    conclude_error(pack, item, request, observation);
  if (answer.state != Answer::State::kOutputs) return observation;
  observation.outputs_sha256 = digest_of(answer.outputs);
  if (item.role == CaseRole::kCode) {
    observation.status = answer.outputs.empty() ? CaseStatus::kUnresolved : CaseStatus::kUnjudged;
    observation.reason = answer.outputs.empty() ? "no code" : "code: compared, not judged";
    return observation;
  }
  if (!request.corruption.empty()) {
    observation.reason = spoil(pack, prepared, request, answer.outputs);
    if (!observation.reason.empty()) return observation;
  }
  observation.reason = wrong_kept(item, answer.kept, prepared.inputs);
  if (!observation.reason.empty()) return observation;
  fill_left_out(item, answer.outputs, prepared.plain);
  observation.reason = wrong_set(answer.outputs, prepared.plain);
  if (!observation.reason.empty()) return observation;
  observation.reason = wrong_bands(answer.bands, prepared.bands);
  if (!observation.reason.empty()) return observation;
  Judgement judgement{
      prepared.inputs, std::move(answer.outputs), prepared.oracle, prepared.plain, {}};
  const double epsilon = epsilon_of(pack.dtype(item));
  for (const auto& [name, plain] : prepared.plain) {
    const std::vector<Measure> layers =
        compare(name, judgement.got.at(name), prepared.oracle.at(name), plain,
                pack.tolerances(item, name), epsilon, least_size_of(pack, prepared, name));
    judgement.measures.insert(judgement.measures.end(), layers.begin(), layers.end());
    const auto element = std::find_if(layers.begin(), layers.end(),
                                      [](const Measure& m) { return m.layer == "element"; });
    if (base == nullptr || !name.starts_with("grad_") || element == layers.end()) continue;
    judgement.measures.push_back(linear(name, judgement.got.at(name), base->outputs.at(name),
                                        gradient_times(item) / base->gradient_times, *element,
                                        epsilon));
  }
  for (const auto& [name, laid] : prepared.bands)
    judgement.measures.push_back(band_layer(name, answer.bands.at(name), laid));
  for (const auto& [name, changed] : answer.kept) {
    if (!request.overwritten.contains(name))
      judgement.measures.push_back(kept_layer(name, changed));
  }
  judgement.measures.insert(judgement.measures.end(), relations.begin(), relations.end());
  conclude(pack, prepared, request, std::move(judgement), observation);
  return observation;
}

}  // namespace patchbench::harness
