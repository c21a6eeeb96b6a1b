#pragma once
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/observation.h"
#include "harness/compare.h"
#include "harness/inputs.h"

namespace patchbench::harness {

/// Thrown by an in-process subject for a case that it has no feature for; the case is then
/// `unsupported`.
class UnsupportedCase : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by a model where the modelled code raises: an answer that `classify_error` names, not a
/// failure of ours. `exception` is {"type": "ModelRaised", "cuda_code": null, "frames": [where it
/// was thrown, the file by its folder and name]}.
class ModelRaised : public std::runtime_error {
 public:
  explicit ModelRaised(const std::string& what,
                       const std::source_location& at = std::source_location::current())
      : std::runtime_error(what), at_(at) {}
  Json exception() const {
    const std::filesystem::path path = at_.file_name();
    const std::string file = (path.parent_path().filename() / path.filename()).string();
    const Json frame = {{"file", file}, {"line", at_.line()}, {"function", at_.function_name()}};
    return {{"type", "ModelRaised"}, {"cuda_code", nullptr}, {"frames", Json::array({frame})}};
  }
  /// Whether an exception is one that was thrown in the model of a pack.
  static bool is_of(const std::string& slug, const Json& exception) {
    const Json frames = exception.value("frames", Json::array());
    return exception.value("type", "") == "ModelRaised" && !frames.empty() &&
           frames.back().value("file", "") == slug + "/model.h";
  }

 private:
  std::source_location at_;
};

/// A subject that runs in the judge's own process: outputs from inputs on the case's device.
using InProcessSubject = std::function<Tensors(const Case&, const Tensors& inputs)>;

/// What one subject gave for one case, and what is right.
struct Judgement {
  Tensors inputs, got, oracle, plain;
  std::vector<Measure> measures;  ///< every layer of every tensor
  /// Whether the subject wrote to a guard band of an input (isolated cases; guard_bands.h).
  bool has_damaged_band() const {
    return std::any_of(measures.begin(), measures.end(),
                       [](const Measure& m) { return m.layer == "guard_band" && !m.pass; });
  }
  /// Whether no layer of the tensor failed; true of one that was not measured.
  bool is_right(const std::string& tensor) const {
    return std::none_of(measures.begin(), measures.end(),
                        [&](const Measure& m) { return m.tensor == tensor && !m.pass; });
  }
};

/// What a reproducer fills in; everything else is the harness's. All calls are pure in (case,
/// seed).
class Pack {
 public:
  Pack() = default;
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;
  virtual ~Pack() = default;

  virtual std::string slug() const = 0;
  /// Throws Error(kUsage) naming the axis that is missing, unknown or out of range.
  virtual void check(const Case& item) const = 0;
  /// The dtype in which the case computes; `floor_ulp` counts in its epsilon.
  virtual at::ScalarType dtype(const Case& item) const = 0;
  /// Inputs on the CPU, made by `Draw` under names that hold the case's, so that no two cases share
  /// an answer.
  virtual Tensors inputs(const Case& item, uint64_t seed) const = 0;
  /// The right outputs in fp64 on the CPU, from the inputs as they were rounded to the case's
  /// dtype.
  virtual Tensors oracle(const Case& item, const Tensors& inputs) const = 0;
  /// The plain same-dtype torch computation on the inputs' device. Its shapes and dtypes are the
  /// wanted ones.
  virtual Tensors plain(const Case& item, const Tensors& inputs) const = 0;
  /// What the terms of an element's sum come to, where they may cancel in all of an output, as in a
  /// single sum over many tokens; errors are relative to at least that (compare.h). 0: an output's
  /// own size says enough.
  virtual double least_size(const Case& item, const Tensors& inputs, const Tensors& oracle,
                            const std::string& tensor) const {
    static_cast<void>(item);
    static_cast<void>(inputs);
    static_cast<void>(oracle);
    static_cast<void>(tensor);
    return 0;
  }
  virtual Tolerances tolerances(const Case& item, const std::string& tensor) const = 0;
  /// Name -> subject: "model" (the defect), "model_fixed", "model_mutant:<name>", "op",
  /// "op_mutant:<name>".
  virtual std::map<std::string, InProcessSubject> subjects() const = 0;
  /// The declared failure class of a judgement that did not pass, "" where none fits. A predicate
  /// on numbers.
  virtual std::string classify(const Case& item, const Judgement& judgement) const = 0;
  /// The declared failure class of a subject that raised, "" where raising is not a failure of this
  /// pack. A predicate on the type, the CUDA code and the frames of `exception` ({"type",
  /// "cuda_code", "frames": [{"file", "line", "function"}]}), never on its text.
  virtual std::string classify_error(const Case& item, const Json& exception) const {
    static_cast<void>(item);
    static_cast<void>(exception);
    return "";
  }
  /// Whether bf16 from outside this process is judged on a CPU: what Triton's interpreter stores is
  /// truncated and is not; a subject of this case stores by rounding.
  virtual bool rounds_bf16_on_cpu(const Case& item) const {
    static_cast<void>(item);
    return rounds_all_bf16_on_cpu();
  }
  /// The same of every case: a search on a CPU then draws bf16, too.
  virtual bool rounds_all_bf16_on_cpu() const { return false; }
  /// The counts of a case by axis: what a fix may be wrong beyond (regions.h). As it stands: every
  /// axis that is a whole number of at least 1, but those that say how, not how many (a factor is
  /// `…_times`).
  virtual std::map<std::string, int64_t> extents(const Case& item) const {
    std::map<std::string, int64_t> counts;
    for (const auto& [name, value] : item.axes.items()) {
      if (!value.is_number_integer() || name == "backwards" || name.ends_with("_times")) continue;
      if (value.get<int64_t>() >= 1) counts.emplace(name, value.get<int64_t>());
    }
    return counts;
  }
  /// Why a case is not even run on this kind of device ("cpu", "cuda"), or "". It is then
  /// `unsupported`.
  virtual std::string refusal(const Case& item, const std::string& device_kind) const {
    static_cast<void>(item);
    static_cast<void>(device_kind);
    return "";
  }
};

}  // namespace patchbench::harness
