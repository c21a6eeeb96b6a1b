#include "status/same_code.h"

#include <optional>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/function_table.h"
#include "core/python_code.h"

namespace patchbench {
namespace {

// Of a file that is read as Python; the packs' own are at most 0.4 MiB.
constexpr std::size_t kMaxCodeBytes = 4 << 20;

}  // namespace

CodeDigests code_digests(const UpstreamUse& use,
                         const std::function<std::string(const std::string& file,
                                                         const std::string& entry)>& digest_of) {
  Json functions = Json::object(), files = Json::object();
  bool is_any = false;
  for (const auto& [file, names] : use.functions) {
    for (const std::string& name : names) {
      const std::string digest = digest_of(file, name);
      if (digest.empty()) return {};
      functions[file][name] = digest;
      is_any |= digest != FunctionTable::kAbsent;
    }
  }
  if (functions.empty()) return {};
  for (const std::string& file : use.code_files()) {
    files[file] = digest_of(file, FunctionTable::kWhole);
    if (files[file] == "") return {};
  }
  return {.functions = is_any ? sha256_hex(canonical_json(functions)) : FunctionTable::kAbsent,
          .whole = sha256_hex(canonical_json(files))};
}

CodeDigests code_digests(const UpstreamUse& use, const SourceCopy& copy) {
  FunctionTable table;
  for (const std::string& file : use.code_files()) {
    std::optional<PythonCode> code;
    if (const auto digest = copy.files.find(file); digest != copy.files.end()) {
      const std::optional<std::string> text = file_text(copy.root / file);
      if (!text || text->size() > kMaxCodeBytes || sha256_hex(*text) != digest->second) return {};
      try {
        code = python_code(*text, file);
      } catch (const Error&) {
        return {};
      }
    }
    const auto names = use.functions.find(file);
    table.take("", "", file, code ? &*code : nullptr,
               names == use.functions.end() ? std::vector<std::string>() : names->second);
  }
  return code_digests(use, [&](const std::string& file, const std::string& entry) {
    return table.find("", "", file, entry);
  });
}

const TableRelease* same_code_as(const TableUpstream& upstream, const CodeDigests& code) {
  const TableRelease *hit = nullptr, *right = nullptr;
  bool is_in_right_one = false;
  for (const TableRelease& one : upstream.releases) {
    const bool is_same = !code.functions.empty() && code.functions != FunctionTable::kAbsent &&
                         one.code.functions == code.functions && !one.state.is_open();
    if (!is_same) continue;
    if (one.state == BugStatus::kPresent) {
      hit = &one;
    } else {
      is_in_right_one = true;
      if (one.code.whole == code.whole) right = &one;
    }
  }
  if (hit != nullptr) return is_in_right_one ? nullptr : hit;
  return right;
}

}  // namespace patchbench
