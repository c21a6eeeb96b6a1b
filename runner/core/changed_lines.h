#pragma once
#include <vector>

#include "core/edit.h"
#include "core/json.h"

namespace patchbench {

/// The lines of each Python file that edits, one after the other, made, moved or indented, numbered
/// as in the edited file: {path: {"lines": [...], "gaps": [...]}}. A gap is the line before which
/// lines of the release were taken away and none was put. Files that are deleted have none; a file
/// without either is left out. Needs no text of the release.
Json changed_lines(const std::vector<Edit>& edits);

}  // namespace patchbench
