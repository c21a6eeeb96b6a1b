#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/board.h"
#include "ledger/archive.h"
#include "workbench/context.h"

namespace patchbench {

/// Whose records are looked at.
struct StandingOptions {
  std::string slug;         ///< "" for every pack
  std::string before;       ///< only runs started before this time; "" for all
  bool with_ledger = true;  ///< false: the committed evidence alone
};

/// What is known of the packs, from the ledger and the committed evidence.
struct Standing {
  std::vector<Manifest> packs;  ///< by number
  Pins pins;
  ledger::Archive archive;
  Board board;
};
/// Throws Error(kUsage) with did-you-mean for an unknown slug.
Standing standing_of(const Context& context, const StandingOptions& options);
/// Another board of the same records.
Board board_of(const Standing& standing, const StandingOptions& options);

/// What stood beside a release (Finding::beside), red pins left out: "" where nothing unusual did.
std::string unusual(const std::string& beside, const Manifest& pack);

/// The observations that a verdict rests on, as far as they are there.
std::vector<Observation> cited_observations(const ledger::Archive& archive,
                                            const std::string& verdict);

/// The window of one tier: a kind of device.
struct TierWindow {
  std::string upstream, device;
  std::vector<ReleaseState> states;  ///< every locked release, oldest first
  std::vector<Interval> intervals;
  /// How many releases are in one of the given states.
  int64_t count(const std::string& state) const;
  /// Whether the newest locked release is in a failure class.
  bool is_open() const;
};
/// The windows of a pack, one for each upstream and kind of device that ever reproduced it. A
/// release whose every trigger was unsupported is "unsupported": it has no such code.
std::vector<TierWindow> windows_of(const Standing& standing, const Manifest& pack);

/// The source tier: what the digests in a release's record say of the files under test.
struct SourceState {
  std::string version;
  std::string state;  ///< "as_red_pin", "differs", "no_such_file"
};
/// Of every release with a record that holds digests of the files, oldest first.
std::vector<SourceState> sources_of(const Standing& standing, const Manifest& pack,
                                    const UpstreamUse& use);

/// "0.3.0-0.5.2 reduction_ignored, 0.6.3-0.8.1 wrong_gradients; first good 0.8.2".
std::string window_text(const TierWindow& window);
Json window_json(const TierWindow& window);

/// Releases whose tiers say different things, as lines for people: "0.8.1: cpu absent, H200
/// wrong_gradients". The source tier speaks where the files are those of the red pin.
std::vector<std::string> tier_disagreements(const std::vector<TierWindow>& windows,
                                            const std::vector<SourceState>& sources,
                                            const UpstreamUse& use);

/// "red (wrong_gradients) on H200 ×2, A100 ×1; green on cpu ×1": who says what of one place.
std::string votes_text(const std::vector<Votes>& votes);
/// The votes of unsigned imports at one place.
std::vector<Votes> votes_apart(const Board& board, const Place& place);
/// Disagreements of a pack on one upstream, one line each.
std::vector<std::string> disagreement_lines(const Standing& standing, const Manifest& pack,
                                            const UpstreamUse& use);

/// The windows of a pack on one upstream as a table, with what is missing and what disagrees.
std::string render_windows(const Standing& standing, const Manifest& pack, const UpstreamUse& use,
                           const std::vector<TierWindow>& windows);

}  // namespace patchbench
