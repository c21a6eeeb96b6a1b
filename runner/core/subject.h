#pragma once
#include <fmt/format.h>

#include <compare>
#include <string>
#include <string_view>

namespace patchbench {

/// What is tested. The mutants are wrong on purpose.
enum class SubjectKind {
  kUpstream,         ///< the release as it is
  kPatched,          ///< the release with our edits
  kFixed,            ///< another release, which the pack calls fixed
  kClaimed,          ///< the release with a change as its proposal has it: `claimed-<name>.edit`
  kMitigated,        ///< the release with the runtime mitigation, in its own or a named mode
  kOp,               ///< our op
  kModel,            ///< a C++ model of the defect
  kModelFixed,       ///< the model without the defect
  kPlain,            ///< the plain computation, right by definition
  kLiar,             ///< computes nothing and says that it did
  kAltered,          ///< the fix with one small change of its own text (run/altered.h)
  kMutant,           ///< of the edit, or made of the outputs of kPatched
  kMitigatedMutant,  ///< made of the outputs of kMitigated
  kOpMutant,
  kModelMutant,
  kOther,  ///< a word that no pack can have: refused where a pack's subjects are known
};

/// A subject by its word: "upstream", "mutant:half", "claimed:one-line", "mitigated:dequantize",
/// "op_mutant:region:ties".
/// Implicit from text: records, manifests and command lines hold words.
class Subject {
 public:
  Subject(std::string text);  // NOLINT(google-explicit-constructor)
  Subject(std::string_view text) : Subject(std::string(text)) {}
  Subject(const char* text) : Subject(std::string(text)) {}
  Subject(SubjectKind kind) : Subject(word_of(kind)) {}

  SubjectKind kind() const { return kind_; }
  const std::string& text() const { return text_; }
  /// What follows the last colon of a mutant's word; "" of the others.
  std::string mutant_name() const;
  /// The named mode of a mitigation or of its region mutant; "" where the mitigation chooses.
  std::string mode() const;
  /// Whether it runs inside the reproducer itself: needs no checkout and no sandbox.
  bool is_in_process() const;
  bool is_mutant() const;
  /// Whether it is the release with one edit that is not of the series: a mutant or a claimed
  /// change.
  bool is_lone_edit() const;
  /// Whether it is a mutant that the judge made of right outputs inside one region of the inputs.
  bool is_region_mutant() const;

  /// The mutant that the judge makes of this subject's outputs in a region.
  Subject region_mutant(const std::string& region) const;
  /// Of a region mutant, the subject whose outputs it spoils.
  Subject unspoiled() const;

  // NOLINTNEXTLINE(hicpp-use-nullptr)
  friend auto operator<=>(const Subject& a, const Subject& b) { return a.text_ <=> b.text_; }
  friend bool operator==(const Subject& a, const Subject& b) { return a.text_ == b.text_; }

 private:
  static std::string word_of(SubjectKind kind);
  std::string text_;
  SubjectKind kind_;
};

inline bool operator==(const Subject& subject, SubjectKind kind) { return subject.kind() == kind; }

}  // namespace patchbench

template <>
struct fmt::formatter<patchbench::Subject> : fmt::formatter<std::string_view> {
  auto format(const patchbench::Subject& subject, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(subject.text(), context);
  }
};
