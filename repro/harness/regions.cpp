#include "harness/regions.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "harness/axes.h"
#include "harness/properties.h"

namespace patchbench::harness {
namespace {

constexpr double kLarge = 1e3, kTiny = 1e-5;
constexpr int64_t kTimesSmallest = 4;
/// "everything 1 % off": less than a wrong fix is, and more than a right one may be.
constexpr double kFactor = 1.01;

std::string site_of(const Case& item) {
  return item.axes.contains("site") ? item.axes.at("site").get<std::string>() : "";
}

std::string region_of(const char* kind, const std::string& site, const std::string& axis) {
  return std::string(kind) + "_" + (site.empty() ? "" : site + "_") + axis;
}

std::string region_where(const Condition& condition) { return "where " + condition.text(); }

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

/// As a reader sees it that takes the storage from the tensor's offset on for row-major.
std::optional<at::Tensor> read_row_major(const at::Tensor& gradient) {
  const auto strides = gradient.strides();
  const bool is_expanded =
      std::any_of(strides.begin(), strides.end(), [](int64_t step) { return step == 0; });
  if (is_expanded || gradient.is_contiguous() || gradient.numel() < 2) return std::nullopt;
  return gradient.as_strided(gradient.sizes(), at::empty(gradient.sizes()).strides()).clone();
}

std::optional<at::Tensor> read_untransposed(const at::Tensor& gradient) {
  return gradient.is_non_overlapping_and_dense() ? read_row_major(gradient) : std::nullopt;
}

std::optional<at::Tensor> read_without_gaps(const at::Tensor& gradient) {
  return gradient.is_non_overlapping_and_dense() ? std::nullopt : read_row_major(gradient);
}

std::optional<at::Tensor> read_from_the_beginning(const at::Tensor& gradient) {
  if (gradient.storage_offset() == 0) return std::nullopt;
  return gradient.as_strided(gradient.sizes(), gradient.strides(), 0).clone();
}

using Change = std::optional<at::Tensor> (*)(const at::Tensor&);
struct GradientRegion {
  const char* name;
  Change change;
  bool is_of_rows;  ///< a gradient of rank 0 cannot be in it
  RegionMutants::Cases asked_of;
};
constexpr auto kDeclared = RegionMutants::Cases::kDeclared, kDrawn = RegionMutants::Cases::kDrawn;
constexpr GradientRegion kGradientRegions[] = {
    {"large_gradient", clipped, false, kDeclared},
    {"tiny_gradient", flushed, false, kDeclared},
    {"expanded_gradient", read_by_numel, true, kDeclared},
    {"last_odd_row", without_last_odd_row, true, kDeclared},
    {"transposed_gradient", read_untransposed, true, kDrawn},
    {"strided_gradient", read_without_gaps, true, kDrawn},
    {"offset_gradient", read_from_the_beginning, true, kDrawn}};

bool has_masked_first_row(const at::Tensor& gradient) {
  return gradient.dim() > 0 && gradient.size(0) > 1 && !gradient[0].ne(0).any().item<bool>() &&
         gradient.ne(0).any().item<bool>();
}

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
                             std::set<std::string> waived, Cases kind,
                             std::vector<Condition> conditions)
    : pack_(pack), kind_(kind), waived_(std::move(waived)), conditions_(std::move(conditions)) {
  for (const Condition& condition : conditions_) open(region_where(condition));
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

void RegionMutants::add_counts(const PreparedCase& prepared, const Tensors& outputs,
                               std::map<std::string, Tensors>& mutants) {
  const std::string site = site_of(*prepared.item);
  const auto& smallest = smallest_[site];  // empty where the site has no counts
  const auto& inputs = prepared.inputs;
  // In a case without numbers (code, the record of a call) the axes do not count anything.
  const bool has_numbers = std::any_of(inputs.begin(), inputs.end(), [](const auto& input) {
    return input.second.is_floating_point();
  });
  const auto offer = [&](const std::string& region, bool is_inside) {
    if (has_numbers && (kind_ == kDeclared || is_inside)) open(region);
    if (is_inside && is_open(region)) mutants.emplace(region, off(outputs));
  };
  const auto counts = pack_.extents(*prepared.item);
  for (const auto& [axis, least] : smallest) {
    const auto count = counts.find(axis);
    const int64_t value = count == counts.end() ? least : count->second;
    offer(region_of("beyond", site, axis), value > kTimesSmallest * least);
    if (kind_ == kDeclared || count == counts.end()) continue;
    offer(region_of("one", site, axis), value == 1);
    offer(region_of("odd", site, axis), value > 1 && value % 2 == 1);
  }
}

void RegionMutants::add_conditions(const PreparedCase& prepared, const Tensors& outputs,
                                   std::map<std::string, Tensors>& mutants) {
  if (conditions_.empty()) return;
  Json facts = prepared.item->axes;
  facts.update(properties_of(*prepared.item, prepared.inputs));
  for (const Condition& condition : conditions_) {
    if (is_open(region_where(condition)) && condition.holds(facts))
      mutants.emplace(region_where(condition), off(outputs));
  }
}

std::map<std::string, Tensors> RegionMutants::of(const PreparedCase& prepared,
                                                 const Tensors& outputs) {
  std::map<std::string, Tensors> mutants;
  add_counts(prepared, outputs, mutants);
  add_conditions(prepared, outputs, mutants);
  Tensors gradients;
  bool has_rows = false;
  for (const auto& [name, tensor] : prepared.inputs) {
    if (is_whole_number(tensor) && tensor.dim() > 0 && (kind_ == kDeclared || has_ties(tensor)))
      open("ties");
    if (has_ties(tensor) && is_open("ties")) mutants.emplace("ties", off(outputs));
    if (!name.starts_with("grad_") || !tensor.is_floating_point()) continue;
    gradients.emplace(name, tensor);
    has_rows |= tensor.dim() > 0;
    if (kind_ == kDeclared || !has_masked_first_row(tensor)) continue;
    open("masked_first_row");
    if (is_open("masked_first_row")) mutants.emplace("masked_first_row", off(outputs));
  }
  if (gradients.empty()) return mutants;
  for (const GradientRegion& region : kGradientRegions) {
    if (kind_ == kDeclared && region.asked_of == kDrawn) continue;
    if (kind_ == kDeclared && (has_rows || !region.is_of_rows)) open(region.name);
    if (known_.contains(region.name) && !is_open(region.name)) continue;
    Tensors changed;
    for (const auto& [name, gradient] : gradients)
      if (std::optional<at::Tensor> other = region.change(gradient)) changed.emplace(name, *other);
    if (changed.empty()) continue;
    open(region.name);
    if (is_open(region.name))
      mutants.emplace(region.name, with_changed_inputs(pack_, prepared, outputs, changed));
  }
  const bool is_second = backwards(*prepared.item) > 1;
  if (kind_ == kDeclared || is_second) open("second_backward");
  if (is_second && is_open("second_backward")) {
    Tensors squared;
    for (const auto& [name, gradient] : gradients) squared.emplace(name, gradient * gradient);
    mutants.emplace("second_backward", with_changed_inputs(pack_, prepared, outputs, squared));
  }
  return mutants;
}

}  // namespace patchbench::harness
