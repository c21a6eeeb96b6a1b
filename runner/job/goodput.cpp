#include "job/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/schema.h"

namespace patchbench::job {
namespace {

constexpr std::size_t kFewestSteps = 20, kResamples = 4000;
constexpr uint64_t kSeed = 20260101;

/// The steps of a run, and the time outside of them.
struct Steps {
  std::vector<double> tokens, wall_s;
  double idle_s = 0;
};

Steps steps_of(const Json& json) {
  Steps steps;
  double sum = 0;
  for (const Json& step : json.at("steps")) {
    steps.tokens.push_back(step.at("tokens"));
    steps.wall_s.push_back(step.at("wall_s"));
    sum += steps.wall_s.back();
  }
  steps.idle_s = std::max(0.0, json.at("wall_s").get<double>() - sum);
  return steps;
}

double sum_of(const Json& json, const char* key) {
  double sum = 0;
  for (const Json& step : json.at("steps")) sum += step.value(key, 0.0);
  return sum;
}

/// Goodput of one resample: blocks of consecutive steps, drawn with repetition.
double resampled(const Steps& steps, std::size_t block, std::mt19937_64& random) {
  const std::size_t count = steps.tokens.size();
  double tokens = 0, wall_s = steps.idle_s;
  for (std::size_t drawn = 0; drawn < count;) {
    const std::size_t first = random() % count;
    for (std::size_t i = 0; i < block && drawn < count; ++i, ++drawn) {
      tokens += steps.tokens[(first + i) % count];
      wall_s += steps.wall_s[(first + i) % count];
    }
  }
  return tokens / wall_s;
}

Json side(const RunReport& run) {
  const Json& json = run.json;
  const double wall_s = json.at("wall_s"), tokens = sum_of(json, "tokens");
  const auto lost = [&] {
    double sum = 0;
    for (const Json& step : json.at("steps")) {
      if (step.at("tokens") == 0) sum += step.at("wall_s").get<double>();
    }
    return sum;
  };
  return {{"digest", run.digest},
          {"tokens_per_s", tokens / wall_s},
          {"num_steps", json.at("steps").size()},
          {"share_compile", sum_of(json, "compile_s") / wall_s},
          {"share_stall", sum_of(json, "stall_s") / wall_s},
          {"share_lost", lost() / wall_s},
          {"share_idle", steps_of(json).idle_s / wall_s},
          {"num_failures", json.at("failures").size()},
          {"peak_memory_bytes", json.at("peak_memory_bytes")},
          {"adapter", json.at("backend").at("adapter")},
          {"revisions", json.at("revisions")}};
}

void refuse_unlike(const Json& before, const Json& after) {
  for (const char* pointer : {"/model", "/batch", "/hardware", "/backend/family"}) {
    const Json::json_pointer where(pointer);
    if (before.at(where) != after.at(where))
      throw Error(ErrorCode::kUsage,
                  fmt::format("unlike runs: {} is {} before and {} after", pointer,
                              shown(before.at(where).dump()), shown(after.at(where).dump())));
  }
}

}  // namespace

RunReport RunReport::parse(std::string_view text, const std::string& path,
                           std::string_view schema) {
  JsonLines lines;
  RunReport run{check_schema(text, path, schema, &lines), ""};
  const Json& steps = run.json.at("steps");
  double sum = 0, tokens = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double wall_s = steps[i].at("wall_s");
    if (steps[i].value("compile_s", 0.0) + steps[i].value("stall_s", 0.0) > wall_s * 1.001)
      fail_at(path, lines, fmt::format("/steps/{}", i), "its parts take longer than the step");
    sum += wall_s;
    tokens += steps[i].at("tokens").get<double>();
  }
  if (steps.size() < kFewestSteps)
    fail_at(path, lines, "/steps", fmt::format("want at least {} steps", kFewestSteps));
  if (sum > run.json.at("wall_s").get<double>() * 1.001)
    fail_at(path, lines, "/wall_s", "the steps take longer than the run");
  if (tokens == 0) fail_at(path, lines, "/steps", "no step has tokens that count");
  run.digest = sha256_hex(canonical_json(run.json));
  return run;
}

Json compare_runs(const RunReport& before, const RunReport& after) {
  refuse_unlike(before.json, after.json);
  const Steps old_steps = steps_of(before.json), new_steps = steps_of(after.json);
  const auto block = [](const Steps& steps) {
    return static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(steps.tokens.size()))));
  };
  std::mt19937_64 random(kSeed);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < kResamples; ++i) {
    const double old_goodput = resampled(old_steps, block(old_steps), random);
    const double new_goodput = resampled(new_steps, block(new_steps), random);
    // A resample of a run that mostly failed may have no tokens at all.
    ratios.push_back(old_goodput > 0 ? new_goodput / old_goodput : HUGE_VAL);
  }
  std::sort(ratios.begin(), ratios.end());
  const double low = ratios[kResamples / 40], high = ratios[kResamples - 1 - kResamples / 40];
  const Json old_side = side(before), new_side = side(after);
  const double ratio =
      new_side.at("tokens_per_s").get<double>() / old_side.at("tokens_per_s").get<double>();
  return {{"ratio", ratio},
          {"interval", {number_or_name(low), number_or_name(high)}},
          {"keep", low > 1    ? "keep"
                   : high < 1 ? "drop"
                              : "conditional"},
          {"before", old_side},
          {"after", new_side},
          {"method", fmt::format("bootstrap over blocks of steps, {} resamples, seed {}, 95 %",
                                 kResamples, kSeed)},
          {"model", before.json.at("model")},
          {"batch", before.json.at("batch")},
          {"hardware", before.json.at("hardware")},
          {"family", before.json.at("backend").at("family")}};
}

}  // namespace patchbench::job
