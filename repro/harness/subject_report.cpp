#include "harness/subject_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "harness/answer.h"

namespace patchbench::harness {
namespace {

constexpr std::size_t kMaxWord = 64;
constexpr std::size_t kMaxFrames = 4;
constexpr std::size_t kMaxNumbers = 16;
constexpr std::size_t kMaxLines = 1000;

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::kUsage, "subject.json: " + reason);
}

/// An object with every key of `wanted`, and of `optional` at most.
const Json& object(const Json& json, const std::string& where, const std::set<std::string>& wanted,
                   const std::set<std::string>& optional = {}) {
  if (!json.is_object()) refuse(where + " is no object");
  for (const std::string& key : wanted) {
    if (!json.contains(key)) refuse(where + " has no '" + key + "'");
  }
  for (const auto& [key, value] : json.items()) {
    if (!wanted.contains(key) && !optional.contains(key))
      refuse(where + " has an unknown key '" + printable(key, 40) + "'");
  }
  return json;
}

std::string word(const Json& json, const std::string& where, std::size_t limit = kMaxWord) {
  if (!json.is_string()) refuse(where + " is no string");
  return printable(json.get_ref<const std::string&>(), limit);
}

double amount(const Json& json, const std::string& where) {
  if (!json.is_number()) refuse(where + " is no number");
  const auto value = json.get<double>();
  if (!std::isfinite(value) || value < 0) refuse(where + " is no amount");
  return value;
}

int64_t whole(const Json& json, const std::string& where) {
  const double value = amount(json, where);
  if (value != std::floor(value) || value > 0x1p53) refuse(where + " is no whole number");
  return static_cast<int64_t>(value);
}

Json exception_of(const Json& json, const std::string& where) {
  object(json, where, {"type", "cuda_code", "frames"});
  Json frames = Json::array();
  if (!json["frames"].is_array()) refuse(where + ".frames is no array");
  for (const Json& frame : json["frames"]) {
    object(frame, where + ".frames", {"file", "line", "function"});
    frames.push_back({{"file", word(frame["file"], where + ".file")},
                      {"line", whole(frame["line"], where + ".line")},
                      {"function", word(frame["function"], where + ".function")}});
  }
  // The innermost frames are the ones that say where.
  if (frames.size() > kMaxFrames)
    frames.erase(frames.begin(), frames.end() - static_cast<int>(kMaxFrames));
  Json cuda_code = nullptr;
  if (!json["cuda_code"].is_null()) cuda_code = whole(json["cuda_code"], where + ".cuda_code");
  return {
      {"type", word(json["type"], where + ".type")}, {"cuda_code", cuda_code}, {"frames", frames}};
}

Json numbers_of(const Json& json, const std::string& where) {
  if (!json.is_object() || json.size() > kMaxNumbers)
    refuse(where + " is no object of at most 16 numbers");
  Json numbers = Json::object();
  for (const auto& [name, value] : json.items())
    numbers[printable(name, kMaxWord)] = amount(value, where + "." + printable(name, 40));
  return numbers;
}

/// `path:line`, and what is said of it.
Json lines_of(const Json& json, const std::string& where) {
  if (!json.is_array() || json.size() > kMaxLines) refuse(where + " is no list of at most 1000");
  Json lines = Json::array();
  for (const Json& line : json) lines.push_back(word(line, where, 200));
  return lines;
}

/// Two values of each argument at most.
Json values_of(const Json& json, const std::string& where) {
  if (!json.is_object() || json.size() > kMaxLines) refuse(where + " is no object of at most 1000");
  Json values = Json::object();
  for (const auto& [name, seen] : json.items()) {
    if (!seen.is_array() || seen.size() > 2) refuse(where + " has more than two values");
    Json& of = values[printable(name, 200)] = Json::array();
    for (const Json& value : seen) of.push_back(word(value, where));
  }
  return values;
}

CaseReport case_of(const Json& json, const std::string& where) {
  object(json, where, {"status"},
         {"reason", "wall_s", "peak_bytes", "numbers", "exception", "lines"});
  CaseReport report;
  report.status = word(json["status"], where + ".status");
  const std::set<std::string> known = {"ok", "unsupported", "raised"};
  if (!known.contains(report.status)) refuse(where + ".status is none of ok, unsupported, raised");
  if (json.contains("reason")) report.reason = word(json["reason"], where + ".reason", 160);
  if (report.status == "unsupported" && report.reason.empty())
    refuse(where + " is unsupported without a reason");
  if (json.contains("wall_s")) report.facts["wall_s"] = amount(json["wall_s"], where + ".wall_s");
  if (json.contains("peak_bytes"))
    report.facts["peak_bytes"] = whole(json["peak_bytes"], where + ".peak_bytes");
  if (json.contains("numbers"))
    report.facts["numbers"] = numbers_of(json["numbers"], where + ".numbers");
  if (json.contains("lines")) report.facts["ran"] = lines_of(json["lines"], where + ".lines");
  if (json.contains("exception"))
    report.facts["exception"] = exception_of(json["exception"], where + ".exception");
  if (report.status == "raised" && !json.contains("exception"))
    refuse(where + " raised without an exception");
  return report;
}

}  // namespace

SubjectReport parse_subject_report(std::string_view text, const std::vector<std::string>& wanted) {
  const Json json = parse_json(text, "subject.json");
  object(json, "the document", {"package", "versions", "device", "cases"}, {"lines", "arguments"});
  SubjectReport report;
  object(json["package"], "package", {"name", "version"});
  report.facts["package"] = {{"name", word(json["package"]["name"], "package.name")},
                             {"version", word(json["package"]["version"], "package.version")}};
  report.facts["versions"] = Json::object();
  object(json["versions"], "versions", {},
         {"python", "torch", "triton", "tilelang", "numpy", "cuda"});
  for (const auto& [key, value] : json["versions"].items())
    report.facts["versions"][key] = word(value, "versions." + key);
  report.facts["device"] = word(json["device"], "device");
  if (json.contains("lines")) {
    const Json& lines = object(json["lines"], "lines", {"num", "missed", "text"});
    report.watched["lines"] = {{"num", whole(lines["num"], "lines.num")},
                               {"missed", lines_of(lines["missed"], "lines.missed")},
                               {"text", whole(lines["text"], "lines.text")}};
  }
  if (json.contains("arguments"))
    report.watched["arguments"] = values_of(json["arguments"], "arguments");
  if (!json["cases"].is_object()) refuse("cases is no object");
  for (const auto& [name, entry] : json["cases"].items()) {
    if (std::find(wanted.begin(), wanted.end(), name) == wanted.end()) {
      refuse("speaks of a case that was not asked for: '" + printable(name, 40) + "'");
    }
    report.cases.emplace(name, case_of(entry, "cases." + name));
  }
  return report;
}

}  // namespace patchbench::harness
