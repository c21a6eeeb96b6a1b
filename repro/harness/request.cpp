#include "harness/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/json.h"
#include "core/slug.h"

namespace patchbench::harness {
namespace {

const std::vector<std::string> kFlags = {
    "--cases",   "--subject",     "--device",          "--seed", "--repeat", "--work",
    "--corrupt", "--records-fd",  "--subject-command", "--draw", "--seeds",  "--draw-seconds",
    "--probe",   "--judge-device"};

[[noreturn]] void refuse_request(const std::string& reason) {
  throw Error(ErrorCode::kUsage, reason);
}

template <typename T>
T number(const std::string& flag, const std::string& text, T low, T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    refuse_request(fmt::format("{} wants a number in [{}, {}], got '{}'", flag, low, high, text));
  }
  return value;
}

void check_device(const std::string& device) {
  const bool is_cuda = device.starts_with("cuda:") && device.size() <= 7 &&
                       device.find_first_not_of("0123456789", 5) == std::string::npos &&
                       device.size() > 5;
  if (device != "cpu" && !is_cuda)
    refuse_request("--device wants cpu or cuda:N, got '" + device + "'");
}

SubjectCommand read_command(const std::filesystem::path& file) {
  const Json json = parse_json(read_text(file), file.string());
  try {
    SubjectCommand command;
    command.argv = json.at("argv").get<std::vector<std::string>>();
    command.report = json.value("report", "");
    command.timeout_s = json.at("timeout_s").get<double>();
    if (command.argv.empty() || !(command.timeout_s > 0))
      refuse_request(file.string() + ": wants a non-empty argv and timeout_s > 0");
    return command;
  } catch (const Json::exception& e) {
    refuse_request(file.string() + ": not a subject command: " + e.what());
  }
}

Case read_case(const Json& json, const std::string& where) {
  static const std::set<std::string> keys = {"name", "role", "axes", "judged_on", "isolated"};
  for (const auto& [key, value] : json.items()) {
    if (!keys.contains(key)) refuse_request(where + ": unknown key '" + key + "'");
  }
  Case item{};
  item.name = json.at("name").get<std::string>();
  item.role = role_from(json.at("role").get<std::string>());
  item.axes = json.at("axes");
  item.judged_on = json.at("judged_on").get<std::vector<std::string>>();
  item.is_isolated = json.value("isolated", false);
  if (!item.axes.is_object()) refuse_request(where + ": axes wants an object");
  if (item.name.empty() || item.name.size() > 80 ||
      item.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos) {
    refuse_request(where + ": '" + item.name + "' is no case name ([a-z0-9_]{1,80})");
  }
  return item;
}

/// "7" or "1-100".
void take_seeds(const std::string& value, Request& request) {
  const std::size_t dash = value.find('-');
  const uint64_t most = uint64_t{1} << 53;
  request.first_seed = number<uint64_t>("--seeds", value.substr(0, dash), 0, most);
  request.last_seed = dash == std::string::npos
                          ? request.first_seed
                          : number<uint64_t>("--seeds", value.substr(dash + 1), 0, most);
  if (request.last_seed < request.first_seed)
    refuse_request("--seeds wants FIRST-LAST, got '" + value + "'");
}

void take(const std::string& flag, const std::string& value, Request& request,
          std::filesystem::path& cases) {
  if (flag == "--cases") cases = value;
  if (flag == "--subject") request.subject = value;
  if (flag == "--device") request.device = value;
  if (flag == "--judge-device") request.judge_device = value;
  if (flag == "--probe") request.probed_device = value;
  if (flag == "--seed") request.seed = number<uint64_t>(flag, value, 0, uint64_t{1} << 53);
  if (flag == "--repeat") request.repeats = number<int>(flag, value, 1, 10000);
  if (flag == "--work") request.work = value;
  if (flag == "--subject-command") request.command = read_command(value);
  if (flag == "--corrupt") request.corruption = value;
  if (flag == "--draw") request.num_drawn = number<int>(flag, value, 0, 1'000'000);
  if (flag == "--draw-seconds") request.most_seconds = number<int>(flag, value, 1, 1'000'000);
  if (flag == "--seeds") take_seeds(value, request);
  if (flag == "--records-fd") request.records_fd = number<int>(flag, value, 0, 65535);
}

}  // namespace

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (!std::filesystem::is_regular_file(file) || !(text << in.rdbuf()))
    refuse_request(file.string() + ": cannot be read");
  return text.str();
}

void read_cases(const std::filesystem::path& file, Request& request) {
  const Json json = parse_json(read_text(file), file.string());
  try {
    request.slug = json.at("slug").get<std::string>();
    request.classes = json.at("classes").get<std::vector<std::string>>();
    request.waived_regions = json.value("waived_regions", std::vector<std::string>());
    request.conditions = json.value("conditions", std::vector<std::string>());
    request.spaces = json.value("spaces", Json::array());
    request.given = json.value("given", Json::array());
    request.scenarios = json.value("scenarios", std::vector<std::string>());
    request.watched = json.value("watched", Json::object());
    request.overwritten = json.value("overwritten", std::set<std::string>());
    std::set<std::string> names;
    for (const Json& entry : json.at("cases")) {
      request.cases.push_back(read_case(entry, file.string()));
      if (!names.insert(request.cases.back().name).second) {
        refuse_request(file.string() + ": case '" + request.cases.back().name + "' is there twice");
      }
    }
  } catch (const Json::exception& e) {
    refuse_request(file.string() + ": not a case table: " + e.what());
  }
  if (request.cases.empty() && request.spaces.empty() && request.given.empty())
    refuse_request(file.string() + ": no case was chosen");
}

Request parse_request(const std::vector<std::string>& arguments) {
  Request request;
  std::filesystem::path cases;
  std::set<std::string> given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (!given.insert(flag).second) refuse_request(flag + " is given twice");
    if (flag == "--list-corruptions") {
      request.lists_corruptions = true;
    } else if (flag == "--all-layers") {
      request.wants_all_layers = true;
    } else if (flag == "--stop-at-red") {
      request.stops_at_red = true;
    } else if (flag == "--regions") {
      request.wants_regions = true;
    } else if (std::find(kFlags.begin(), kFlags.end(), flag) == kFlags.end()) {
      refuse_request("unknown word '" + flag + "'" + did_you_mean(flag, kFlags));
    } else if (++i == arguments.size()) {
      refuse_request(flag + " wants a value");
    } else {
      take(flag, arguments[i], request, cases);
    }
  }
  if (request.lists_corruptions) return request;
  if (!request.probed_device.empty()) {
    check_device(request.probed_device);
    return request;
  }
  for (const char* flag :
       {"--cases", "--subject", "--device", "--seed", "--work", "--records-fd"}) {
    if (!given.contains(flag)) refuse_request(std::string(flag) + " is missing");
  }
  check_device(request.device);
  if (request.judge_device.empty()) request.judge_device = request.device;
  if (request.judge_device != "cpu" && request.judge_device != request.device)
    refuse_request("--judge-device wants cpu or the subject's device, got '" +
                   request.judge_device + "'");
  read_cases(cases, request);
  return request;
}

}  // namespace patchbench::harness
