#pragma once
#include <string>
#include <vector>

#include "report/table.h"
#include "status/windows.h"

namespace patchbench {

/// Releases whose tiers say different things, as lines for people: "0.8.1: cpu absent, H200
/// wrong_gradients". The source tier speaks where the files equal the red pin's.
std::vector<std::string> tier_disagreements(const std::vector<TierWindow>& windows,
                                            const std::vector<SourceState>& sources,
                                            const UpstreamUse& use);

/// "red (wrong_gradients) on H200 ×2, A100 ×1; green on cpu ×1": who says what of one place.
std::string votes_text(const std::vector<Votes>& votes);
/// The votes of unsigned imports at one place.
std::vector<Votes> votes_apart(const Board& board, const Place& place);
/// Disagreements of a pack on one upstream, one line each.
std::vector<std::string> disagreement_lines(const VerdictIndex& verdicts, const Manifest& pack,
                                            const UpstreamUse& use);

/// The windows of a pack on one upstream as a table, with what is missing and what disagrees.
std::string render_windows(const VerdictIndex& verdicts, const Manifest& pack,
                           const UpstreamUse& use, const std::vector<TierWindow>& windows,
                           const report::Style& style);

}  // namespace patchbench
