#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/run_plan.h"

namespace patchbench {

/// Whether a pack has a subject of that name; where there is an edit, there may be mutants: wrong
/// edits.
bool has_subject(const Manifest& manifest, const Subject& subject);
/// Throws Error(kUsage) with did-you-mean where the pack has no such subject.
void check_subject(const Manifest& manifest, const Subject& subject);
/// The same where the subject names a mode that the pack's mitigation does not have.
void need_mode(const Manifest& manifest, const Subject& subject);
/// The same where the pack has no case of one of these names.
void check_cases(const Manifest& manifest, const std::vector<std::string>& cases);
/// The upstream of a pack by name, or its first; of `mitigated` the one that the mitigation acts
/// on, and no other. Throws Error(kUsage) with did-you-mean.
const UpstreamUse& upstream_use(const Manifest& manifest, const std::string& wanted,
                                const Subject& subject = SubjectKind::kUpstream);
/// The device asked for, "cpu", "cuda" or "cuda:N", checked, or the best that is here.
Device chosen_device(const std::optional<std::string>& wanted);
/// The seeds of "7" or "1-100". Throws Error(kUsage).
SeedRange seeds_of(const std::string& text);

}  // namespace patchbench
