#include "harness/corrupt.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/slug.h"

namespace patchbench::harness {
namespace {

/// How far a single wrong entry is pushed, as a share of the largest: above any tolerance that
/// could be defended.
constexpr double kPush = 0.05;

/// A tensor spoiled, or nullopt where the way does not apply to its shape.
using Spoiler = std::optional<at::Tensor> (*)(const at::Tensor&);
struct Way {
  const char* name;
  const char* what;
  Spoiler spoil;  ///< null: handled by name in corrupt()
};

/// The tensor as rows: rank 0 and 1 are a column of elements.
at::Tensor rows_of(const at::Tensor& t) {
  return t.dim() < 2 ? t.reshape({-1, 1}) : t.reshape({-1, t.size(-1)});
}

/// The index of the row of largest norm.
int64_t largest_row(const at::Tensor& rows) {
  return rows.to(at::kDouble).norm(2, {1}).argmax().item<int64_t>();
}

double largest(const at::Tensor& t) { return t.to(at::kDouble).abs().max().item<double>(); }

/// Applies `change` to a copy seen as rows.
template <typename F>
std::optional<at::Tensor> with_rows(const at::Tensor& t, int64_t min_rows, const F& change) {
  at::Tensor copy = t.clone(at::MemoryFormat::Contiguous);
  at::Tensor rows = rows_of(copy);
  if (rows.size(0) < min_rows || rows.numel() == 0) return std::nullopt;
  change(rows);
  return copy;
}

std::optional<at::Tensor> all_zeros(const at::Tensor& t) { return at::zeros_like(t); }
std::optional<at::Tensor> all_ones(const at::Tensor& t) { return at::ones_like(t); }
std::optional<at::Tensor> all_nan(const at::Tensor& t) {
  if (!t.is_floating_point()) return std::nullopt;
  return at::full_like(t, std::numeric_limits<double>::quiet_NaN());
}
std::optional<at::Tensor> first_row_only(const at::Tensor& t) {
  return with_rows(t, 2, [](at::Tensor& rows) { rows.slice(0, 1).zero_(); });
}
std::optional<at::Tensor> first_row_everywhere(const at::Tensor& t) {
  return with_rows(t, 2, [](at::Tensor& rows) { rows.copy_(rows[0].clone().expand_as(rows)); });
}
std::optional<at::Tensor> off_by_one_row(const at::Tensor& t) {
  return with_rows(t, 2, [](at::Tensor& rows) { rows.copy_(rows.roll(1, 0)); });
}
std::optional<at::Tensor> one_row_wrong(const at::Tensor& t) {
  return with_rows(t, 2, [](at::Tensor& rows) { rows[largest_row(rows)].mul_(1.0 + kPush); });
}
std::optional<at::Tensor> last_row_zero(const at::Tensor& t) {
  return with_rows(t, 2, [](at::Tensor& rows) {
    const at::Tensor used = rows.ne(0).any(1).nonzero().flatten();
    if (used.numel() > 0) rows[used[-1].item<int64_t>()].zero_();
  });
}
std::optional<at::Tensor> two_rows_swapped(const at::Tensor& t) {
  return with_rows(t, 2, [](at::Tensor& rows) {
    const int64_t a = largest_row(rows);
    const int64_t b = a == 0 ? rows.size(0) - 1 : a - 1;
    const at::Tensor keep = rows[a].clone();
    rows[a].copy_(rows[b].clone());
    rows[b].copy_(keep);
  });
}
std::optional<at::Tensor> last_half_missing(const at::Tensor& t) {
  return with_rows(t, 2, [](at::Tensor& rows) { rows.slice(0, (rows.size(0) + 1) / 2).zero_(); });
}
std::optional<at::Tensor> one_element_wrong(const at::Tensor& t) {
  return with_rows(t, 1, [&](at::Tensor& rows) {
    rows[rows.size(0) / 2][rows.size(1) / 2].add_(kPush * largest(t));
  });
}
std::optional<at::Tensor> one_nan(const at::Tensor& t) {
  if (!t.is_floating_point()) return std::nullopt;
  return with_rows(
      t, 1, [](at::Tensor& rows) { rows[-1][-1].fill_(std::numeric_limits<double>::quiet_NaN()); });
}
std::optional<at::Tensor> one_inf(const at::Tensor& t) {
  if (!t.is_floating_point()) return std::nullopt;
  return with_rows(
      t, 1, [](at::Tensor& rows) { rows[0][-1].fill_(std::numeric_limits<double>::infinity()); });
}
std::optional<at::Tensor> sign_flipped(const at::Tensor& t) { return t.neg(); }
std::optional<at::Tensor> scaled_by_1_percent(const at::Tensor& t) { return t.mul(1.01); }
std::optional<at::Tensor> offset_added(const at::Tensor& t) { return t.add(largest(t) * kPush); }
/// Divided by the number of rows: a mean where a sum was asked for.
std::optional<at::Tensor> mean_for_sum(const at::Tensor& t) {
  if (t.dim() == 0) return t.mul(0.5);
  return t.size(0) < 2 ? std::nullopt : std::optional(t.div(static_cast<double>(t.size(0))));
}
std::optional<at::Tensor> absolute_values(const at::Tensor& t) { return t.abs(); }
std::optional<at::Tensor> truncated(const at::Tensor& t) {
  if (t.dim() == 0 || t.size(0) < 2) return std::nullopt;
  return t.slice(0, 0, t.size(0) - 1).clone();
}
std::optional<at::Tensor> transposed(const at::Tensor& t) {
  if (t.dim() < 2) return std::nullopt;
  return t.transpose(0, 1).contiguous();
}
/// Transposed in memory while the shape stays as wanted: the mistake of a wrong stride.
std::optional<at::Tensor> wrong_stride(const at::Tensor& t) {
  if (t.dim() < 2) return std::nullopt;
  return t.transpose(0, 1).contiguous().view(t.sizes());
}
std::optional<at::Tensor> extra_axis(const at::Tensor& t) { return t.unsqueeze(0); }
std::optional<at::Tensor> summed_to_scalar(const at::Tensor& t) {
  if (t.dim() == 0) return std::nullopt;
  return t.sum();
}
std::optional<at::Tensor> wrong_dtype(const at::Tensor& t) {
  return t.to(t.scalar_type() == at::kDouble ? at::kFloat : at::kDouble);
}
/// Rounded through fp16: right to three digits, too coarse for a case that computes in more.
std::optional<at::Tensor> through_half(const at::Tensor& t, at::ScalarType dtype) {
  if (epsilon_of(dtype) >= epsilon_of(at::kHalf)) return std::nullopt;
  if (t.scalar_type() != at::kFloat && t.scalar_type() != at::kDouble) return std::nullopt;
  return t.to(at::kHalf).to(t.scalar_type());
}

constexpr Way kWays[] = {
    {"all_zeros", "every element 0", all_zeros},
    {"all_ones", "every element 1", all_ones},
    {"all_nan", "every element NaN", all_nan},
    {"first_row_only", "all rows but the first 0", first_row_only},
    {"first_row_everywhere", "the first row in place of each", first_row_everywhere},
    {"off_by_one_row", "rows rotated by one", off_by_one_row},
    {"one_row_wrong", "the largest row 5 % too large", one_row_wrong},
    {"last_row_zero", "the last row that holds anything 0", last_row_zero},
    {"two_rows_swapped", "two neighbouring rows exchanged", two_rows_swapped},
    {"last_half_missing", "the second half of the rows 0", last_half_missing},
    {"one_element_wrong", "one element off by 5 % of the largest", one_element_wrong},
    {"one_nan", "the last element NaN", one_nan},
    {"one_inf", "one element infinite", one_inf},
    {"sign_flipped", "the sign of everything", sign_flipped},
    {"scaled_by_1_percent", "everything 1 % too large", scaled_by_1_percent},
    {"offset_added", "a constant added", offset_added},
    {"mean_for_sum", "divided by the number of rows", mean_for_sum},
    {"absolute_values", "the signs lost", absolute_values},
    {"truncated", "the last row cut off", truncated},
    {"transposed", "the first two axes exchanged", transposed},
    {"wrong_stride", "transposed in memory, shape kept", wrong_stride},
    {"extra_axis", "an axis of one in front", extra_axis},
    {"summed_to_scalar", "the sum in place of the tensor", summed_to_scalar},
    {"wrong_dtype", "another floating dtype", wrong_dtype},
    {"through_half", "rounded to fp16 on the way", nullptr},
    {"stale_output", "the right answer of another seed", nullptr},
    {"echo_of_input", "an input of the same shape in place of the output", nullptr},
    {"swapped_tensors", "two outputs exchanged", nullptr},
    {"missing_tensor", "one output not there", nullptr},
    {"unknown_tensor", "one output more than asked for", nullptr},
};

/// Equality of shape, dtype and every value (NaN equals NaN).
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b))).all().item<bool>();
}

