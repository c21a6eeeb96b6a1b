#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace patchbench {

/// Reads one JSON object strictly: each key is asked for by name, `finish` refuses those that were
/// not. Every refusal is an Error(kUsage) `<where>: <reason>`. Keeps references to `object`: it
/// must outlive the reader.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string where);
  bool has(const std::string& key) const { return object_.contains(key); }
  const Json& value(const std::string& key);
  std::string text(const std::string& key);
  /// "" if the key is absent; refuses a key that is there and empty, so that each value has one
  /// form.
  std::string optional_text(const std::string& key);
  double number(const std::string& key);
  uint64_t count(const std::string& key, uint64_t max);
  bool boolean(const std::string& key);
  const Json& object(const std::string& key);
  /// {} if the key is absent; refuses an empty object that is written out.
  Json optional_object(const std::string& key);
  std::vector<std::string> texts(const std::string& key);
  /// Throws on a key that was not asked for, with did-you-mean.
  void finish() const;
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  const Json& object_;
  std::string where_;
  std::vector<std::string> known_;
};

}  // namespace patchbench
