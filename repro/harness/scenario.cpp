#include "harness/scenario.h"

#include <algorithm>

namespace patchbench::harness {
namespace {

constexpr std::string_view kPrefix = "kept/";

bool is_gradient(const std::string& output) { return output.starts_with("grad_"); }

}  // namespace

std::string scenario_of(const Case& item) { return item.axes.value("scenario", ""); }

Tensors take_kept(Tensors& outputs) { return take_below(outputs, kPrefix); }

std::string wrong_kept(const Case& item, const Tensors& kept, const Tensors& inputs) {
  const std::string scenario = scenario_of(item);
  std::vector<std::string> wanted;
  if (scenario == "inputs_kept")
    for (const auto& [name, tensor] : inputs) wanted.push_back(name);
  if (scenario == "copied") wanted = {"module"};
  if (wanted.empty()) return kept.empty() ? "" : "says of inputs what it was not asked";
  for (const std::string& name : wanted) {
    const auto found = kept.find(name);
    if (found == kept.end() || found->second.numel() != 1 || !found->second.is_floating_point())
      return "does not say whether '" + name + "' was kept";
  }
  return kept.size() == wanted.size() ? "" : "says of what is not there that it was kept";
}

Measure kept_layer(const std::string& name, const at::Tensor& changed) {
  const double number = changed.item<double>();
  return {
      name, "inputs_kept", number, 0, 0, number == 0, number == 0 ? "" : "what was given changed"};
}

void fill_left_out(const Case& item, Tensors& outputs, const Tensors& plain) {
  const std::string scenario = scenario_of(item);
  const bool has_backward = scenario == "frozen";
  if (!has_backward && scenario != "no_grad" && scenario != "inference_mode") return;
  const bool has_gradient = std::any_of(
      outputs.begin(), outputs.end(), [](const auto& output) { return is_gradient(output.first); });
  if (has_gradient != has_backward) return;
  for (const auto& [name, tensor] : plain) {
    if (is_gradient(name)) outputs.try_emplace(name, tensor);
  }
}

}  // namespace patchbench::harness
