#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/manifest.h"
#include "core/subject.h"

namespace patchbench {

/// What was seen of the bug in one subject × case × seed.
enum class CaseStatus {
  kPresent,      ///< a failure; `failure_class` names it, or is "undeclared"
  kAbsent,       ///< judged, and right
  kUnjudged,     ///< measured, but this machine cannot judge it (bf16 under the interpreter)
  kUnsupported,  ///< the subject cannot run the case (old API, no GPU); reason given
  kUnresolved,   ///< crash, time-out, missing or malformed outputs
};
std::string case_status_name(CaseStatus status);
/// Throws Error(kUsage) with did-you-mean.
CaseStatus case_status_from(std::string_view name);

/// Why an answer is missing, as far as a rule asks for it.
enum class Unresolved {
  kOther,
  kNoEffect,  ///< a spoiling changed nothing (a factor on values that are all 0): no mutant here
  kFlaky,     ///< repeats had different answers
};
/// How a record spells Unresolved::kNoEffect.
std::string no_effect_reason(const std::string& corruption);

/// One number of a judgement: a tensor's deciding layer.
struct Measure {
  std::string tensor;  ///< "grad_input"
  std::string
      layer;  ///< "shape", "anomalies", "absolute", "element", "row", "cosine", "scale", "bitwise"
  double got = 0;    ///< error of the subject against the fp64 oracle, relative ("absolute": not)
  double plain = 0;  ///< error of the plain same-dtype torch computation, relative
  double limit = 0;  ///< k * plain + floor
  bool pass = false;
  std::string where;  ///< worst coordinate, e.g. "[3,17]"; may be empty
};

/// One line of a reproducer's record channel.
struct Observation {
  std::string slug;
  Subject subject = SubjectKind::kOther;
  std::string case_name;
  CaseRole role = CaseRole::kControl;
  std::string device;  ///< "cpu", "cuda:0"
  uint64_t seed = 0;   ///< at most 2^53, so that JSON holds it
  int repeat = 0;
  CaseStatus status = CaseStatus::kUnresolved;
  std::string failure_class;                   ///< set iff present
  std::string reason;                          ///< one line for unjudged, unsupported, unresolved
  Unresolved unresolved = Unresolved::kOther;  ///< read from `reason`, which a record holds
  bool counts = true;  ///< false: shown and kept, but no part of any sentinel (judged_on)
  std::vector<Measure> measures;
  std::string inputs_sha256, outputs_sha256;  ///< 64 hex digits, or "" where there are none
  Json self_reported;  ///< what the subject says of itself (versions, times, peak)
  Json outside;        ///< what we measured from outside (wall_s, peak_bytes, exit)
  /// Of drawn cases alone. One case: {"space", "axes", "properties"}, with "kept": true where it
  /// goes into the ledger and "shrunk": true where it is the smallest that a search found. What a
  /// space came to: {"space", "asked", "judged", "red", "unsupported", "seeds": [first, last],
  /// "wall_s", "regions": {region: how many cases it took}}.
  Json drawn;

  /// Whether it says what a space came to.
  bool is_summary() const { return drawn.is_object() && drawn.contains("asked"); }
  /// Whether it is one case that a search drew and did not keep.
  bool is_passing() const { return drawn.is_object() && !is_summary() && !drawn.contains("kept"); }
  /// Whether the subject raised where the pack says nothing of raising.
  bool has_raised() const {
    return status == CaseStatus::kUnresolved && self_reported.is_object() &&
           self_reported.contains("exception");
  }
  /// Red, or raised: wrong where the subject has to be right.
  bool is_wrong() const { return status == CaseStatus::kPresent || has_raised(); }
  /// The first measure that fails; null where none does.
  const Measure* failing() const;
  /// What the subject counted under that name; nullopt where it did not.
  std::optional<double> number(const std::string& name) const;
  /// A measure is `[tensor, layer, got, plain, limit, pass, where]`; non-finite numbers go by name,
  /// numbers keep every digit. `reason` becomes one line of at most 400 bytes: part of it may come
  /// from a subject. Empty `failure_class`, `reason`, digests and objects, and `counts` where it is
  /// true, are left out.
  Json to_json() const;
  /// Strict: unknown or missing keys and values outside their sets throw Error(kUsage).
  /// from_json(to_json(o)) == o but for `reason` as said above; to_json(from_json(j)) == j.
  static Observation from_json(const Json& json);
};

/// Text of others as one line: control characters (line feeds, escape sequences) become spaces, and
/// what is longer than `max_bytes` is cut at a character and ends with "…".
std::string one_line(std::string_view text, std::size_t max_bytes);

}  // namespace patchbench
