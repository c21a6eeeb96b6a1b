#include "core/subject.h"

#include <algorithm>
#include <array>
#include <utility>

namespace patchbench {
namespace {

constexpr std::string_view kRegion = "region:";
/// The words; one with a colon is followed by a name. The first of a kind is its own word.
constexpr std::array<std::pair<SubjectKind, std::string_view>, 16> kWords = {{
    {SubjectKind::kUpstream, "upstream"},
    {SubjectKind::kPatched, "patched"},
    {SubjectKind::kFixed, "fixed"},
    {SubjectKind::kClaimed, "claimed:"},
    {SubjectKind::kMitigated, "mitigated"},
    {SubjectKind::kMitigated, "mitigated:"},
    {SubjectKind::kOp, "op"},
    {SubjectKind::kModel, "model"},
    {SubjectKind::kModelFixed, "model_fixed"},
    {SubjectKind::kPlain, "plain"},
    {SubjectKind::kLiar, "liar"},
    {SubjectKind::kAltered, "altered:"},
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

std::string Subject::mode() const {
  if (kind_ == SubjectKind::kMitigated)
    return text_.substr(std::min(text_.size(), word_of(kind_).size() + 1));
  if (kind_ != SubjectKind::kMitigatedMutant || !is_region_mutant()) return "";
  const std::size_t start = word_of(kind_).size(), end = text_.find(kRegion);
  return end == start ? "" : text_.substr(start, end - start - 1);
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
  return kind_ == SubjectKind::kAltered || kind_ == SubjectKind::kMutant ||
         kind_ == SubjectKind::kMitigatedMutant || kind_ == SubjectKind::kOpMutant ||
         kind_ == SubjectKind::kModelMutant;
}

bool Subject::is_lone_edit() const {
  return kind_ == SubjectKind::kMutant || kind_ == SubjectKind::kClaimed;
}

bool Subject::is_region_mutant() const {
  // A mode may stand between the word and the region.
  const std::size_t region = text_.find(kRegion), start = word_of(kind_).size();
  return is_mutant() && region != std::string::npos &&
         (region == start ||
          (kind_ == SubjectKind::kMitigatedMutant && text_.find(':', start) == region - 1));
}

Subject Subject::unspoiled() const {
  if (kind_ == SubjectKind::kMitigatedMutant)
    return word_of(SubjectKind::kMitigated) + (mode().empty() ? "" : ":" + mode());
  return kind_ == SubjectKind::kOpMutant ? SubjectKind::kOp : SubjectKind::kPatched;
}

Subject Subject::region_mutant(const std::string& region) const {
  const SubjectKind kind = kind_ == SubjectKind::kOp          ? SubjectKind::kOpMutant
                           : kind_ == SubjectKind::kMitigated ? SubjectKind::kMitigatedMutant
                                                              : SubjectKind::kMutant;
  return word_of(kind) + (mode().empty() ? "" : mode() + ":") + std::string(kRegion) + region;
}

}  // namespace patchbench
