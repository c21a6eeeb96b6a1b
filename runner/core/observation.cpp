#include "core/observation.h"

#include <array>

#include "core/device.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/fields.h"
#include "core/slug.h"

namespace patchbench {
namespace {

constexpr std::size_t kMaxReasonBytes = 400;
constexpr uint64_t kMaxSeed = uint64_t{1} << 53;
constexpr std::string_view kNoEffectStart = "corruption ";
constexpr std::array<const char*, 5> kCaseStatusNames = {"present", "absent", "unjudged",
                                                         "unsupported", "unresolved"};

/// What an observation is called in the messages about it, as far as it can be told.
std::string where_of(const Json& json) {
  std::string where = "observation";
  if (!json.is_object()) return where;
  for (const char* key : {"subject", "case"}) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_string()) where += " " + shown(found->get<std::string>());
  }
  return where;
}

Json measure_json(const Measure& m) {
  return {
      m.tensor, m.layer, number_or_name(m.got), number_or_name(m.plain), number_or_name(m.limit),
      m.pass,   m.where};
}

Measure measure_from(const Json& json, const FieldReader& fields) {
  if (!json.is_array() || json.size() != 7) {
    fields.fail("a measure must be [tensor, layer, got, plain, limit, pass, where]");
  }
  const bool has_types =
      json[0].is_string() && json[1].is_string() && json[5].is_boolean() && json[6].is_string();
  if (!has_types || json[0].get_ref<const std::string&>().empty()) {
    fields.fail("a measure must be [tensor, layer, got, plain, limit, pass, where]");
  }
  Measure m{.tensor = json[0].get<std::string>(),
            .layer = json[1].get<std::string>(),
            .got = number_from(json[2]),
            .plain = number_from(json[3]),
            .limit = number_from(json[4]),
            .pass = json[5].get<bool>(),
            .where = json[6].get<std::string>()};
  const bool is_word =
      m.layer.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
  if (m.layer.empty() || !is_word) fields.fail("'" + shown(m.layer) + "' is no layer's name");
  return m;
}

std::string digest_from(FieldReader& fields, const std::string& key) {
  std::string digest = fields.optional_text(key);
  if (!digest.empty() && !is_hex(digest, 64))
    fields.fail("\"" + key + "\" must be 64 lower-case hex digits");
  return digest;
}

void check_consistent(const Observation& o, const FieldReader& fields) {
  if (o.subject.text().empty() || o.case_name.empty())
    fields.fail("\"subject\" and \"case\" must not be empty");
  if (!Device::parse(o.device))
    fields.fail("\"device\" must be cpu or cuda:N, got '" + shown(o.device) + "'");
  if ((o.status == CaseStatus::kPresent) == o.failure_class.empty()) {
    fields.fail("\"class\" stands where \"seen\" is \"present\" and only there");
  }
  if (o.status != CaseStatus::kPresent && o.status != CaseStatus::kAbsent && o.reason.empty()) {
    fields.fail("\"seen\" is \"" + case_status_name(o.status) + "\", which needs a \"reason\"");
  }
  if ((o.role == CaseRole::kDrawn) == o.drawn.empty())
    fields.fail("\"drawn\" stands where \"role\" is \"drawn\" and only there");
  if (o.reason != one_line(o.reason, kMaxReasonBytes))
    fields.fail("\"reason\" must be one line of at most 400 bytes");
}

}  // namespace

std::string no_effect_reason(const std::string& corruption) {
  return std::string(kNoEffectStart) + corruption + " changes nothing here";
}

const Measure* Observation::failing() const {
  const auto found =
      std::find_if(measures.begin(), measures.end(), [](const Measure& m) { return !m.pass; });
  return found == measures.end() ? nullptr : &*found;
}

