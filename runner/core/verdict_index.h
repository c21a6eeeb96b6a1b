#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/bug_state.h"
#include "core/finding.h"
#include "core/judged.h"
#include "core/window.h"

namespace patchbench {

/// One question about one version. It names the release's companions at another version than their
/// red pin; "" without one.
struct VerdictKey {
  std::string slug, upstream, version, companions;
  QuestionKey question;
  auto operator<=>(const VerdictKey&) const = default;
};

/// How often one thing was said, and when last.
struct Tally {
  int64_t runs = 0, unisolated = 0;
  Finding newest;
};

/// What the runs on one kind of device said: (sentinel, judged digest of the manifest) -> tally.
using Tallies = std::map<std::pair<std::string, std::string>, Tally>;

/// The findings of one key on one kind of device.
struct Cell {
  Tallies said;              ///< by runs that count
  Tallies unsigned_imports;  ///< by unsigned imports: shown, never counted
  /// The newest finding that counts; null where there is none.
  const Finding* newest() const;
  /// The newest unsigned import; null where there is none.
  const Finding* newest_unsigned() const;
};

/// All findings by key and device. The order in which they are added does not matter.
class VerdictIndex {
 public:
  /// `judged`: which manifests ask the same, so that their runs can agree or contradict.
  explicit VerdictIndex(JudgedDigests judged = {}) : judged_(std::move(judged)) {}
  using Devices = std::map<std::string, Cell>;
  void add(const Finding& finding);
  const std::map<VerdictKey, Devices>& by_key() const { return by_key_; }

 private:
  JudgedDigests judged_;
  std::map<VerdictKey, Devices> by_key_;
};

/// How many counted runs on one kind of device said one thing.
struct Agreement {
  std::string sentinel, device;
  int64_t runs = 0, unisolated = 0;  ///< of the runs, those without a sandbox
};
/// Who says what about one version: every counted run that gave an answer, whatever its manifest.
std::vector<Agreement> quorum_of(const VerdictIndex& verdict_index, const VerdictKey& key);

/// Answers that cannot all hold: the newest ones of several devices, or several runs on one device
/// under manifests that ask the same. A run without an answer (NONE, NOT_RUN) contradicts nobody.
struct Disagreement {
  VerdictKey key;
  std::vector<Agreement> agreements;
};
std::vector<Disagreement> disagreements_of(const VerdictIndex& verdict_index);

/// What a reproduction says of its release: absent, a failure class, or unresolved where it says
/// neither.
BugState state_of(const Outcome& outcome);

/// The newest counted reproduction of each of `versions` on one device, in their order, with
/// red-pin companions alone.
std::vector<ReleaseState> states_of(const VerdictIndex& verdict_index, const std::string& slug,
                                    const std::string& upstream, const std::string& device,
                                    const std::vector<std::string>& versions);

/// What differs between two indexes: a key that is new, or has another answer.
struct Change {
  VerdictKey key;
  std::string device, before, now;  ///< before: "" where nothing was known
  std::string digest;               ///< of the verdict that says it now
};
std::vector<Change> changes_between(const VerdictIndex& before, const VerdictIndex& now);

}  // namespace patchbench
