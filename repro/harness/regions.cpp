#include "harness/regions.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "harness/axes.h"

namespace patchbench::harness {
namespace {

constexpr double kLarge = 1e3, kTiny = 1e-5;
constexpr int64_t kTimesSmallest = 4;
/// "everything 1 % off": less than a wrong fix is, and more than a right one may be.
constexpr double kFactor = 1.01;

std::string site_of(const Case& item) {
  return item.axes.contains("site") ? item.axes.at("site").get<std::string>() : "";
}

std::string beyond(const std::string& site, const std::string& axis) {
  return "beyond_" + (site.empty() ? "" : site + "_") + axis;
}

std::optional<at::Tensor> clipped(const at::Tensor& gradient) {
  if (!gradient.abs().gt(kLarge).any().item<bool>()) return std::nullopt;
  return gradient.clamp(-kLarge, kLarge);
}

std::optional<at::Tensor> flushed(const at::Tensor& gradient) {
  const at::Tensor is_tiny = gradient.abs().lt(kTiny).logical_and(gradient.ne(0));
  if (!is_tiny.any().item<bool>()) return std::nullopt;
  return gradient.masked_fill(is_tiny, 0);
}

std::optional<at::Tensor> read_by_numel(const at::Tensor& gradient) {
  int64_t stored = 1;
  for (int64_t axis = 0; axis < gradient.dim(); ++axis)
    if (gradient.stride(axis) != 0) stored *= gradient.size(axis);
  if (stored >= gradient.numel()) return std::nullopt;
  at::Tensor read = gradient.contiguous().clone();
  read.view(-1).slice(0, stored).zero_();
  return read;
}

std::optional<at::Tensor> without_last_odd_row(const at::Tensor& gradient) {
  const int64_t num_row_axes = gradient.dim() == 1 ? 1 : gradient.dim() - 1;
  for (int64_t axis = 0; axis < num_row_axes; ++axis) {
    const int64_t rows = gradient.size(axis);
    if (rows < 3 || rows % 2 == 0) continue;
    at::Tensor cut = gradient.contiguous().clone();
    cut.select(axis, rows - 1).zero_();
    return cut;
  }
  return std::nullopt;
}

using Change = std::optional<at::Tensor> (*)(const at::Tensor&);
struct GradientRegion {
  const char* name;
  Change change;
  bool is_of_rows;  ///< a gradient of rank 0 cannot be in it
};
constexpr GradientRegion kGradientRegions[] = {{"large_gradient", clipped, false},
                                               {"tiny_gradient", flushed, false},
                                               {"expanded_gradient", read_by_numel, true},
                                               {"last_odd_row", without_last_odd_row, true}};

bool is_whole_number(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong;
}

bool has_ties(const at::Tensor& tensor) {
  if (!is_whole_number(tensor) || tensor.dim() == 0 || tensor.size(-1) < 2) return false;
  const at::Tensor sorted = std::get<0>(tensor.sort(-1));
  const int64_t last = tensor.size(-1) - 1;
  const at::Tensor repeats = sorted.narrow(-1, 0, last).eq(sorted.narrow(-1, 1, last));
  // A value below 0 marks what is not there.
  return repeats.logical_and(sorted.narrow(-1, 0, last).ge(0)).any().item<bool>();
}

/// Everything 1 % off; of a tensor that this does not change (a mask of 0 and -inf) the last
/// element is another.
at::Tensor off(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() || tensor.numel() == 0) return tensor;
  at::Tensor changed = (tensor * kFactor).contiguous();
  if (!changed.eq(tensor).all().item<bool>()) return changed;
  at::Tensor last = changed.view(-1)[-1];
  last.fill_(last.eq(0).item<bool>() ? 1 : 0);
  return changed;
}

Tensors off(const Tensors& outputs) {
  Tensors changed;
  for (const auto& [name, tensor] : outputs) changed.emplace(name, off(tensor));
  return changed;
}

/// `outputs` + oracle(changed inputs) - oracle(inputs), in the dtype of each output.
Tensors with_changed_inputs(const Pack& pack, const PreparedCase& prepared, const Tensors& outputs,
                            const Tensors& changed) {
  Tensors inputs = prepared.inputs;
  for (const auto& [name, tensor] : changed) inputs[name] = tensor;
  const Tensors wrong = pack.oracle(*prepared.item, inputs);
  Tensors mutated;
  for (const auto& [name, output] : outputs) {
    const at::Tensor& right = prepared.oracle.at(name);
    mutated.emplace(
        name, output.is_floating_point()
                  ? (output.to(at::kDouble) + (wrong.at(name) - right)).to(output.scalar_type())
                  : output);
  }
  return mutated;
}

}  // namespace

