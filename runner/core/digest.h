#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace patchbench {

/// SHA-256 of bytes, 64 lower-case hex digits.
std::string sha256_hex(std::string_view bytes);
/// The id git gives a file of these bytes: SHA-1 of "blob <len>\0" + bytes, 40 lower-case hex
/// digits.
std::string git_blob_id(std::string_view bytes);

/// SHA-256 of a file, "" if it cannot be read.
std::string file_sha256(const std::filesystem::path& file);

/// SHA-256 fed in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(std::string_view bytes);
  /// The digest of all that was fed; call once.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether text is exactly `length` lower-case hex digits (64: SHA-256, 40: a git id).
bool is_hex(std::string_view text, std::size_t length);

}  // namespace patchbench
