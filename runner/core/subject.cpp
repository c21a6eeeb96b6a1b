#include "core/subject.h"

#include <algorithm>
#include <array>
#include <utility>

namespace patchbench {
namespace {

constexpr std::string_view kRegion = "region:";
/// The words; a mutant's is followed by its name.
constexpr std::array<std::pair<SubjectKind, std::string_view>, 13> kWords = {{
    {SubjectKind::kUpstream, "upstream"},
    {SubjectKind::kPatched, "patched"},
    {SubjectKind::kClaimed, "claimed:"},
    {SubjectKind::kMitigated, "mitigated"},
    {SubjectKind::kOp, "op"},
    {SubjectKind::kModel, "model"},
    {SubjectKind::kModelFixed, "model_fixed"},
    {SubjectKind::kPlain, "plain"},
    {SubjectKind::kLiar, "liar"},
    {SubjectKind::kMutant, "mutant:"},
    {SubjectKind::kMitigatedMutant, "mitigated_mutant:"},
    {SubjectKind::kOpMutant, "op_mutant:"},
    {SubjectKind::kModelMutant, "model_mutant:"},
}};

SubjectKind kind_of(std::string_view text) {
  for (const auto& [kind, word] : kWords) {
    if (word.ends_with(':') ? text.starts_with(word) : text == word) return kind;
  }
  return SubjectKind::kOther;
}

}  // namespace

Subject::Subject(std::string text) : text_(std::move(text)), kind_(kind_of(text_)) {}

std::string Subject::word_of(SubjectKind kind) {
  const auto* const found = std::find_if(kWords.begin(), kWords.end(),
                                         [&](const auto& entry) { return entry.first == kind; });
  return found == kWords.end() ? "" : std::string(found->second);
}

std::string Subject::mutant_name() const {
  return is_mutant() ? text_.substr(text_.rfind(':') + 1) : "";
}

bool Subject::is_in_process() const {
  switch (kind_) {
    case SubjectKind::kOp:
    case SubjectKind::kModel:
    case SubjectKind::kModelFixed:
    case SubjectKind::kPlain:
    case SubjectKind::kOpMutant:
    case SubjectKind::kModelMutant:
      return true;
    default:
      return false;
  }
}

bool Subject::is_mutant() const {
  return kind_ == SubjectKind::kMutant || kind_ == SubjectKind::kMitigatedMutant ||
         kind_ == SubjectKind::kOpMutant || kind_ == SubjectKind::kModelMutant;
}

bool Subject::is_lone_edit() const {
  return kind_ == SubjectKind::kMutant || kind_ == SubjectKind::kClaimed;
}

bool Subject::is_region_mutant() const {
  return is_mutant() && text_.find(kRegion) == word_of(kind_).size();
}

Subject Subject::unspoiled() const {
  return kind_ == SubjectKind::kOpMutant          ? SubjectKind::kOp
         : kind_ == SubjectKind::kMitigatedMutant ? SubjectKind::kMitigated
                                                  : SubjectKind::kPatched;
}

Subject Subject::region_mutant(const std::string& region) const {
  const SubjectKind kind = kind_ == SubjectKind::kOp          ? SubjectKind::kOpMutant
                           : kind_ == SubjectKind::kMitigated ? SubjectKind::kMitigatedMutant
                                                              : SubjectKind::kMutant;
  return word_of(kind) + std::string(kRegion) + region;
}

}  // namespace patchbench
