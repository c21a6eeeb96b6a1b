#include "report/bench.h"

#include <fmt/format.h>

#include <map>

namespace patchbench::report {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

std::string role_of(const std::string& name) {
  if (name.starts_with("ours") || name.find("patchbench") != std::string::npos) return "ours";
  if (name.starts_with("floor")) return "floor";
  return name.find("plain") != std::string::npos ? "plain" : "upstream";
}

std::string shape_text(const Json& shape) {
  std::string text;
  if (!shape.is_array()) return text;
  for (const Json& axis : shape) text += (text.empty() ? "" : " x ") + axis.dump();
  return text;
}

std::string text_of(const Json& object, const std::string& key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

double number_of(const Json& object, const std::string& key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : 0;
}

/// What tells one variant of a row from another: its other words, e.g. the reduction.
std::string variant_of(const Json& row) {
  std::string text;
  for (const auto& [key, value] : row.items()) {
    if (key != "name" && value.is_string())
      text += fmt::format(", {} {}", key, value.get<std::string>());
  }
  return text;
}

void add_run(const Json& run, std::vector<PagePack::Bars>& out) {
  std::map<std::string, std::vector<Bar>> times, peaks;
  for (const Json& row : run.at("rows")) {
    const std::string name = text_of(row, "name"), variant = variant_of(row);
    if (const double ms = number_of(row, "median_ms"); ms > 0)
      times[variant].push_back(
          {name, role_of(name), ms, number_of(row, "low_ms"), number_of(row, "high_ms")});
    if (const double bytes = number_of(row, "peak_bytes"); bytes > 0)
      peaks[variant].push_back({name, role_of(name), bytes / kGib, 0, 0});
  }
  const std::string where = fmt::format("{}, {}, {}", text_of(run, "device"), text_of(run, "dtype"),
                                        shape_text(run.value("shape", Json())));
  const std::string how = text_of(run, "op").empty() ? "" : ", op " + text_of(run, "op");
  for (auto& [variant, bars] : times)
    out.push_back({"Time: " + where + how + variant, "ms", std::move(bars)});
  for (auto& [variant, bars] : peaks)
    out.push_back({"Peak memory: " + where + how + variant, "GiB", std::move(bars)});
}

/// [median, least, greatest] of a member, or of its "ms".
const Json* spread_of(const Json& value) {
  const Json* list = value.is_object() && value.contains("ms") ? &value.at("ms") : &value;
  const bool is_spread = list->is_array() && list->size() == 3 && (*list)[0].is_number() &&
                         (*list)[1].is_number() && (*list)[2].is_number();
  return is_spread ? list : nullptr;
}

void add_rows(const Json& bench, std::vector<PagePack::Bars>& out) {
  for (const Json& row : bench.at("rows")) {
    std::vector<Bar> bars;
    for (const auto& [name, value] : row.items()) {
      const Json* spread = name == "shape" ? nullptr : spread_of(value);
      if (spread == nullptr) continue;
      bars.push_back({name, role_of(name), (*spread)[0].get<double>(), (*spread)[1].get<double>(),
                      (*spread)[2].get<double>()});
    }
    const Json floor = bench.value("floor", Json::object());
    if (floor.is_object() && floor.value("shape", Json()) == row.value("shape", Json())) {
      for (const auto& [key, value] : floor.items()) {
        if (key.starts_with("ms") && value.is_number())
          bars.push_back({"floor: " + key, "floor", value.get<double>(), 0, 0});
      }
    }
    if (!bars.empty())
      out.push_back({fmt::format("Time: {}, {}, {}", text_of(bench, "device"),
                                 text_of(bench, "dtype"), shape_text(row.value("shape", Json()))),
                     "ms", std::move(bars)});
  }
}

bool has_rows(const Json& value) {
  return value.is_object() && value.value("rows", Json()).is_array();
}

}  // namespace

std::vector<PagePack::Bars> bars_of(const Json& bench) {
  std::vector<PagePack::Bars> out;
  if (has_rows(bench)) add_rows(bench, out);
  const Json runs = bench.is_object() ? bench.value("runs", Json()) : Json();
  if (!runs.is_array()) return out;
  for (const Json& run : runs) {
    if (has_rows(run)) add_run(run, out);
  }
  return out;
}

}  // namespace patchbench::report
