#include "job/cache_picks.h"

#include <cmath>
#include <string_view>

#include "core/file_text.h"
#include "core/json.h"

namespace patchbench::job {
namespace {

namespace fs = std::filesystem;

/// Python writes Infinity and NaN, which are not JSON: outside of strings they become null.
Json parse_of_python(const std::string& text) {
  std::string out;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_in_string = !is_in_string;
    if (is_in_string && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    const std::string_view rest = std::string_view(text).substr(i);
    bool is_name = false;
    for (const std::string_view name : {"-Infinity", "Infinity", "NaN"}) {
      is_name = !is_in_string && rest.starts_with(name);
      if (!is_name) continue;
      out += "null";
      i += name.size() - 1;
      break;
    }
    if (!is_name) out += text[i];
  }
  return Json::parse(out, nullptr, false);
}

/// Whether a time is a measurement; Triton keeps several quantiles, the first of which decides.
bool is_measured(const Json& time) {
  if (time.is_array()) return !time.empty() && is_measured(time.front());
  return time.is_number() && std::isfinite(time.get<double>());
}

bool is_time(const Json& value) {
  return value.is_number() || value.is_null() ||
         (value.is_array() && !value.empty() && is_time(value.front()));
}

/// What a file's choices come to: the times of each choice that it holds.
void collect(const Json& json, std::vector<std::vector<Json>>& choices) {
  if (!json.is_object()) return;
  std::vector<Json> times;
  for (const auto& [key, value] : json.items()) {
    if (is_time(value)) times.push_back(value);
    collect(value, choices);
  }
  if (!times.empty() && times.size() == json.size()) choices.push_back(times);
}

std::vector<std::vector<Json>> choices_of(const fs::path& file, const Json& json) {
  std::vector<std::vector<Json>> choices;
  const std::string name = file.filename();
  if (name.ends_with(".autotune.json") && json.contains("configs_timings")) {
    std::vector<Json> times;
    for (const Json& pair : json["configs_timings"]) {
      if (pair.is_array() && pair.size() == 2) times.push_back(pair[1]);
    }
    choices.push_back(times);
  } else if (name == "latency.json" && json.contains("latency")) {
    choices.push_back({json["latency"]});
  } else if (file.parent_path().filename() == "cache" && json.contains("cache")) {
    collect(json["cache"], choices);
  }
  return choices;
}

}  // namespace

std::vector<BadPick> bad_picks(const fs::path& folder, int64_t& num_checked) {
  std::vector<BadPick> bad;
  num_checked = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool may_hold =
        name.ends_with(".json") || entry.path().parent_path().filename() == "cache";
    if (!may_hold || !entry.is_regular_file()) continue;
    const Json json = parse_of_python(file_text(entry.path()).value_or(""));
    if (!json.is_object()) {
      if (name.ends_with(".autotune.json") || name == "latency.json")
        bad.push_back({entry.path(), "is cut off or no JSON"});
      continue;
    }
    const std::vector<std::vector<Json>> choices = choices_of(entry.path(), json);
    num_checked += choices.empty() ? 0 : 1;
    for (const std::vector<Json>& times : choices) {
      bool is_any_measured = false;
      for (const Json& time : times) is_any_measured |= is_measured(time);
      if (is_any_measured) continue;
      bad.push_back({entry.path(), "its pick took inf ms: no candidate has a finite time"});
      break;
    }
  }
  return bad;
}

}  // namespace patchbench::job
