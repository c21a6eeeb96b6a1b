#include "core/function_table.h"

#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "core/split.h"

namespace patchbench {

FunctionTable FunctionTable::parse(std::string_view text, const std::string& where) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorCode::kUsage, where + ": " + reason);
  };
  const auto rows = [&](const Json& object) {
    if (!object.is_object()) refuse("upstreams, files and entries are objects");
    return object.items();
  };
  FunctionTable table;
  const Json document = parse_json(text, where);
  for (const auto& [upstream, files] : rows(document)) {
    for (const auto& [file, entries] : rows(files)) {
      for (const auto& [entry, digests] : rows(entries)) {
        for (const auto& [digest, versions] : rows(digests)) {
          if (digest != kAbsent && !is_hex(digest, 64)) refuse("a digest has 64 hex digits");
          if (!versions.is_string()) refuse("the versions of a digest are one text");
          for (const std::string& version : split(versions.get<std::string>(), " "))
            table.upstreams_[upstream][file][entry][version] = digest;
        }
      }
    }
  }
  return table;
}

std::string FunctionTable::text() const {
  Json document = Json::object();
  for (const auto& [upstream, files] : upstreams_) {
    for (const auto& [file, entries] : files) {
      for (const auto& [entry, versions] : entries) {
        Json& digests = document[upstream][file][entry] = Json::object();
        for (const auto& [version, digest] : versions) {
          const std::string before = digests.value(digest, "");
          digests[digest] = before + (before.empty() ? "" : " ") + version;
        }
      }
    }
  }
  return document.dump(1) + "\n";
}

void FunctionTable::take(const std::string& upstream, const std::string& version,
                         const std::string& file, const PythonCode* code,
                         const std::vector<std::string>& functions) {
  Entries& entries = upstreams_[upstream][file];
  entries[kWhole][version] = code == nullptr ? kAbsent : code->whole;
  entries[kModuleLevel][version] = code == nullptr ? kAbsent : code->module_level;
  for (const std::string& name : functions) {
    const bool is_there = code != nullptr && code->functions.contains(name);
    entries[name][version] = is_there ? code->functions.at(name) : kAbsent;
  }
}

std::string FunctionTable::find(const std::string& upstream, const std::string& version,
                                const std::string& file, const std::string& entry) const {
  const auto files = upstreams_.find(upstream);
  if (files == upstreams_.end()) return "";
  const auto entries = files->second.find(file);
  if (entries == files->second.end()) return "";
  const auto versions = entries->second.find(entry);
  if (versions == entries->second.end()) return "";
  const auto digest = versions->second.find(version);
  return digest == versions->second.end() ? "" : digest->second;
}

void FunctionTable::replace(const std::string& upstream, const FunctionTable& other) {
  const auto at = other.upstreams_.find(upstream);
  if (at != other.upstreams_.end()) upstreams_[upstream] = at->second;
}

std::vector<std::string> FunctionTable::differences(const FunctionTable& read) const {
  std::vector<std::string> found;
  for (const auto& [upstream, files] : read.upstreams_) {
    for (const auto& [file, entries] : files) {
      for (const auto& [entry, versions] : entries) {
        for (const auto& [version, digest] : versions) {
          if (find(upstream, version, file, entry) != digest)
            found.push_back(file + " " + entry + ": " + version);
        }
      }
    }
  }
  return found;
}

}  // namespace patchbench
