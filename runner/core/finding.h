#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/record.h"

namespace patchbench {

/// When a record counts as made; "newest" compares this and nothing else. Whoever reads records
/// corrects what they say of themselves: see ledger/made.h.
struct Made {
  std::string date;   ///< ISO 8601 UTC
  int64_t order = 0;  ///< among the records made here, from 1; 0 of others
  std::string digest;
  auto operator<=>(const Made&) const = default;
};

/// What a verdict answers: a question, and of which subject, mitigation mode or claim. Ordered by
/// its text: "reproduce", "validate", "claim NAME", "mitigation MODE", or the subject whose
/// reproduction it is; "named_cases" of a release's reproduction over cases that the user named,
/// which says nothing of the others and takes the place of no whole one.
class QuestionKey {
 public:
  QuestionKey(std::string text = "reproduce");  // NOLINT(google-explicit-constructor)
  // NOLINTNEXTLINE(google-explicit-constructor)
  QuestionKey(const char* text) : QuestionKey(std::string(text)) {}
  explicit QuestionKey(const QuestionContext& context);
  const std::string& text() const { return text_; }
  /// Whether it is this question: of the release alone, if it is a reproduction.
  bool is(Question question) const { return question_ == question; }
  /// The mode of a mitigation, "" where it chose; the name of a claim.
  const std::string& name() const { return name_; }
  /// The question's name without the mode or claim; of a reproduction's subject its word.
  std::string question_text() const { return text_.substr(0, text_.find(' ')); }

  // NOLINTNEXTLINE(hicpp-use-nullptr)
  friend auto operator<=>(const QuestionKey& a, const QuestionKey& b) {
    return a.text_ <=> b.text_;
  }
  friend bool operator==(const QuestionKey& a, const QuestionKey& b) { return a.text_ == b.text_; }

 private:
  std::string text_, name_;
  std::optional<Question> question_;  ///< nullopt: a reproduction of another subject
};

/// Whether it asks about a release by cases that the user named.
bool is_of_named_cases(const QuestionContext& question);

/// A verdict record in short: a question about a version on a device, and its answer.
struct Finding {
  std::string slug;
  std::string upstream;  ///< "" where no release ran (an op, a model)
  std::string version;   ///< "-" where no release ran
  /// The companions of the release: RFC 8785 text of {upstream: version}; may be "".
  std::string companions;
  QuestionKey question;
  std::string device;    ///< "cpu", "NVIDIA H200 (sm_90)"
  std::string sentinel;  ///< Outcome::text
  std::string started, manifest_sha256, digest;
  bool is_isolated = false;
  bool is_counted = true;  ///< made here, or signed by a trusted key
  Made made = {};
  Outcome outcome() const { return Outcome::from_text(sentinel); }
  auto operator<=>(const Finding&) const = default;
};

/// `digest`: that of the verdict record, which its caller has. Throws Error(kUsage) on another
/// type.
Finding finding_of(const Record& verdict, const std::string& digest);

/// An outcome for people: Outcome::text, and after NO_REGRESSION the numbers that were compared,
/// since it says nothing of any other: "NO_REGRESSION of registers, spills (case lowering, each at
/// most 1.03 times upstream's)". What was earned when nobody asked whether the cases look at the
/// regions of the inputs says so: "FIX_VALIDATED (older run)"; else how many cases were drawn
/// beyond the declared ones: "FIX_VALIDATED (100 random cases)", and whether the manifest has
/// changed since: "FIX_VALIDATED (100 random cases, older run)".
enum class RunAge { kCurrent, kOlder };
std::string described(const Outcome& outcome, const QuestionContext& question,
                      RunAge age = RunAge::kCurrent);
/// The same of a verdict record.
std::string described(const Record& verdict);

/// "H200" of "NVIDIA H200 (sm_90)": the GPU type, for tables.
std::string short_device(std::string device);

}  // namespace patchbench
