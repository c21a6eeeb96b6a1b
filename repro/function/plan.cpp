#include "function/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/slug.h"
#include "harness/axes.h"
#include "harness/space.h"

namespace patchbench::function {
namespace {

using Names = std::vector<std::string>;

const Names kOfHarness = {"grad_layout", "grad_mask",    "gradient_times",
                          "backwards",   "input_layout", "input_times"};
const Names kDtypes = {"float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"};
const Names kFloatDtypes = {"float32", "bfloat16", "float16", "float64"};

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

[[noreturn]] void fail(const std::string& where, const std::string& reason) {
  throw Error(ErrorCode::kUsage,
              fmt::format("axes.json: {}{}{}", where, where.empty() ? "" : ": ", reason));
}

void check_keys(const Json& json, const std::string& where, const Names& known) {
  if (!json.is_object()) fail(where, "wants an object");
  for (const auto& [key, value] : json.items())
    if (!has(known, key)) fail(where, fmt::format("no key '{}'{}", key, did_you_mean(key, known)));
}

Names factors_of(const std::string& text) {
  Names names;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, '*');) {
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    names.push_back(part);
  }
  return names;
}

/// Reads one file; keeps which axes something uses.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  FunctionPlan read() {
    check_keys(
        json_, "",
        {"axes", "most", "relations", "tensors", "arguments", "gradients", "output", "layouts"});
    for (const char* key : {"axes", "tensors"})
      if (!json_.contains(key) || !json_.at(key).is_object() || json_.at(key).empty())
        fail("", fmt::format("wants \"{}\": an object that is not empty", key));
    read_axes();
    for (const auto& [name, body] : json_.at("tensors").items())
      plan_.tensors.push_back(read_tensor(name, body));
    plan_.arguments = names_at("arguments", plan_.axes, "axis");
    used_.insert(plan_.arguments.begin(), plan_.arguments.end());
    read_gradients();
    add_layouts();
    check_used();
    check_space();
    return std::move(plan_);
  }

 private:
  void read_axes() {
    plan_.space = {{"name", "axes"}, {"axes", json_.at("axes")}};
    for (const char* key : {"most", "relations"})
      if (json_.contains(key)) plan_.space[key] = json_.at(key);
    for (const auto& [key, form] : json_.at("axes").items()) {
      std::istringstream in(key);
      for (std::string name; std::getline(in, name, ',');) {
        name.erase(0, name.find_first_not_of(' '));
        name.erase(name.find_last_not_of(' ') + 1);
        plan_.axes.push_back(name);
      }
      for (const char* word : {"from", "to", "divides", "lengths_of"})
        if (form.is_object() && form.contains(word) && form.at(word).is_string())
          used_.insert(form.at(word).get<std::string>());
    }
  }

  /// A whole number of at least 0, or the name of an axis.
  Json number_or_axis(const Json& value, const std::string& where) {
    if (value.is_number_integer()) return value;
    if (!value.is_string()) fail(where, "wants a whole number or the name of an axis");
    for (const std::string& name : factors_of(value.get<std::string>())) {
      if (!has(plan_.axes, name))
        fail(where, fmt::format("no axis '{}'{}", name, did_you_mean(name, plan_.axes)));
      used_.insert(name);
    }
    return value;
  }

  std::vector<Json> read_shape(const Json& body, const std::string& where) {
    if (!body.contains("shape") || !body.at("shape").is_array())
      fail(where, "wants \"shape\": a list of axes and whole numbers");
    std::vector<Json> shape;
    for (const Json& length : body.at("shape")) {
      shape.push_back(number_or_axis(length, where + ": shape"));
      if (length.is_number() && length.get<int64_t>() < 0) fail(where, "a length is negative");
    }
    return shape;
  }

  TensorPlan read_tensor(const std::string& name, const Json& body) {
    const std::string where = fmt::format("tensor '{}'", name);
    check_keys(body, where, {"shape", "values", "dtype"});
    TensorPlan tensor;
    tensor.name = name;
    tensor.shape = read_shape(body, where);
    if (name.starts_with("grad_"))
      fail(where, "the name is that of an upstream gradient; give \"gradients\" and \"output\"");
    read_values(body.value("values", Json("normal")), where, tensor);
    if (!body.contains("dtype")) return tensor;
    const Json& dtype = body.at("dtype");
    tensor.dtype = dtype.is_string() ? dtype.get<std::string>() : dtype.dump();
    if (!has(kDtypes, tensor.dtype))
      fail(where,
           fmt::format("no dtype '{}'{}", tensor.dtype, did_you_mean(tensor.dtype, kDtypes)));
    return tensor;
  }

  void read_values(const Json& values, const std::string& where, TensorPlan& tensor) {
    using Values = TensorPlan::Values;
    static const std::map<std::string, Values> known = {{"normal", Values::kNormal},
                                                        {"uniform", Values::kUniform},
                                                        {"tied", Values::kTied},
                                                        {"mask", Values::kMask}};
    if (values.is_object()) {
      check_keys(values, where + ": values", {"integers"});
      const Json range = values.value("integers", Json());
      if (!range.is_array() || range.size() != 2)
        fail(where, "values wants {\"integers\": [low, high]}");
      tensor.values = Values::kIntegers;
      tensor.low = number_or_axis(range[0], where + ": integers");
      tensor.high = number_or_axis(range[1], where + ": integers");
      tensor.dtype = "int64";
      return;
    }
    const std::string text = values.is_string() ? values.get<std::string>() : values.dump();
    Names names;
    for (const auto& [name, value] : known) names.push_back(name);
    if (!known.contains(text))
      fail(where, fmt::format("no values '{}'{} or {{\"integers\": [low, high]}}", text,
                              did_you_mean(text, names)));
    tensor.values = known.at(text);
    if (tensor.values == Values::kMask) tensor.dtype = "bool";
  }

  Names names_at(const char* key, const Names& known, const char* what) {
    Names names;
    if (!json_.contains(key)) return names;
    if (!json_.at(key).is_array()) fail(key, "wants a list of names");
    for (const Json& entry : json_.at(key)) {
      names.push_back(entry.is_string() ? entry.get<std::string>() : entry.dump());
      if (!has(known, names.back()))
        fail(key,
             fmt::format("no {} '{}'{}", what, names.back(), did_you_mean(names.back(), known)));
    }
    return names;
  }

  void read_gradients() {
    Names floating;
    for (const TensorPlan& tensor : plan_.tensors)
      if (tensor.dtype.empty() || has(kFloatDtypes, tensor.dtype)) floating.push_back(tensor.name);
    plan_.gradients = names_at("gradients", floating, "floating tensor");
    if (plan_.gradients.empty()) {
      if (json_.contains("output")) fail("output", "is of use only where there are \"gradients\"");
      return;
    }
    if (!json_.contains("output"))
      fail("", "gradients want \"output\": {\"shape\": [...]}, the shape of what is returned");
    check_keys(json_.at("output"), "output", {"shape", "dtype"});
    TensorPlan gradient;
    gradient.name = "grad_output";
    gradient.shape = read_shape(json_.at("output"), "output");
    gradient.dtype = json_.at("output").value("dtype", "");
    if (!gradient.dtype.empty() && !has(kFloatDtypes, gradient.dtype))
      fail("output", fmt::format("no floating dtype '{}'{}", gradient.dtype,
                                 did_you_mean(gradient.dtype, kFloatDtypes)));
    plan_.tensors.push_back(gradient);
  }

  void add_layouts() {
    const std::string layouts = json_.value("layouts", Json("gradients")).is_string()
                                    ? json_.value("layouts", "gradients")
                                    : json_.at("layouts").dump();
    const Names known = {"gradients", "all", "none"};
    if (!has(known, layouts))
      fail("layouts", fmt::format("no '{}'{}", layouts, did_you_mean(layouts, known)));
    const auto add = [this](const std::string& name, const Json& form) {
      if (has(plan_.axes, name)) return;
      plan_.axes.push_back(name);
      plan_.space["axes"][name] = form;
    };
    if (layouts == "none") return;
    if (!plan_.gradients.empty()) {
      add("grad_layout",
          {nullptr, "expanded", "first_expanded", "transposed", "strided", "offset"});
      add("grad_mask", {nullptr, "first_row"});
      add("gradient_times", {{"power_of", 2}, {"from", -8}, {"to", 8}});
      add("backwards", {nullptr, 2});
    }
    add("input_times", {nullptr, nullptr, 0.125, 8});
    if (layouts == "all") add("input_layout", {nullptr, "transposed", "strided", "offset"});
  }

  void check_used() const {
    for (const std::string& name : plan_.axes) {
      const bool is_of_gradient = has(kOfHarness, name) && !name.starts_with("input_");
      if (is_of_gradient && plan_.gradients.empty())
        fail("axis '" + name + "'", "is of use only where there are \"gradients\"");
      if (!used_.contains(name) && name != "dtype" && !has(kOfHarness, name))
        fail("axis '" + name + "'",
             "nothing uses it; name it in a shape, or in \"arguments\" to hand it to the function");
    }
  }

  void check_space() const {
    try {
      const harness::Space space(plan_.space);
    } catch (const Error& e) {
      std::string text = e.what();
      const std::string own = "space axes: ";
      fail("", text.starts_with(own) ? text.substr(own.size()) : text);
    } catch (const Json::exception& e) {
      fail("", e.what());
    }
    Names tensors = {"output"};
    for (const TensorPlan& tensor : plan_.tensors) tensors.push_back(tensor.name);
    const Json relations = plan_.space.value("relations", Json::array());
    if (!relations.is_array()) fail("relations", "wants a list");
    for (const Json& relation : relations) {
      check_keys(relation, "relations", {"name", "axis", "lengths", "along", "where"});
      const std::string name = relation.value("name", "");
      const Names known = {"linear", "rerun", "permuted", "parts", "packed"};
      if (!has(known, name))
        fail("relations", fmt::format("no relation '{}'{}", name, did_you_mean(name, known)));
    }
  }

  const Json& json_;
  FunctionPlan plan_;
  std::set<std::string> used_;
};