RegionMutants::RegionMutants(const Pack& pack, std::vector<const Case*> cases,
                             std::set<std::string> waived)
    : pack_(pack), waived_(std::move(waived)) {
  for (const Case* item : cases) {
    for (const auto& [axis, value] : pack.extents(*item)) {
      auto& smallest = smallest_[site_of(*item)];
      const auto [at, is_new] = smallest.emplace(axis, value);
      at->second = std::min(at->second, value);
    }
  }
}

void RegionMutants::open(const std::string& region) {
  const bool is_waived = std::any_of(waived_.begin(), waived_.end(), [&](const std::string& name) {
    return name.ends_with('*') ? region.starts_with(name.substr(0, name.size() - 1))
                               : region == name;
  });
  if (!is_waived && known_.insert(region).second) open_.insert(region);
}

std::map<std::string, Tensors> RegionMutants::of(const PreparedCase& prepared,
                                                 const Tensors& outputs) {
  std::map<std::string, Tensors> mutants;
  const auto is_open = [&](const std::string& region) { return open_.contains(region); };
  const std::string site = site_of(*prepared.item);
  const auto& smallest = smallest_[site];  // empty where the site has no counts
  const auto& inputs = prepared.inputs;
  // In a case without numbers (code, the record of a call) the axes do not count anything.
  if (std::any_of(inputs.begin(), inputs.end(),
                  [](const auto& input) { return input.second.is_floating_point(); }))
    for (const auto& [axis, value] : smallest) open(beyond(site, axis));
  for (const auto& [axis, value] : pack_.extents(*prepared.item)) {
    if (value > kTimesSmallest * smallest.at(axis) && is_open(beyond(site, axis)))
      mutants.emplace(beyond(site, axis), off(outputs));
  }
  Tensors gradients;
  bool has_rows = false;
  for (const auto& [name, tensor] : prepared.inputs) {
    if (is_whole_number(tensor) && tensor.dim() > 0) open("ties");
    if (has_ties(tensor) && is_open("ties")) mutants.emplace("ties", off(outputs));
    if (!name.starts_with("grad_") || !tensor.is_floating_point()) continue;
    gradients.emplace(name, tensor);
    has_rows |= tensor.dim() > 0;
  }
  if (gradients.empty()) return mutants;
  for (const GradientRegion& region : kGradientRegions) {
    if (has_rows || !region.is_of_rows) open(region.name);
    if (!is_open(region.name)) continue;
    Tensors changed;
    for (const auto& [name, gradient] : gradients)
      if (std::optional<at::Tensor> other = region.change(gradient)) changed.emplace(name, *other);
    if (!changed.empty())
      mutants.emplace(region.name, with_changed_inputs(pack_, prepared, outputs, changed));
  }
  open("second_backward");
  if (backwards(*prepared.item) > 1 && is_open("second_backward")) {
    Tensors squared;
    for (const auto& [name, gradient] : gradients) squared.emplace(name, gradient * gradient);
    mutants.emplace("second_backward", with_changed_inputs(pack_, prepared, outputs, squared));
  }
  return mutants;
}

}  // namespace patchbench::harness
