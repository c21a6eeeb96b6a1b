#include "harness/relations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "harness/axes.h"

namespace patchbench::harness {
namespace {

constexpr double kFloorEpsilons = 16;
constexpr double kAnswers = 2;  // that are compared, each with an error of its own

bool is_low_precision(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

bool holds(const Json& where, const Json& axes) {
  return std::all_of(where.items().begin(), where.items().end(), [&](const auto& entry) {
    return axes.contains(entry.key()) && axes.at(entry.key()) == entry.value();
  });
}

bool is_finite(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    return entry.second.isfinite().all().template item<bool>();
  });
}

/// The number of rows along the relation's dimensions; 0 where no input has them.
int64_t rows_of(const Relation& relation, const Tensors& inputs) {
  for (const auto& [name, axis] : relation.along)
    if (const auto at = inputs.find(name); at != inputs.end()) return at->second.size(axis);
  return 0;
}

Tensors cut(const Relation& relation, const Tensors& inputs, int64_t from, int64_t length) {
  Tensors part = inputs;
  for (auto& [name, tensor] : part)
    if (const auto axis = relation.along.find(name); axis != relation.along.end())
      tensor = tensor.narrow(axis->second, from, length);
  return part;
}

void add(Followers& followers, const PreparedCase& base, Json axes, Tensors inputs) {
  Case item = *base.item;
  item.name += fmt::format("_f{}", followers.cases.size());
  item.axes = std::move(axes);
  followers.cases.push_back(std::move(item));
  followers.inputs.push_back(std::move(inputs));
}

void scale(Followers& followers, const PreparedCase& base, bool is_up) {
  const bool is_low = std::any_of(base.inputs.begin(), base.inputs.end(), [](const auto& input) {
    return input.first.starts_with("grad_") && is_low_precision(input.second.scalar_type());
  });
  const double most = is_low ? 4 : 1024;
  followers.factor = is_up ? most : 1 / most;
  Tensors scaled = base.inputs;
  bool has_gradient = false;
  for (auto& [name, tensor] : scaled) {
    if (!name.starts_with("grad_") || !tensor.is_floating_point()) continue;
    tensor = tensor * followers.factor;
    has_gradient = true;
  }
  if (has_gradient) add(followers, base, base.item->axes, std::move(scaled));
}

void permute(Followers& followers, const PreparedCase& base, uint64_t seed) {
  const int64_t rows = rows_of(followers.relation, base.inputs);
  if (rows < 2) return;
  followers.order =
      Draw(seed, base.item->name + "/order").uniform({rows}, 0, 1).argsort(int64_t{0}, false);
  Tensors permuted = base.inputs;
  for (auto& [name, tensor] : permuted)
    if (const auto axis = followers.relation.along.find(name);
        axis != followers.relation.along.end())
      tensor = tensor.index_select(axis->second, followers.order);
  add(followers, base, base.item->axes, std::move(permuted));
}

void cut_into(Followers& followers, const PreparedCase& base, const std::vector<int64_t>& lengths) {
  const Relation& relation = followers.relation;
  int64_t from = 0;
  for (const int64_t length : lengths) {
    Json axes = base.item->axes;
    axes[relation.axis] = length;
    if (!relation.lengths.empty()) axes.erase(relation.lengths);
    if (length > 0) add(followers, base, std::move(axes), cut(relation, base.inputs, from, length));
    from += length;
  }
}

void cut_in_two(Followers& followers, const PreparedCase& base, uint64_t seed) {
  const int64_t rows = rows_of(followers.relation, base.inputs);
  if (rows < 2) return;
  const auto at = static_cast<int64_t>(Draw(seed, base.item->name + "/cut").bits(0) %
                                       static_cast<uint64_t>(rows - 1));
  cut_into(followers, base, {at + 1, rows - at - 1});
}

/// What two right outputs may be apart where one sum rounds the other way: an epsilon of the lowest
/// precision among the inputs, in which outputs are stored. A power of two as a factor changes no
/// rounding, but for the smallest numbers of float16.
double rounding_of(const Relation& relation, const Tensors& inputs) {
  double most = 0;
  for (const auto& [name, tensor] : inputs) {
    if (!is_low_precision(tensor.scalar_type())) continue;
    if (relation.name != "linear" || tensor.scalar_type() == at::kHalf)
      most = std::max(most, epsilon_of(tensor.scalar_type()));
  }
  return most;
}

/// The failing layer of an output that has another shape.
Measure unlike(const std::string& name, const std::string& relation, const at::Tensor& output,
               const at::Tensor& wanted) {
  return {name, relation, 1, 0, 0, false, describe(output) + ", wanted " + describe(wanted)};
}

/// That of the first follower's output whose shape is not plain's: it cannot be put back in order.
std::optional<Measure> unlike_plain(const Followers& followers, const std::vector<Tensors>& got) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    for (const auto& [name, plain] : followers.plain[i])
      if (got[i].at(name).sizes() != plain.sizes())
        return unlike(name, followers.relation.name, got[i].at(name), plain);
  }
  return std::nullopt;
}

}  // namespace

