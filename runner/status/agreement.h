#pragma once
#include <string>
#include <vector>

#include "report/table.h"
#include "status/windows.h"

namespace patchbench {

/// Releases whose tiers say different things, as lines for people: "0.8.1: cpu absent, H200
/// wrong_gradients". The source tier speaks where the files equal the red pin's.
std::vector<std::string> device_class_disagreements(const std::vector<DeviceClassWindow>& windows,
                                                    const std::vector<SourceState>& sources,
                                                    const UpstreamUse& use);

/// "red (wrong_gradients) on H200 ×2, A100 ×1; green on cpu ×1": the answers to one key.
std::string agreement_text(const std::vector<Agreement>& agreements);
/// The answers of unsigned imports to one key.
std::vector<Agreement> unsigned_agreements(const VerdictIndex& verdict_index,
                                           const VerdictKey& key);
/// Disagreements of a pack on one upstream, one line each.
std::vector<std::string> disagreement_lines(const PackRecords& verdicts, const Manifest& pack,
                                            const UpstreamUse& use);

/// The windows of a pack on one upstream as a table, with what is missing and what disagrees.
std::string render_windows(const PackRecords& verdicts, const Manifest& pack,
                           const UpstreamUse& use, const std::vector<DeviceClassWindow>& windows,
                           const report::Style& style);

}  // namespace patchbench
