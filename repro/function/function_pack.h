#pragma once
#include "function/plan.h"

namespace patchbench::function {

/// Who rounds what a function stores in bf16 on a CPU: torch, or Triton's interpreter, which
/// truncates.
enum class Bf16 { kRounded, kTruncated };

/// A function as the harness sees it. What is right comes from a reference in another process, so
/// that oracle() and plain() throw; no failure has a name of its own.
class FunctionPack : public harness::Pack {
 public:
  FunctionPack(FunctionPlan plan, Bf16 bf16) : plan_(std::move(plan)), bf16_(bf16) {}

  std::string slug() const override { return "function"; }
  void check(const Case& item) const override;
  at::ScalarType dtype(const Case& item) const override;
  harness::Tensors inputs(const Case& item, uint64_t seed) const override;
  harness::Tensors oracle(const Case& item, const harness::Tensors& inputs) const override;
  harness::Tensors plain(const Case& item, const harness::Tensors& inputs) const override;
  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override;
  std::map<std::string, harness::InProcessSubject> subjects() const override { return {}; }
  std::string classify(const Case&, const harness::Judgement&) const override { return ""; }
  bool rounds_all_bf16_on_cpu() const override { return bf16_ == Bf16::kRounded; }

  const FunctionPlan& plan() const { return plan_; }

 private:
  FunctionPlan plan_;
  Bf16 bf16_;
};

}  // namespace patchbench::function
