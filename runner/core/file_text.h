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
/// The bytes of a regular file that lies on a disk: never waits for a pipe, a device or the kernel.
/// Error(kUsage) `<path>: <reason>` for something else, for a file that cannot be read, that is
/// larger than `max_bytes` or that grows meanwhile.
std::string read_plain_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace patchbench
