#include "harness/space.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/digest.h"
#include "core/error.h"
#include "core/split.h"

namespace patchbench::harness {
namespace {

constexpr int kMaxDraws = 500;

/// The axes that a form refers to.
std::vector<std::string> referred(const Json& body) {
  std::vector<std::string> names;
  if (!body.is_object()) return names;
  for (const char* key : {"from", "to", "step", "divides", "lengths_of"})
    if (body.contains(key) && body.at(key).is_string()) names.push_back(body.at(key));
  return names;
}

std::string wrong_form(const Axis& axis) {
  const Json& body = axis.body;
  if (axis.names.size() > 1) {
    const auto is_tuple = [&](const Json& value) {
      return value.is_array() && value.size() == axis.names.size();
    };
    return body.is_array() && !body.empty() && std::all_of(body.begin(), body.end(), is_tuple)
               ? ""
               : fmt::format("wants a list of {} values each", axis.names.size());
  }
  if (body.is_array()) return body.empty() ? "wants at least one value" : "";
  if (!body.is_object()) return "";
  std::set<std::string> keys;
  for (const auto& [key, value] : body.items()) keys.insert(key);
  const auto is_form = [&](std::set<std::string> wanted, const std::set<std::string>& more) {
    if (!std::includes(keys.begin(), keys.end(), wanted.begin(), wanted.end())) return false;
    wanted.insert(more.begin(), more.end());
    return std::includes(wanted.begin(), wanted.end(), keys.begin(), keys.end());
  };
  const bool is_known = is_form({"from", "to"}, {"step"}) || is_form({"divides"}, {}) ||
                        is_form({"power_of", "from", "to"}, {}) ||
                        is_form({"lengths_of", "most"}, {"from"});
  return is_known ? ""
                  : "wants a value, a list, {from, to[, step]}, {divides}, {power_of, from, to} or "
                    "{lengths_of, most[, from]}";
}

/// Whole numbers of RapidCheck's source; both ends are drawn.
class Source {
 public:
  Source(uint64_t seed, uint64_t index) : random_(seed) {
    for (uint64_t i = 0; i < 4; ++i) random_ = mixed(random_, index);
  }
  int64_t between(int64_t low, int64_t high) {
    if (low >= high) return low;
    return rc::gen::inRange<int64_t>(low, high + 1)(random_.split(), rc::kNominalSize).value();
  }

