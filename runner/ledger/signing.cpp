#include "ledger/signing.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/fields.h"
#include "core/file_text.h"

namespace patchbench::ledger {

struct PkeyDeleter {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Pkey = std::unique_ptr<EVP_PKEY, PkeyDeleter>;

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPublicKeyBytes = 32, kSignatureBytes = 64;

struct BioDeleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct DigestDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using DigestContext = std::unique_ptr<EVP_MD_CTX, DigestDeleter>;

[[noreturn]] void crypto_failed(const std::string& what) {
  throw Error(ErrorCode::kInternal, "libcrypto could not " + what);
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string pem_of(EVP_PKEY* key) {
  const std::unique_ptr<BIO, BioDeleter> bio(BIO_new(BIO_s_mem()));
  if (!bio ||
      PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    crypto_failed("write the key");
  }
  char* data = nullptr;
  const auto length = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(length)};
}

void write_private(const fs::path& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) {
    const std::string reason =
        errno == EEXIST ? "exists already; a key is never overwritten" : std::strerror(errno);
    throw Error(ErrorCode::kUsage, path.string() + ": " + reason);
  }
  const bool is_written =
      ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(fd) == 0;
  if (::close(fd) != 0 || !is_written)
    throw Error(ErrorCode::kInternal, path.string() + ": cannot be written");
}

std::string key_id_of(std::string_view raw_public_key) { return sha256_hex(raw_public_key); }

/// A passphrase prompt would hang a program that nobody watches.
int no_passphrase(char*, int, int, void*) { return -1; }

}  // namespace

std::string base64(std::string_view bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes_of(bytes),
                                     static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(length));
  return out;
}

std::optional<std::string> unbase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out(text.size() / 4 * 3 + 1, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes_of(text),
                                     static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  out.resize(static_cast<std::size_t>(length) - padding);
  if (base64(out) != text) return std::nullopt;
  return out;
}

std::string signed_bytes(std::string_view record_text) {
  return "DSSEv1 " + std::to_string(kPayloadType.size()) + " " + std::string(kPayloadType) + " " +
         std::to_string(record_text.size()) + " " + std::string(record_text);
}

struct SigningKey::Key {
  Pkey pkey;
};

SigningKey::SigningKey(std::unique_ptr<Key> key) : key_(std::move(key)) {
  std::string raw(kPublicKeyBytes, '\0');
  std::size_t length = raw.size();
  if (EVP_PKEY_get_raw_public_key(key_->pkey.get(), reinterpret_cast<unsigned char*>(raw.data()),
                                  &length) != 1 ||
      length != kPublicKeyBytes) {
    crypto_failed("read the public key");
  }
  key_id_ = key_id_of(raw);
  public_key_ = base64(raw);
}

SigningKey::SigningKey(SigningKey&&) noexcept = default;
SigningKey::~SigningKey() = default;

SigningKey SigningKey::create(const fs::path& path) {
  auto key = std::make_unique<Key>(Key{Pkey(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"))});
  if (!key->pkey) crypto_failed("make an Ed25519 key");
  write_private(path, pem_of(key->pkey.get()));
  return SigningKey(std::move(key));
}

SigningKey SigningKey::load(const fs::path& path) {
  const std::string text = read_file(path);
  const std::unique_ptr<BIO, BioDeleter> bio(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  auto key = std::make_unique<Key>(
      Key{Pkey(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr))});
  if (!key->pkey || EVP_PKEY_get_id(key->pkey.get()) != EVP_PKEY_ED25519) {
    throw Error(ErrorCode::kUsage,
                path.string() +
                    ": no Ed25519 private key in PEM; make one with patchbench ledger keygen PATH");
  }
  return SigningKey(std::move(key));
}

Signature SigningKey::sign(std::string_view record_text) const {
  const std::string message = signed_bytes(record_text);
  const DigestContext context(EVP_MD_CTX_new());
  std::string signature(kSignatureBytes, '\0');
  std::size_t length = signature.size();
  if (!context ||
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_->pkey.get()) != 1 ||
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &length,
                     bytes_of(message), message.size()) != 1) {
    crypto_failed("sign a record");
  }
  return {key_id_, public_key_, base64(signature)};
}

bool holds(const Signature& signature, std::string_view record_text) {
  const auto raw_key = unbase64(signature.public_key), raw = unbase64(signature.signature);
  if (!raw_key || !raw || raw_key->size() != kPublicKeyBytes || raw->size() != kSignatureBytes)
    return false;
  if (key_id_of(*raw_key) != signature.key_id) return false;
  const Pkey key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, bytes_of(*raw_key), raw_key->size()));
  const DigestContext context(EVP_MD_CTX_new());
  const std::string message = signed_bytes(record_text);
  return key && context &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
         EVP_DigestVerify(context.get(), bytes_of(*raw), raw->size(), bytes_of(message),
                          message.size()) == 1;
}

TrustedKeys load_trusted_keys(const fs::path& path) {
  TrustedKeys keys;
  if (path.empty()) return keys;
  const std::string where = path.string();
  const Json document = parse_json(read_file(path), where);
  FieldReader fields(document, where);
  const Json& list = fields.value("keys");
  fields.finish();
  if (!list.is_array()) fields.fail("\"keys\" must be an array");
  for (const Json& item : list) {
    FieldReader entry(item, where);
    const std::string key_id = entry.text("key_id"), public_key = entry.text("public_key"),
                      name = entry.text("name");
    entry.finish();
    const auto raw = unbase64(public_key);
    if (!raw || raw->size() != kPublicKeyBytes)
      entry.fail("the public key of '" + shown(name) + "' must be 32 bytes in base64");
    if (key_id_of(*raw) != key_id)
      entry.fail("the key id of '" + shown(name) + "' is not that of its public key");
    keys[key_id] = public_key;
  }
  return keys;
}

Json trusted_key_entry(const SigningKey& key, const std::string& name) {
  return {{"key_id", key.key_id()}, {"public_key", key.public_key()}, {"name", name}};
}

}  // namespace patchbench::ledger