/// A length, or a bound of values, in a case.
int64_t number_in(const Case& item, const Json& value) {
  if (value.is_number()) return value.get<int64_t>();
  int64_t product = 1;
  for (const std::string& name : factors_of(value.get<std::string>())) {
    const Json& length = harness::axis(item, name);
    if (!length.is_number_integer() || length.get<int64_t>() < 0 ||
        length.get<int64_t>() > (int64_t{1} << 28))
      harness::refuse(item, fmt::format("axis '{}' wants a whole number in [0, 2^28]", name));
    product *= length.get<int64_t>();
    if (product > (int64_t{1} << 28)) harness::refuse(item, "more than 2^28 elements");
  }
  return product;
}

}  // namespace

FunctionPlan parse_plan(const Json& json) { return Reader(json).read(); }

std::vector<int64_t> shape_of(const Case& item, const TensorPlan& tensor) {
  std::vector<int64_t> shape;
  int64_t num_elements = 1;
  for (const Json& length : tensor.shape) {
    shape.push_back(number_in(item, length));
    num_elements *= std::max<int64_t>(shape.back(), 1);
    if (num_elements > (int64_t{1} << 28))
      harness::refuse(item, fmt::format("tensor '{}' has more than 2^28 elements; bound it with "
                                        "\"most\"",
                                        tensor.name));
  }
  return shape;
}

std::pair<int64_t, int64_t> range_of(const Case& item, const TensorPlan& tensor) {
  return {number_in(item, tensor.low), number_in(item, tensor.high)};
}

}  // namespace patchbench::function