 private:
  static rc::Random mixed(rc::Random random, uint64_t index) {
    return rc::Random(random.next() ^ (index * 0x9e3779b97f4a7c15ULL));
  }
  rc::Random random_;
};

int64_t bound(const Json& value, const Json& axes) {
  return (value.is_string() ? axes.at(value.get<std::string>()) : value).get<int64_t>();
}

struct Range {
  int64_t low = 0, high = 0, step = 1;
  Range(const Json& body, const Json& axes)
      : low(bound(body.at("from"), axes)),
        high(bound(body.at("to"), axes)),
        step(bound(body.value("step", Json(1)), axes)) {
    high = std::max(high, low);
  }
  int64_t nearest(int64_t value) const {
    value = std::clamp(value, low, high);
    return value - (value - low) % step;
  }
};

int64_t draw_whole(const Range& range, Source& source) {
  if (range.high == range.low) return range.low;
  const auto width = static_cast<double>(range.high - range.low);
  const int64_t way = source.between(0, 15);
  if (way == 0) return range.low;
  if (way == 1) return range.nearest(range.high);
  if (way < 7) {  // next to a power of two, where tiles and blocks end
    const auto exponent = [](int64_t value) {
      return std::log2(static_cast<double>(std::max<int64_t>(value, 1)));
    };
    const auto lowest = static_cast<int64_t>(std::floor(exponent(range.low)));
    const auto highest = static_cast<int64_t>(std::ceil(exponent(range.high)));
    const int64_t power = int64_t{1} << source.between(lowest, highest);
    const int64_t offset = source.between(-2, 2);  // the power itself in three of five draws
    return range.nearest(power + (std::abs(offset) == 2 ? 0 : offset));
  }
  const double share = static_cast<double>(source.between(0, 1 << 20)) / (1 << 20);
  return range.nearest(range.low + static_cast<int64_t>(std::expm1(share * std::log1p(width))));
}

std::vector<int64_t> divisors_of(int64_t value) {
  std::vector<int64_t> divisors;
  for (int64_t by = 1; by <= value; ++by)
    if (value % by == 0) divisors.push_back(by);
  return divisors;
}

/// `total` cut at `num - 1` places; at least `least` each.
Json draw_lengths(const Json& body, const Json& axes, Source& source) {
  const int64_t total = axes.at(body.at("lengths_of").get<std::string>()).get<int64_t>();
  const int64_t least = body.value("from", int64_t{1});
  const int64_t most = least > 0 ? std::min(body.at("most").get<int64_t>(), total / least)
                                 : body.at("most").get<int64_t>();
  const int64_t num = source.between(1, std::max<int64_t>(most, 1));
  std::vector<int64_t> cuts = {0, total - num * least};
  for (int64_t i = 1; i < num; ++i) cuts.push_back(source.between(0, cuts[1]));
  std::sort(cuts.begin(), cuts.end());
  Json lengths = Json::array();
  for (int64_t i = 0; i < num; ++i)
    lengths.push_back(cuts[static_cast<std::size_t>(i) + 1] - cuts[static_cast<std::size_t>(i)] +
                      least);
  return lengths;
}

void set(Json& axes, const std::string& name, const Json& value) {
  if (value.is_null())
    axes.erase(name);
  else
    axes[name] = value;
}

void set(Json& axes, const Axis& axis, const Json& value) {
  for (std::size_t i = 0; i < axis.names.size(); ++i)
    set(axes, axis.names[i], axis.names.size() > 1 ? value[i] : value);
}

double power(double of, int64_t exponent) { return std::pow(of, static_cast<double>(exponent)); }

void draw_axis(const Axis& axis, Json& axes, Source& source) {
  const Json& body = axis.body;
  if (body.is_array()) {
    const int64_t at = source.between(0, static_cast<int64_t>(body.size()) - 1);
    set(axes, axis, body[static_cast<std::size_t>(at)]);
  } else if (!body.is_object()) {
    set(axes, axis, body);
  } else if (body.contains("divides")) {
    const auto all = divisors_of(axes.at(body.at("divides").get<std::string>()).get<int64_t>());
    set(axes, axis,
        all[static_cast<std::size_t>(source.between(0, static_cast<int64_t>(all.size()) - 1))]);
  } else if (body.contains("lengths_of")) {
    set(axes, axis, draw_lengths(body, axes, source));
  } else if (body.contains("power_of")) {
    set(axes, axis, power(body.at("power_of"), source.between(body.at("from"), body.at("to"))));
  } else {
    set(axes, axis, draw_whole(Range(body, axes), source));
  }
}

/// A value of the form that is right with the others, as near to the axis's as can be.
void settle_axis(const Axis& axis, Json& axes) {
  const Json& body = axis.body;
  if (!body.is_object() || !axes.contains(axis.names.front())) return;
  Json& value = axes.at(axis.names.front());
  if (body.contains("divides")) {
    const auto all = divisors_of(axes.at(body.at("divides").get<std::string>()).get<int64_t>());
    value = *std::prev(std::upper_bound(all.begin(), all.end(), value.get<int64_t>()));
  } else if (body.contains("lengths_of")) {
    int64_t left = axes.at(body.at("lengths_of").get<std::string>()).get<int64_t>();
    Json lengths = Json::array();
    for (const Json& length : value) {
      const int64_t taken = std::min(length.get<int64_t>(), left);
      if (taken == 0 && body.value("from", int64_t{1}) > 0) break;
      lengths.push_back(taken);
      left -= taken;
    }
    lengths.back() = lengths.back().get<int64_t>() + left;
    value = lengths;
  } else if (!body.contains("power_of")) {
    value = Range(body, axes).nearest(value.get<int64_t>());
  }
}

std::vector<Json> towards(int64_t value, int64_t target) {
  std::vector<Json> values;
  auto steps = rc::shrink::towards<int64_t>(value, target);
  for (auto next = steps.next(); next; next = steps.next()) values.emplace_back(*next);
  return values;
}

/// Simpler values of an axis, the simplest first.
std::vector<Json> simpler_values(const Axis& axis, const Json& axes) {
  const Json& body = axis.body;
  std::vector<Json> values;
  if (body.is_array()) {
    for (const Json& value : body) {
      Json other = axes;
      set(other, axis, value);
      if (other == axes) break;
      values.push_back(value);
    }
    return values;
  }
  if (!body.is_object()) return {};
  const Json& value = axes.at(axis.names.front());
  if (body.contains("divides")) {
    for (const int64_t by : divisors_of(value.get<int64_t>()))
      if (by < value.get<int64_t>()) values.emplace_back(by);
  } else if (body.contains("lengths_of")) {
    for (std::size_t i = 0; i + 1 < value.size(); ++i) {  // two neighbours become one
      Json joined = value;
      joined[i] = joined[i].get<int64_t>() + joined[i + 1].get<int64_t>();
      joined.erase(i + 1);
      values.push_back(joined);
    }
  } else if (body.contains("power_of")) {
    const double of = body.at("power_of");
    const auto exponent =
        static_cast<int64_t>(std::lround(std::log(value.get<double>()) / std::log(of)));
    const int64_t simplest = std::clamp<int64_t>(0, body.at("from"), body.at("to"));
    for (const Json& step : towards(exponent, simplest))
      values.emplace_back(power(of, step.get<int64_t>()));
  } else {
    const Range range(body, axes);
    for (const Json& step : towards(value.get<int64_t>(), range.low)) {
      const int64_t nearest = range.nearest(step.get<int64_t>());
      if (nearest < value.get<int64_t>() && (values.empty() || values.back() != nearest))
        values.emplace_back(nearest);
    }
  }
  return values;
}

}  // namespace

Space::Space(const Json& body) : name_(body.at("name")) {
  most_ = body.value("most", Json::object());
  relations_ = body.value("relations", Json::array());
  std::vector<Axis> left;
  std::set<std::string> names, known;
  const auto fail = [&](const Axis& axis, const std::string& reason) {
    throw Error(ErrorCode::kUsage, fmt::format("space {}: axis '{}' {}", name_,
                                               fmt::format("{}", axis.names.front()), reason));
  };
  for (const auto& [key, form] : body.at("axes").items()) {
    left.push_back({split(key, ","), form});
    if (const std::string why = wrong_form(left.back()); !why.empty()) fail(left.back(), why);
    names.insert(left.back().names.begin(), left.back().names.end());
  }
  while (!left.empty()) {
    const auto ready = std::find_if(left.begin(), left.end(), [&](const Axis& axis) {
      const auto wanted = referred(axis.body);
      return std::all_of(wanted.begin(), wanted.end(),
                         [&](const std::string& name) { return known.contains(name); });
    });
    if (ready == left.end()) fail(left.front(), "refers to an axis that is not there before it");
    known.insert(ready->names.begin(), ready->names.end());
    axes_.push_back(*ready);
    left.erase(ready);
  }
  for (const auto& [product, limit] : most_.items()) {
    for (const std::string& name : split(product, "*"))
      if (!known.contains(name))
        throw Error(ErrorCode::kUsage,
                    fmt::format("space {}: most names '{}', which is no axis", name_, name));
  }
}

void Space::leave_out(const std::string& name, const Json& value) {
  for (Axis& axis : axes_) {
    if (axis.names != std::vector<std::string>{name} || !axis.body.is_array()) continue;
    const auto at = std::find(axis.body.begin(), axis.body.end(), value);
    if (at != axis.body.end() && axis.body.size() > 1) axis.body.erase(at);
  }
}

bool Space::is_within(const Json& axes) const {
  return std::all_of(most_.items().begin(), most_.items().end(), [&](const auto& limit) {
    double product = 1;
    for (const std::string& name : split(limit.key(), "*"))
      product *= axes.value(name, Json(1)).template get<double>();
    return product <= limit.value().template get<double>();
  });
}

Json Space::settled(Json axes) const {
  for (const Axis& axis : axes_) settle_axis(axis, axes);
  return axes;
}

std::vector<Json> Space::simpler(const Json& axes) const {
  // The boldest step of every axis first: one level of the tree is tried at a time.
  std::vector<std::vector<Json>> steps;
  std::size_t most = 0;
  for (const Axis& axis : axes_) {
    steps.emplace_back();
    for (const Json& value : simpler_values(axis, axes)) {
      Json other = axes;
      set(other, axis, value);
      other = settled(std::move(other));
      if (other != axes) steps.back().push_back(std::move(other));
    }
    most = std::max(most, steps.back().size());
  }
  std::vector<Json> all;
  for (std::size_t i = 0; i < most; ++i) {
    for (const auto& of_axis : steps)
      if (i < of_axis.size()) all.push_back(of_axis[i]);
  }
  return all;
}

rc::Shrinkable<Json> Space::draw(uint64_t seed, uint64_t index, const IsLegal& is_legal) const {
  uint64_t key = seed;
  for (const char c : name_) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  Source source(key, index);
  for (int i = 0; i < kMaxDraws; ++i) {
    Json axes = Json::object();
    for (const Axis& axis : axes_) draw_axis(axis, axes, source);
    if (!is_within(axes) || !is_legal(axes)) continue;
    return tree(std::move(axes), is_legal);
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("space {}: {} draws found no legal case", name_, kMaxDraws));
}

rc::Shrinkable<Json> Space::tree(Json axes, const IsLegal& is_legal) const {
  return rc::shrinkable::shrinkRecur(std::move(axes), [this, is_legal](const Json& from) {
    std::vector<Json> legal;
    for (Json& other : simpler(from))
      if (is_within(other) && is_legal(other)) legal.push_back(std::move(other));
    return rc::seq::fromContainer(std::move(legal));
  });
}

bool Space::differ_in_sizes(const Json& one, const Json& other) const {
  Json without = one, other_without = other;
  for (const Axis& axis : axes_) {
    const bool is_size =
        axis.body.is_object() && axis.body.contains("to") && !axis.body.contains("power_of");
    if (!is_size) continue;
    without.erase(axis.names.front());
    other_without.erase(axis.names.front());
  }
  return without == other_without;
}

Json Space::joined(const Json& from, const std::vector<Json>& steps) const {
  Json all = from;
  const auto value = [](const Json& axes, const std::string& name) {
    return axes.contains(name) ? axes.at(name) : Json();
  };
  for (const Json& step : steps) {
    for (const Axis& axis : axes_) {
      const bool is_changed =
          std::any_of(axis.names.begin(), axis.names.end(), [&](const std::string& name) {
            return value(step, name) != value(from, name) && value(all, name) == value(from, name);
          });
      if (!is_changed) continue;
      for (const std::string& name : axis.names) set(all, name, value(step, name));
    }
  }
  return settled(std::move(all));
}

std::string drawn_name(const Json& axes) {
  return "drawn_" + sha256_hex(canonical_json(axes)).substr(0, 12);
}

}  // namespace patchbench::harness
