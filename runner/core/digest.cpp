#include "core/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"

namespace patchbench {

struct DigestContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using DigestContext = std::unique_ptr<EVP_MD_CTX, DigestContextDeleter>;

namespace {

[[noreturn]] void fail() {
  throw Error(ErrorCode::kInternal, "libcrypto could not compute a digest");
}

DigestContext start(const EVP_MD* algorithm) {
  DigestContext context(EVP_MD_CTX_new());
  if (!context || EVP_DigestInit_ex(context.get(), algorithm, nullptr) != 1) fail();
  return context;
}

void feed(EVP_MD_CTX* context, std::string_view bytes) {
  if (EVP_DigestUpdate(context, bytes.data(), bytes.size()) != 1) fail();
}

std::string finish(EVP_MD_CTX* context) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(context, digest, &length) != 1) fail();
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (unsigned int i = 0; i < length; ++i) {
    out += kHex[digest[i] >> 4];
    out += kHex[digest[i] & 15];
  }
  return out;
}

}  // namespace

struct Sha256::State {
  DigestContext context = start(EVP_sha256());
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
void Sha256::update(std::string_view bytes) { feed(state_->context.get(), bytes); }
std::string Sha256::hex() { return finish(state_->context.get()); }

std::string sha256_hex(std::string_view bytes) {
  Sha256 digest;
  digest.update(bytes);
  return digest.hex();
}

std::string file_sha256(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return "";
  Sha256 digest;
  std::string chunk(1 << 20, '\0');
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0)
    digest.update(std::string_view(chunk).substr(0, static_cast<std::size_t>(in.gcount())));
  return digest.hex();
}

std::string git_blob_id(std::string_view bytes) {
  const DigestContext context = start(EVP_sha1());
  std::string header = "blob " + std::to_string(bytes.size());
  header += '\0';
  feed(context.get(), header);
  feed(context.get(), bytes);
  return finish(context.get());
}

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace patchbench
