#include "workbench/found_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <vector>

#include "core/split.h"

namespace patchbench {
namespace {

/// A length or a bound as an expression.
std::string number_source(const Json& value) {
  if (value.is_number()) return value.dump();
  std::vector<std::string> factors;
  for (const std::string& name : split(value.get<std::string>(), "*"))
    factors.push_back(fmt::format("harness::extent(item, \"{}\")", name));
  return fmt::format("{}", fmt::join(factors, " * "));
}

std::string torch_dtype(const std::string& name) {
  if (name == "float16") return "at::kHalf";
  if (name == "bfloat16") return "at::kBFloat16";
  if (name == "float64") return "at::kDouble";
  if (name == "int32") return "at::kInt";
  if (name == "int64") return "at::kLong";
  return name == "bool" ? "at::kBool" : "at::kFloat";
}

std::string tensor_source(const std::string& name, const Json& body) {
  std::vector<std::string> lengths;
  for (const Json& length : body.at("shape")) lengths.push_back(number_source(length));
  const std::string shape = fmt::format("{{{}}}", fmt::join(lengths, ", "));
  const Json values = body.value("values", Json("normal"));
  std::string made, dtype = body.contains("dtype") ? torch_dtype(body.at("dtype")) : "dtype(item)";
  if (values.is_object()) {
    const Json& range = values.at("integers");
    made = fmt::format("integers({}, {}, {})", shape, number_source(range[0]),
                       number_source(range[1]));
    if (!body.contains("dtype")) dtype = "at::kLong";
  } else if (values == "mask") {
    made = fmt::format("mask({}, 0.5)", shape);
    if (!body.contains("dtype")) dtype = "at::kBool";
  } else if (values == "uniform") {
    made = fmt::format("uniform({}, -1, 1)", shape);
  } else if (values == "tied") {
    made = fmt::format("tied({}, 5)", shape);
  } else {
    made = fmt::format("normal({})", shape);
  }
  return fmt::format("        {{\"{}\", draw(\"{}\").{}.to({})}},\n", name, name, made, dtype);
}

}  // namespace

DrawnSource source_of(const Json& plan) {
  static const std::set<std::string> of_harness = {"grad_layout", "grad_mask",    "gradient_times",
                                                   "backwards",   "input_layout", "input_times"};
  std::vector<std::string> names;
  for (const auto& [key, form] : plan.at("axes").items())
    for (const std::string& name : split(key, ","))
      if (!of_harness.contains(name)) names.push_back(fmt::format("\"{}\"", name));
  DrawnSource source;
  source.check = fmt::format(
      "    std::vector<std::string> known;\n"
      "    for (const char* name : {{{}}})\n"
      "      if (item.axes.contains(name)) known.emplace_back(name);\n"
      "    harness::check_axes(item, known);\n",
      fmt::join(names, ", "));
  source.dtype =
      "    const std::string name = item.axes.value(\"dtype\", \"float32\");\n"
      "    if (name == \"float16\") return at::kHalf;\n"
      "    if (name == \"bfloat16\") return at::kBFloat16;\n"
      "    return name == \"float64\" ? at::kDouble : at::kFloat;\n";
  source.inputs =
      "    const auto draw = [&](const char* name) {\n"
      "      return harness::Draw(seed, item.name + \"/\" + name);\n"
      "    };\n"
      "    return {\n";
  for (const auto& [name, body] : plan.at("tensors").items())
    source.inputs += tensor_source(name, body);
  if (plan.contains("output")) source.inputs += tensor_source("grad_output", plan.at("output"));
  source.inputs += "    };\n";
  return source;
}

}  // namespace patchbench
