#include "function/reference.h"

#include <algorithm>
#include <deque>

#include "harness/compare.h"

namespace patchbench::function {
namespace {

using harness::Answer;
using harness::SubjectCase;
using harness::Tensors;

/// Of the reference's outputs: their sizes are not known before.
constexpr int64_t kOutputBytes = int64_t{1} << 30;

Tensors dense(const Tensors& inputs, bool is_wide) {
  Tensors all;
  for (const auto& [name, tensor] : inputs) {
    const bool is_widened = is_wide && tensor.is_floating_point();
    all.emplace(name, (is_widened ? tensor.to(at::kDouble) : tensor).contiguous());
  }
  return all;
}

bool is_finite(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    return !entry.second.is_floating_point() || entry.second.isfinite().all().template item<bool>();
  });
}

std::string why_none(const Answer& answer, const char* what) {
  if (answer.state != Answer::State::kOutputs)
    return std::string("the reference ") + what + " has no answer: " + answer.reason;
  if (!is_finite(answer.outputs)) return std::string("the reference ") + what + " is not finite";
  return "";
}

/// Where the reference itself has lost most digits, as in a difference of nearly equal numbers, the
/// errors of two right functions differ by more than any factor.
bool is_ill_conditioned(const Tensors& oracle, const Tensors& plain) {
  return std::any_of(oracle.begin(), oracle.end(), [&](const auto& entry) {
    const auto found = plain.find(entry.first);
    if (found == plain.end() || !found->second.is_floating_point() ||
        found->second.sizes() != entry.second.sizes() || found->second.numel() == 0)
      return false;
    const at::ScalarType type = found->second.scalar_type();
    const double most = type == at::kHalf || type == at::kBFloat16 ? 32 : 64;
    const harness::Errors errors = harness::errors_of(found->second, entry.second);
    return errors.element > (errors.is_absolute ? 0 : most * harness::epsilon_of(type));
  });
}

}  // namespace

std::map<std::string, harness::Reference> references_of(const std::vector<SubjectCase>& batch,
                                                        const harness::AnswerBatch& ask) {
  std::deque<Case> items;  // a SubjectCase points to its own
  std::vector<SubjectCase> handed;
  for (const SubjectCase& one : batch) {
    for (const bool is_wide : {true, false}) {
      items.push_back(*one.item);
      items.back().name += is_wide ? "_fp64" : "_plain";
      items.back().axes.erase("backwards");
      handed.push_back({&items.back(), dense(one.inputs, is_wide), kOutputBytes});
    }
  }
  std::map<std::string, Answer> answers = ask(handed);
  std::map<std::string, harness::Reference> references;
  for (const SubjectCase& one : batch) {
    Answer& wide = answers.at(one.item->name + "_fp64");
    Answer& plain = answers.at(one.item->name + "_plain");
    harness::Reference reference;
    reference.why = why_none(wide, "in fp64");
    if (reference.why.empty()) reference.why = why_none(plain, "in the dtype of the case");
    if (reference.why.empty() && is_ill_conditioned(wide.outputs, plain.outputs))
      reference.why = "the reference has too few right digits in the dtype of the case";
    reference.oracle = std::move(wide.outputs);
    reference.plain = std::move(plain.outputs);
    if (reference.why.empty() && reference.oracle.size() != reference.plain.size())
      reference.why = "the reference has other outputs in fp64";
    references.emplace(one.item->name, std::move(reference));
  }
  return references;
}

}  // namespace patchbench::function
