#include "core/file_text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

std::string read_plain_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorCode::kUsage, path.string() + ": " + reason);
  };
  struct Closed {
    int descriptor;
    ~Closed() { ::close(descriptor); }
  };
  // O_NONBLOCK: a pipe without a writer opens at once, and files of the kernel that wait say
  // EAGAIN.
  const Closed file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  struct stat said {};
  if (file.descriptor < 0 || ::fstat(file.descriptor, &said) != 0)
    refuse("cannot be read as a file; check the path and its permissions");
  if (!S_ISREG(said.st_mode))
    refuse("is no regular file, but a pipe, a socket, a device or a folder");
  const auto size = static_cast<std::size_t>(said.st_size);
  if (size > max_bytes) refuse(fmt::format("holds more than {} MiB", max_bytes >> 20));
  std::string text(size + 1, '\0');
  std::size_t length = 0;
  ssize_t num_read = 1;
  while (num_read > 0 && length < text.size()) {
    num_read = ::read(file.descriptor, text.data() + length, text.size() - length);
    length += static_cast<std::size_t>(std::max<ssize_t>(num_read, 0));
  }
  if (num_read < 0) refuse("cannot be read as a file; check the path and its permissions");
  // A file of /proc says that it is empty.
  if (length > size) refuse("grows while it is read, or is no file on a disk");
  text.resize(length);
  return text;
}

}  // namespace patchbench