/// The name of an input with the output's shape: its namesake without "grad_", else any.
std::string input_like(const std::string& name, const at::Tensor& output, const Tensors& inputs) {
  const std::string namesake = name.starts_with("grad_") ? name.substr(5) : name;
  if (inputs.contains(namesake) && inputs.at(namesake).sizes() == output.sizes()) return namesake;
  for (const auto& [input, tensor] : inputs) {
    if (tensor.sizes() == output.sizes()) return input;
  }
  return "";
}

/// The ways that need more than the tensor itself.
std::optional<at::Tensor> from_material(std::string_view way, const std::string& name,
                                        const at::Tensor& output,
                                        const CorruptionMaterial& material) {
  if (way == "through_half") return through_half(output, material.dtype);
  if (way == "stale_output") {
    const auto other = material.other.find(name);
    return other == material.other.end() ? std::nullopt
                                         : std::optional(other->second.to(output.scalar_type()));
  }
  if (way == "echo_of_input") {
    const std::string input = input_like(name, output, material.inputs);
    return input.empty()
               ? std::nullopt
               : std::optional(material.inputs.at(input).to(output.scalar_type()).clone());
  }
  return std::nullopt;
}

bool change_set(std::string_view way, const std::string& target, Tensors& outputs) {
  const auto first = target.empty() ? outputs.begin() : outputs.find(target);
  if (first == outputs.end()) return false;
  if (way == "missing_tensor") {
    outputs.erase(first);
    return true;
  }
  if (way == "unknown_tensor") {
    outputs.emplace(first->first + "_again", first->second);
    return true;
  }
  const auto partner = std::next(first) == outputs.end() ? outputs.begin() : std::next(first);
  if (partner == first || same(partner->second, first->second)) return false;
  std::swap(first->second, partner->second);
  return true;
}

}  // namespace

