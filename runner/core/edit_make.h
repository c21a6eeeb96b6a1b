#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/edit.h"

namespace patchbench {

/// The ed commands that turn `base` into `wanted` (nullopt: no such file). Lines of the base never
/// become text of the edit where a command can carry them: runs that differ only by their
/// indentation become '>' / '<', blocks of two lines or more that stand elsewhere become 'm' (and
/// '>' / '<' where they are also re-indented). Throws Error(kUsage) for a binary file (a NUL byte)
/// and where both are absent; deterministic.
FileEdit make_file_edit(const std::string& path, std::optional<std::string_view> base,
                        std::optional<std::string_view> wanted);

/// Text of the edit that the base has too (three lines or more in a row, indentation aside):
/// what a command could not carry, e.g. a block that was copied. One entry per run: "<path>: <n>
/// lines as at base line <k>".
std::vector<std::string> copied_runs(const FileEdit& edit, std::string_view base);

}  // namespace patchbench
