#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace patchbench {

/// A file's bytes, also of one in /proc; nothing where it cannot be read, or is a folder.
std::optional<std::string> file_text(const std::filesystem::path& path);
/// The same; Error(kUsage) where it cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace patchbench
