#pragma once
#include <optional>
#include <string>

#include "core/json.h"
#include "ledger/signing.h"

namespace patchbench::ledger {

/// A DSSE envelope around an in-toto statement's text with one signature, in the RFC 8785 form.
std::string envelope(const std::string& text, const std::string& key_id,
                     const std::string& signature);

/// What an envelope holds.
struct Opened {
  std::string text;                    ///< the payload
  std::optional<Signature> signature;  ///< the first one by a trusted key, which holds
  int num_unchecked = 0;               ///< signatures by keys that are not trusted
};
/// Strict. Throws Error(kUsage) `<where>: <reason>` for anything but an envelope of ours or one of
/// its form, Error(kIntegrity) if a signature by a trusted key does not hold.
Opened open_envelope(const Json& json, const TrustedKeys& trusted, const std::string& where);

/// Checks that a document is an in-toto Statement v1: type, subjects with digests, predicate type.
/// Throws Error(kUsage) `<where>: <reason>`.
void check_statement(const Json& statement, const std::string& where);

}  // namespace patchbench::ledger
