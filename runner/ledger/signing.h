#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace patchbench::ledger {

/// One Ed25519 signature over a record's DSSE form, with the key that checks it.
struct Signature {
  std::string key_id;      ///< SHA-256 of the 32 bytes of the public key, 64 hex digits
  std::string public_key;  ///< base64
  std::string signature;   ///< base64
};

/// RFC 4648 base64 with padding.
std::string base64(std::string_view bytes);
/// Its inverse; nullopt for anything but its one canonical form.
std::optional<std::string> unbase64(std::string_view text);

/// What is signed for a record: the DSSE pre-authentication encoding of its RFC 8785 text.
std::string signed_bytes(std::string_view record_text);
/// The payload type of every envelope.
inline constexpr std::string_view kPayloadType = "application/vnd.in-toto+json";

/// An Ed25519 private key.
class SigningKey {
 public:
  /// Makes a key and writes it as PEM, readable by its owner alone. Throws Error(kUsage) if `path`
  /// exists.
  static SigningKey create(const std::filesystem::path& path);
  /// Throws Error(kUsage) `<path>: <reason>` if it is not an Ed25519 key in PEM.
  static SigningKey load(const std::filesystem::path& path);
  SigningKey(SigningKey&&) noexcept;
  ~SigningKey();
  Signature sign(std::string_view record_text) const;
  const std::string& key_id() const { return key_id_; }
  const std::string& public_key() const { return public_key_; }  ///< base64

 private:
  struct Key;
  explicit SigningKey(std::unique_ptr<Key> key);
  std::unique_ptr<Key> key_;
  std::string key_id_, public_key_;
};

/// Whether the signature holds over `record_text` and its key id is that of its public key.
bool holds(const Signature& signature, std::string_view record_text);

/// Key id -> public key (base64).
using TrustedKeys = std::map<std::string, std::string>;
/// Reads `{"keys": [{"key_id", "public_key", "name"}]}`. Empty path: no keys. Throws Error(kUsage)
/// `<path>: <reason>` if it is malformed or a key id is not that of its key.
TrustedKeys load_trusted_keys(const std::filesystem::path& path);
/// One entry of such a file.
Json trusted_key_entry(const SigningKey& key, const std::string& name);

}  // namespace patchbench::ledger
