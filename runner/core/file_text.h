#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace patchbench {

/// The bytes of a file, also of one in /proc, or of a pipe; nothing where it cannot be read, or is
/// something else.
std::optional<std::string> file_text(const std::filesystem::path& path);
/// The same; Error(kUsage) where it cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace patchbench