const std::vector<Corruption>& all_corruptions() {
  static const std::vector<Corruption> corruptions = [] {
    std::vector<Corruption> all;
    for (const Way& way : kWays) all.push_back({way.name, way.what});
    return all;
  }();
  return corruptions;
}

bool corrupt(std::string_view spec, const CorruptionMaterial& material, Tensors& outputs) {
  const std::size_t at = spec.find('@');
  const std::string name(spec.substr(0, at));
  const std::string target(at == std::string_view::npos ? "" : spec.substr(at + 1));
  const auto* way = std::find_if(std::begin(kWays), std::end(kWays),
                                 [&](const Way& w) { return w.name == name; });
  if (way == std::end(kWays)) {
    std::vector<std::string> names;
    for (const Way& w : kWays) names.emplace_back(w.name);
    throw Error(ErrorCode::kUsage, "unknown corruption '" + name + "'" + did_you_mean(name, names));
  }
  if (name == "swapped_tensors" || name == "missing_tensor" || name == "unknown_tensor") {
    return change_set(name, target, outputs);
  }
  bool changed = false;
  for (auto& [tensor, value] : outputs) {
    if (!target.empty() && tensor != target) continue;
    std::optional<at::Tensor> spoiled =
        way->spoil != nullptr ? way->spoil(value) : from_material(name, tensor, value, material);
    if (!spoiled || same(*spoiled, value)) continue;
    value = std::move(*spoiled);
    changed = true;
  }
  return changed;
}

}  // namespace patchbench::harness
