#pragma once
#include <filesystem>
#include <optional>
#include <vector>

#include "core/edit.h"

namespace patchbench {

/// The edit against the release that `mutant`, an edit over its fix (`Over:` in edit.h), stands
/// for: the fix without the hunks of `Without:`, then the mutant's scripts over it. `fix`: the
/// edits that `Over:` names, in that order, each over the release after those before it. An edit
/// without `Over:` is returned as it is. Needs no upstream text: after a script a file is a list of
/// ranges of the release and of our lines. Throws Error(kUsage) `<name>: <reason>`: a hunk number
/// that the fix does not have, a line that is not there, lines moved, a Blob that is not the fix's,
/// hunks left out of a file that has no section.
Edit expand_edit(const Edit& mutant, const std::vector<Edit>& fix);

/// The edit over the whole `series`, or over one edit of it, for which expand_edit gives `mutant`
/// back and whose text has the fewest lines; none where that is not shorter than `mutant`.
std::optional<Edit> over_fix(const Edit& mutant, const std::vector<Edit>& series);

/// An .edit file; a mutant over its fix is expanded with the edits of the same folder. Throws
/// Error(kUsage) as parse_edit and expand_edit do, and where `Over:` names no such edit.
Edit load_edit(const std::filesystem::path& file);

}  // namespace patchbench