Relation Relation::from_json(const Json& json) {
  return {json.at("name"), json.value("axis", ""), json.value("lengths", ""),
          json.value("along", std::map<std::string, int64_t>()),
          json.value("where", Json::object())};
}

Tensors Followers::expected(const std::vector<Tensors>& outputs) const {
  Tensors wanted = outputs.front();
  for (auto& [name, tensor] : wanted) {
    const auto axis = relation.along.find(name);
    if (relation.name == "linear" && name.starts_with("grad_")) {
      tensor = tensor.to(at::kDouble) / factor;
    } else if (relation.name == "permuted" && axis != relation.along.end()) {
      const at::Tensor back = order.argsort(int64_t{0}, false);
      tensor = tensor.index_select(axis->second, back);
    } else if (relation.name == "parts" || relation.name == "packed") {
      std::vector<at::Tensor> all;
      for (const Tensors& part : outputs) all.push_back(part.at(name).to(at::kDouble));
      tensor = axis != relation.along.end() ? at::cat(all, axis->second) : at::stack(all).sum(0);
    }
  }
  return wanted;
}

std::optional<Followers> followers_of(const Relation& relation, const PreparedCase& base,
                                      const Request& request) {
  const Json& axes = base.item->axes;
  if (!holds(relation.where, axes)) return std::nullopt;
  Followers followers;
  followers.relation = relation;
  if (relation.name == "linear")
    scale(followers, base, Draw(request.seed, base.item->name).bits(0) % 2);
  if (relation.name == "rerun") add(followers, base, axes, base.inputs);
  if (relation.name == "permuted") permute(followers, base, request.seed);
  if (relation.name == "parts") cut_in_two(followers, base, request.seed);
  if (relation.name == "packed" && axes.contains(relation.lengths))
    cut_into(followers, base, axes.at(relation.lengths).get<std::vector<int64_t>>());
  if (followers.cases.empty()) return std::nullopt;
  return followers;
}

bool is_finite(const PreparedCase& base) { return is_finite(base.oracle) && is_finite(base.plain); }

std::vector<Measure> relation_layers(const Pack& pack, const Followers& followers,
                                     const PreparedCase& base, const Tensors& got,
                                     const std::vector<Tensors>& got_followers) {
  const Relation& relation = followers.relation;
  if (std::optional<Measure> layer = unlike_plain(followers, got_followers)) return {*layer};
  const double epsilon = epsilon_of(pack.dtype(*base.item));
  const double floor = std::max(kFloorEpsilons * epsilon, rounding_of(relation, base.inputs));
  const Tensors wanted = followers.expected(got_followers);
  const Tensors plain_wanted = followers.expected(followers.plain);
  std::vector<Measure> layers;
  for (const auto& [name, plain] : base.plain) {
    const at::Tensor& output = got.at(name);
    if (!output.is_floating_point()) continue;
    if (relation.name == "rerun") {
      layers.push_back(compare_bitwise(name, output, wanted.at(name)));
    } else {
      Measure layer{name, relation.name, 0, 0, 0, false, ""};
      if (output.sizes() == wanted.at(name).sizes()) {
        const double least = least_size_of(pack, base, name);
        const Errors apart = errors_of(output, wanted.at(name), least);
        const Errors of_plain = errors_of(plain, base.oracle.at(name), least);
        // Where the expected is all 0 the unit is the output's: nothing is relative.
        if (apart.is_absolute || of_plain.is_absolute) continue;
        layer.got = apart.element;
        layer.where = apart.worst_element;
        layer.plain = errors_of(plain, plain_wanted.at(name), least).element;
        layer.limit = 2 * layer.plain + floor;
        const bool is_row = relation.along.contains(name);
        const bool is_reordered =
            relation.name == "packed" ||
            (!is_row && (relation.name == "parts" || relation.name == "permuted"));
        const Tolerance element = pack.tolerances(*base.item, name).element;
        const double right = element.k * of_plain.element + element.floor_ulp * epsilon;
        if (is_reordered) layer.limit = std::max(layer.limit, kAnswers * right);
        // A product may add in another order where it has fewer rows, or a row has another place.
        // Torch's product of 6 rows over 8192 classes differs by up to 46 epsilons from the
        // products of its parts, one over 2322 classes by 16 from that of its rows permuted.
        if (relation.name == "parts" || relation.name == "permuted")
          layer.limit = std::max(layer.limit, kAnswers * 2 * of_plain.element);
        layer.pass = layer.got <= layer.limit;
      } else {
        layer = unlike(name, relation.name, output, wanted.at(name));
      }
      layers.push_back(layer);
    }
    if (relation.name == "rerun") layers.back().layer = "rerun";
  }
  return layers;
}

}  // namespace patchbench::harness
