#include "core/file_text.h"

#include <fstream>

#include "core/error.h"

namespace patchbench {

std::optional<std::string> file_text(const std::filesystem::path& path) {
  std::error_code error;
  std::ifstream file;
  // A device may have no end.
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::fifo)
    file.open(path, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  std::string text;
  constexpr std::streamsize kPart = 1 << 16;
  do {
    const std::size_t end = text.size();
    text.resize(end + kPart);
    file.read(text.data() + end, kPart);
    text.resize(end + static_cast<std::size_t>(file.gcount()));
  } while (file);
  if (file.bad()) return std::nullopt;
  return text;
}

std::string read_file(const std::filesystem::path& path) {
  if (std::optional<std::string> text = file_text(path)) return *std::move(text);
  throw Error(ErrorCode::kUsage,
              path.string() + ": cannot be read as a file; check the path and its permissions");
}

}  // namespace patchbench