std::optional<double> Observation::number(const std::string& name) const {
  const Json numbers = self_reported.is_object() ? self_reported.value("numbers", Json()) : Json();
  const auto found = numbers.find(name);
  if (found == numbers.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string case_status_name(CaseStatus status) {
  return kCaseStatusNames.at(static_cast<std::size_t>(status));
}

CaseStatus case_status_from(std::string_view name) {
  for (std::size_t i = 0; i < kCaseStatusNames.size(); ++i) {
    if (name == kCaseStatusNames.at(i)) return static_cast<CaseStatus>(i);
  }
  const std::string word = shown(name);
  throw Error(ErrorCode::kUsage,
              "'" + word + "' is nothing that can be seen" +
                  did_you_mean(word, {kCaseStatusNames.begin(), kCaseStatusNames.end()}));
}

std::string one_line(std::string_view text, std::size_t max_bytes) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080..U+009F are controls too (C2 80..C2 9F): U+009B opens an escape sequence on some
    // terminals.
    const bool is_c1 =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (is_c1) ++i;
    out += is_c1 || byte < 0x20 || byte == 0x7f ? ' ' : text[i];
  }
  if (out.size() <= max_bytes) return out;
  constexpr std::string_view kEllipsis = "…";
  std::size_t end = max_bytes - kEllipsis.size();
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) --end;
  return out.substr(0, end).append(kEllipsis);
}

Json Observation::to_json() const {
  Json json = {{"slug", slug},
               {"subject", subject.text()},
               {"case", case_name},
               {"role", role_name(role)},
               {"device", device},
               {"seed", seed},
               {"seen", case_status_name(status)}};
  if (repeat != 0) json["repeat"] = repeat;
  if (!failure_class.empty()) json["class"] = failure_class;
  if (!reason.empty()) json["reason"] = one_line(reason, kMaxReasonBytes);
  if (!counts) json["counts"] = false;
  json["measures"] = Json::array();
  for (const Measure& m : measures) json["measures"].push_back(measure_json(m));
  if (!inputs_sha256.empty()) json["inputs_sha256"] = inputs_sha256;
  if (!outputs_sha256.empty()) json["outputs_sha256"] = outputs_sha256;
  if (!self_reported.empty()) json["self_reported"] = self_reported;
  if (!outside.empty()) json["outside"] = outside;
  if (!drawn.empty()) json["drawn"] = drawn;
  return json;
}

Observation Observation::from_json(const Json& json) {
  FieldReader fields(json, where_of(json));
  Observation o;
  try {
    o.slug = Slug(fields.text("slug")).str();
    o.subject = fields.text("subject");
    o.case_name = fields.text("case");
    o.role = role_from(fields.text("role"));
    o.device = fields.text("device");
    o.seed = fields.count("seed", kMaxSeed);
    o.status = case_status_from(fields.text("seen"));
    if (fields.has("repeat")) {
      o.repeat = static_cast<int>(fields.count("repeat", 1'000'000));
      if (o.repeat == 0) fields.fail("\"repeat\" is 0; leave it out");
    }
    o.failure_class = fields.optional_text("class");
    o.reason = fields.optional_text("reason");
    if (o.status == CaseStatus::kUnresolved && o.reason.starts_with(kNoEffectStart))
      o.unresolved = Unresolved::kNoEffect;
    if (fields.has("counts")) {
      o.counts = fields.boolean("counts");
      if (o.counts) fields.fail("\"counts\" is true; leave it out");
    }
    const Json& measures = fields.value("measures");
    if (!measures.is_array()) fields.fail("\"measures\" must be an array");
    for (const Json& m : measures) o.measures.push_back(measure_from(m, fields));
    o.inputs_sha256 = digest_from(fields, "inputs_sha256");
    o.outputs_sha256 = digest_from(fields, "outputs_sha256");
    o.self_reported = fields.optional_object("self_reported");
    o.outside = fields.optional_object("outside");
    o.drawn = fields.optional_object("drawn");
  } catch (const Error& e) {
    const std::string where = where_of(json);
    throw std::string_view(e.what()).starts_with(where) ? e : e.in(where);
  }
  check_consistent(o, fields);
  fields.finish();
  return o;
}

}  // namespace patchbench
