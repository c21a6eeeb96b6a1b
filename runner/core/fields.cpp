#include "core/fields.h"

#include <algorithm>

#include "core/error.h"
#include "core/slug.h"

namespace patchbench {

FieldReader::FieldReader(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail("an object should stand here");
}

void FieldReader::fail(const std::string& reason) const {
  throw Error(ErrorCode::kUsage, where_ + ": " + reason);
}

const Json& FieldReader::value(const std::string& key) {
  known_.push_back(key);
  const auto found = object_.find(key);
  if (found == object_.end()) fail("key \"" + key + "\" is missing");
  return *found;
}

std::string FieldReader::text(const std::string& key) {
  const Json& found = value(key);
  if (!found.is_string()) fail("\"" + key + "\" must be a string");
  return found.get<std::string>();
}

std::string FieldReader::optional_text(const std::string& key) {
  known_.push_back(key);
  if (!has(key)) return "";
  std::string found = text(key);
  if (found.empty()) fail("\"" + key + "\" is empty; leave it out");
  return found;
}

double FieldReader::number(const std::string& key) {
  const Json& found = value(key);
  if (!found.is_number()) fail("\"" + key + "\" must be a number");
  return found.get<double>();
}

uint64_t FieldReader::count(const std::string& key, uint64_t max) {
  const Json& found = value(key);
  // A whole number may be held signed or unsigned; which one depends on who made the document.
  const bool is_count =
      found.is_number_unsigned() || (found.is_number_integer() && found.get<int64_t>() >= 0);
  if (!is_count || found.get<uint64_t>() > max) {
    fail("\"" + key + "\" must be a whole number of at most " + std::to_string(max));
  }
  return found.get<uint64_t>();
}

bool FieldReader::boolean(const std::string& key) {
  const Json& found = value(key);
  if (!found.is_boolean()) fail("\"" + key + "\" must be true or false");
  return found.get<bool>();
}

const Json& FieldReader::object(const std::string& key) {
  const Json& found = value(key);
  if (!found.is_object()) fail("\"" + key + "\" must be an object");
  return found;
}

Json FieldReader::optional_object(const std::string& key) {
  known_.push_back(key);
  if (!has(key)) return Json::object();
  Json found = object(key);
  if (found.empty()) fail("\"" + key + "\" is empty; leave it out");
  return found;
}

std::vector<std::string> FieldReader::texts(const std::string& key) {
  const Json& found = value(key);
  if (!found.is_array()) fail("\"" + key + "\" must be an array of strings");
  std::vector<std::string> out;
  for (const Json& item : found) {
    if (!item.is_string()) fail("\"" + key + "\" must be an array of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

void FieldReader::finish() const {
  for (const auto& [key, unused] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      fail("unknown key \"" + shown(key) + "\"" + did_you_mean(shown(key), known_));
    }
  }
}

}  // namespace patchbench
