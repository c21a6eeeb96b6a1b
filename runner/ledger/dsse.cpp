#include "ledger/dsse.h"

#include <algorithm>

#include "core/error.h"
#include "core/fields.h"

namespace patchbench::ledger {

std::string envelope(const std::string& text, const std::string& key_id,
                     const std::string& signature) {
  return canonical_json({{"payload", base64(text)},
                         {"payloadType", kPayloadType},
                         {"signatures", Json::array({{{"keyid", key_id}, {"sig", signature}}})}});
}

Opened open_envelope(const Json& json, const TrustedKeys& trusted, const std::string& where) {
  FieldReader fields(json, where);
  const std::string payload = fields.text("payload"), type = fields.text("payloadType");
  const Json& signatures = fields.value("signatures");
  fields.finish();
  if (type != kPayloadType) fields.fail("unknown payloadType '" + shown(type) + "'");
  if (!signatures.is_array() || signatures.empty())
    fields.fail("\"signatures\" must be an array of at least one");
  const auto text = unbase64(payload);
  if (!text) fields.fail("\"payload\" is not base64");
  Opened opened{.text = *text, .signature = {}};
  for (const Json& item : signatures) {
    FieldReader entry(item, where);
    const std::string key_id = entry.text("keyid"), bytes = entry.text("sig");
    entry.finish();
    const auto key = trusted.find(key_id);
    if (key == trusted.end()) {
      ++opened.num_unchecked;
      continue;
    }
    const Signature signature{key_id, key->second, bytes};
    if (!holds(signature, opened.text)) {
      throw Error(ErrorCode::kIntegrity,
                  where + ": the signature by key " + key_id.substr(0, 16) + " does not hold");
    }
    if (!opened.signature) opened.signature = signature;
  }
  return opened;
}

void check_statement(const Json& statement, const std::string& where) {
  FieldReader fields(statement, where);
  if (fields.text("_type") != "https://in-toto.io/Statement/v1")
    fields.fail("\"_type\" is not https://in-toto.io/Statement/v1");
  fields.text("predicateType");
  fields.object("predicate");
  const Json& subjects = fields.value("subject");
  fields.finish();
  if (!subjects.is_array() || subjects.empty())
    fields.fail("\"subject\" must be an array of at least one");
  for (const Json& subject : subjects) {
    FieldReader entry(subject, where);
    entry.optional_text("name");
    const Json digests = entry.object("digest");
    entry.finish();
    if (digests.empty()) entry.fail("a subject needs a digest");
  }
}

}  // namespace patchbench::ledger
