#include "core/judged.h"

#include <initializer_list>

#include "core/digest.h"
#include "core/error.h"
#include "core/fields.h"
#include "core/manifest.h"

namespace patchbench {
namespace {

using Keys = std::initializer_list<const char*>;

void drop(Json& object, Keys keys) {
  for (const char* key : keys) {
    if (object.is_object()) object.erase(key);
  }
}

/// Drops keys of each value of an array or object; nothing where there is none.
void drop_in_each(Json& object, const char* name, Keys keys) {
  if (!object.is_object() || !object.contains(name)) return;
  for (Json& row : object[name]) drop(row, keys);
}

/// What `claim` runs, without the claim's words and where it came out.
Json tests_of(const Json& scope) {
  Json tests = Json::array();
  for (const Json& row : scope) {
    if (row.contains("test"))
      tests.push_back({{"test", row["test"]}, {"cases", row.value("cases", Json::array())}});
  }
  return tests;
}

}  // namespace

Json judged_part(Json manifest) {
  manifest = with_whole_cases(std::move(manifest));
  drop(manifest,
       {"number", "title", "waivers", "filing", "lifecycle", "trigger", "requires", "impact"});
  drop_in_each(manifest, "upstreams", {"functions", "not_python", "code_words", "test_releases"});
  drop_in_each(manifest, "classes", {"meaning"});
  drop_in_each(manifest, "bounds", {"why"});
  drop_in_each(manifest, "waived_regions", {"reason"});
  manifest.erase("waived_lines");
  manifest.erase("waived_arguments");
  if (manifest.contains("scenarios") && manifest["scenarios"].contains("waived")) {
    // In the list since they exist: where they are waived, the cases are those of before.
    drop(manifest["scenarios"]["waived"], {"copied", "tied", "evaluated"});
    for (Json& why : manifest["scenarios"]["waived"]) {
      if (why.is_string()) why = true;
      if (why.is_object())
        for (Json& on_device : why) on_device = true;
    }
  }
  if (manifest.contains("scope")) manifest["scope"] = tests_of(manifest["scope"]);
  if (manifest.contains("explore")) {
    Json& explore = manifest["explore"];
    drop(explore, {"seconds"});
    for (Json& space : explore.at("spaces")) {
      if (space.contains("left")) space["left"] = true;
    }
  }
  if (manifest.contains("mitigation")) {
    Json& mitigation = manifest["mitigation"];
    drop(mitigation, {"exactness"});
    drop_in_each(mitigation, "leaves", {"why"});
    if (mitigation.contains("not_needed")) drop(mitigation["not_needed"], {"why", "records"});
  }
  return manifest;
}

std::string judged_digest(Json manifest) {
  return sha256_hex(canonical_json(judged_part(std::move(manifest))));
}

JudgedDigests JudgedDigests::parse(std::string_view text, const std::string& path) {
  JudgedDigests digests;
  const Json document = parse_json(text, path);
  FieldReader table(document, path);
  const auto checked = [&](const Json& digest) {
    if (!digest.is_string() || !is_hex(digest.get<std::string>(), 64))
      table.fail(shown(digest.dump()) + " is not 64 lower-case hex digits");
    return digest.get<std::string>();
  };
  for (const Json& row : table.value("judged")) {
    if (!row.is_array() || row.size() < 2)
      table.fail("a row of \"judged\" has two digests or more");
    for (size_t i = 1; i < row.size(); ++i) digests.add(checked(row[i]), checked(row[0]));
  }
  for (const std::string& manifest : table.texts("unknown")) checked(manifest);
  table.finish();
  return digests;
}

void JudgedDigests::add(const std::string& manifest_sha256, const std::string& judged) {
  judged_[manifest_sha256] = judged;
}

const std::string& JudgedDigests::of(const std::string& manifest_sha256) const {
  const auto known = judged_.find(manifest_sha256);
  return known == judged_.end() ? manifest_sha256 : known->second;
}

bool JudgedDigests::is_same(const std::string& one, const std::string& other) const {
  return of(one) == of(other);
}

}  // namespace patchbench
