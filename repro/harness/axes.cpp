#include "harness/axes.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/scenario.h"
#include "core/slug.h"
#include "harness/layouts.h"

namespace patchbench::harness {

void refuse(const Case& item, const std::string& reason) {
  throw Error(ErrorCode::kUsage, fmt::format("case {}: {}", item.name, reason));
}

const Json& axis(const Case& item, const std::string& name) {
  if (!item.axes.contains(name)) refuse(item, fmt::format("axis '{}' is missing", name));
  return item.axes.at(name);
}

int64_t extent(const Case& item, const std::string& name) {
  const Json& value = axis(item, name);
  if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
      value.get<int64_t>() > (int64_t{1} << 20))
    refuse(item, fmt::format("axis '{}' wants a whole number in [1, 2^20]", name));
  return value.get<int64_t>();
}

double amount(const Case& item, const std::string& name) {
  const Json& value = axis(item, name);
  if (!value.is_number() || value.get<double>() < 0)
    refuse(item, fmt::format("axis '{}' wants a number >= 0", name));
  return value.get<double>();
}

bool flag(const Case& item, const std::string& name) {
  if (!axis(item, name).is_boolean())
    refuse(item, fmt::format("axis '{}' wants true or false", name));
  return axis(item, name).get<bool>();
}

std::vector<int64_t> lengths(const Case& item, const std::string& name, int64_t total) {
  const Json& list = axis(item, name);
  std::vector<int64_t> lengths;
  for (const Json& length : list.is_array() ? list : Json::array()) {
    if (!length.is_number_integer() || length.get<int64_t>() < 1)
      refuse(item, fmt::format("axis '{}' wants whole numbers of at least 1", name));
    lengths.push_back(length.get<int64_t>());
    total -= lengths.back();
  }
  if (lengths.empty() || total != 0)
    refuse(item, fmt::format("axis '{}' wants a list of lengths that add up to the whole", name));
  return lengths;
}

std::string choice(const Case& item, const std::string& name,
                   const std::vector<std::string>& known) {
  const Json& value = axis(item, name);
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (std::find(known.begin(), known.end(), text) == known.end())
    refuse(item, fmt::format("axis '{}': no '{}'{}", name, text, did_you_mean(text, known)));
  return text;
}

int64_t backwards(const Case& item) {
  return item.axes.contains("backwards") ? extent(item, "backwards") : 1;
}

double factor(const Case& item, const std::string& name) {
  return item.axes.contains(name) ? amount(item, name) : 1;
}

std::vector<std::string> with_optional(const Case& item, std::vector<std::string> known,
                                       const std::string& name) {
  if (item.axes.contains(name)) known.push_back(name);
  return known;
}

double gradient_times(const Case& item) { return factor(item, "gradient_times"); }

void check_axes(const Case& item, const std::vector<std::string>& known) {
  static const std::vector<std::string> of_all = {"backwards",   "scaled_from", "gradient_times",
                                                  "grad_layout", "grad_mask",   "input_layout",
                                                  "input_times", "scenario"};
  const auto is_of_all = [](const std::string& name) {
    return std::find(of_all.begin(), of_all.end(), name) != of_all.end();
  };
  for (const auto& [name, value] : item.axes.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end() && !is_of_all(name))
      refuse(item, fmt::format("no axis '{}'{}", name, did_you_mean(name, known)));
  }
  for (const std::string& name : known) axis(item, name);
  std::vector<std::string> of_gradients = layouts();
  of_gradients.emplace_back("expanded");
  if (item.axes.contains("grad_layout")) choice(item, "grad_layout", of_gradients);
  if (item.axes.contains("grad_mask")) choice(item, "grad_mask", masks());
  if (item.axes.contains("input_layout"))
    choice(item, "input_layout", {"transposed", "strided", "offset"});
  if (item.axes.contains("scenario")) choice(item, "scenario", scenarios());
  backwards(item);
  gradient_times(item);
  factor(item, "input_times");
}

}  // namespace patchbench::harness
