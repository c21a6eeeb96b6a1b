#pragma once
#include <gtest/gtest.h>
#include <unistd.h>
#include <algorithm>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/observation.h"
#include "harness/pack.h"
#include "harness/program.h"

namespace patchbench::harness::testing {

inline constexpr Tolerance kLoose{2, 4, "order of fp32 sums over at most six terms"};

/// A pack of the smallest kind that has outputs of rank 0, 1 and 2: product = x w, row_sums and
/// total of it.
class ToyPack final : public Pack {
 public:
  std::string slug() const override { return "toy_pack"; }
  void check(const Case&) const override {}
  at::ScalarType dtype(const Case& item) const override {
    return item.axes.value("dtype", "float32") == "bfloat16" ? at::kBFloat16 : at::kFloat;
  }
  bool rounds_bf16_on_cpu(const Case& item) const override {
    return item.axes.value("rounds", false);
  }
  Tensors inputs(const Case& item, uint64_t seed) const override {
    const at::Tensor x = Draw(seed, item.name + "/x").normal({6, 4}).to(dtype(item));
    const at::Tensor w = Draw(seed, item.name + "/w").normal({4, 4}).to(dtype(item));
    // A view with an offset, and one with stride 0: both must reach the subject as they are.
    const at::Tensor bias = Draw(seed, item.name + "/bias").normal({1}).to(dtype(item)).expand({4});
    return {{"x", at::cat({x, x}, 1).slice(1, 4)}, {"w", w}, {"bias", bias}};
  }
  static Tensors compute(const Tensors& inputs) {
    const at::Tensor product = at::matmul(inputs.at("x"), inputs.at("w")) + inputs.at("bias");
    return {{"product", product}, {"row_sums", product.sum(1)}, {"total", product.sum()}};
  }
  Tensors oracle(const Case&, const Tensors& inputs) const override {
    return compute(in_fp64(inputs));
  }
  Tensors plain(const Case&, const Tensors& inputs) const override { return compute(inputs); }
  Tolerances tolerances(const Case&, const std::string&) const override {
    return {kLoose, kLoose, Tolerance{2, 0.01, "second order"}, kLoose};
  }
  std::map<std::string, InProcessSubject> subjects() const override {
    return {{"op", [](const Case&, const Tensors& inputs) { return compute(inputs); }},
            {"model",
             [](const Case&, const Tensors& inputs) {
               Tensors outputs = compute(inputs);
               outputs.at("product").zero_();
               return outputs;
             }},
            {"model_mutant:raises",
             [](const Case&, const Tensors&) -> Tensors { throw ModelRaised("no such branch"); }},
            {"op_mutant:raises",
             [](const Case&, const Tensors&) -> Tensors {
               throw std::runtime_error("broken\nindeed");
             }},
            {"op_mutant:unsupported",
             [](const Case&, const Tensors&) -> Tensors { throw UnsupportedCase("not here"); }}};
  }
  std::string classify(const Case&, const Judgement& judgement) const override {
    return judgement.got.at("product").eq(0).all().item<bool>() ? "zeroed" : "";
  }
  std::string refusal(const Case& item, const std::string& kind) const override {
    return kind == "cpu" && item.axes.value("large", false) ? "too large for a CPU" : "";
  }
};

/// A folder that is removed with everything in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "patchbench-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// What one run of a reproducer gave.
struct RunResult {
  int code = -1;
  std::vector<Observation> observations;
  const Observation& of(const std::string& name) const {
    for (const Observation& o : observations) {
      if (o.case_name == name) return o;
    }
    throw std::runtime_error("no observation of " + name);
  }
};

inline Json toy_cases(const std::vector<std::string>& names) {
  Json cases = Json::array();
  for (const std::string& name : names) {
    cases.push_back({{"name", name},
                     {"role", "trigger"},
                     {"axes", Json::object()},
                     {"judged_on", {"cpu", "cuda"}}});
  }
  return cases;
}

/// Runs the whole program over `cases` with the words given, records read back through the strict
/// parser.
inline RunResult run_toy(const ScratchFolder& folder, const Json& cases,
                         std::vector<std::string> words, const Pack& pack = ToyPack(),
                         const Json& more = Json::object()) {
  Json file = {{"slug", pack.slug()}, {"classes", {"zeroed"}}, {"cases", cases}};
  file.update(more);
  const std::string records = folder.write("records", "");
  std::FILE* sink = std::fopen(records.c_str(), "w");
  words.insert(words.begin(),
               {"repro_toy_pack", "--cases", folder.write("cases.json.in", file.dump()), "--work",
                (folder / "work").string(), "--records-fd", std::to_string(::fileno(sink))});
  for (const auto& [flag, value] : {std::pair("--seed", "1"), std::pair("--device", "cpu")}) {
    if (std::find(words.begin(), words.end(), flag) == words.end())
      words.insert(words.end(), {flag, value});
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  RunResult result;
  result.code = run_reproducer(static_cast<int>(argv.size()), argv.data(), pack);
  std::fclose(sink);
  std::ifstream in(records);
  for (std::string line; std::getline(in, line);)
    result.observations.push_back(Observation::from_json(parse_json(line, "record")));
  return result;
}

}  // namespace patchbench::harness::testing
