#include "status/same_code.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/function_table.h"
#include "core/pin.h"
#include "core/python_code.h"

namespace patchbench {
namespace {

// Of a file that is read as Python; the packs' own are at most 0.4 MiB.
constexpr std::size_t kMaxCodeBytes = 4 << 20;

}  // namespace

CodeDigests code_digests(const UpstreamUse& use,
                         const std::function<std::string(const std::string& file,
                                                         const std::string& entry)>& digest_of) {
  FunctionDigests functions;
  Json files = Json::object();
  for (const auto& [file, names] : use.functions) {
    for (const std::string& name : names) {
      functions[file][name] = digest_of(file, name);
      if (functions[file][name].empty()) return {};
    }
  }
  if (functions.empty()) return {};
  for (const std::string& file : use.code_files()) {
    files[file] = digest_of(file, FunctionTable::kWhole);
    if (files[file] == "") return {};
  }
  return {.functions = std::move(functions), .whole = sha256_hex(canonical_json(files))};
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
  if (!code.has_functions()) return nullptr;
  for (const TableRelease& one : upstream.releases) {
    if (one.state.is_open() || one.code.functions != code.functions) continue;
    if (one.state == BugStatus::kPresent) {
      if (hit == nullptr || !one.is_commit()) hit = &one;
    } else {
      is_in_right_one = true;
      if (one.code.whole == code.whole) right = &one;
    }
  }
  if (hit != nullptr) return is_in_right_one ? nullptr : hit;
  return right;
}

void Compared::add(const FunctionDigests::mapped_type& release,
                   const FunctionDigests::mapped_type& own) {
  for (const auto& [name, digest] : release) {
    const auto at = own.find(name);
    const bool is_there = at != own.end(), is_named = digest != FunctionTable::kAbsent;
    num_named += is_named;
    num_there += is_there && is_named;
    const bool is_same = is_there ? at->second == digest : !is_named;
    num_same += is_same && is_named;
    if (!is_same) others += (num_others++ == 0 ? "" : ", ") + name;
  }
}

std::string Compared::text(const std::string& version) const {
  if (others.empty())
    return fmt::format("its functions are those of {}, and other code is around them", version);
  return fmt::format("{} of its functions {} of {}; these differ: {}", num_same,
                     num_same == 1 ? "is that" : "are those", version, others);
}

std::string nearest_code(const TableUpstream& upstream, const CodeDigests& code) {
  std::tuple<std::size_t, int, bool> best;  // equal, fewer that differ, a release
  std::string text;
  for (const TableRelease& one : upstream.releases) {
    if (one.state.is_open()) continue;
    Compared all;
    for (const auto& [file, functions] : one.code.functions) {
      const auto own = code.functions.find(file);
      all.add(functions,
              own == code.functions.end() ? FunctionDigests::mapped_type() : own->second);
    }
    const std::tuple rank(all.num_same, -all.num_others, !one.is_commit());
    if (all.num_same == 0 || (!text.empty() && rank < best)) continue;
    best = rank;
    text = all.text(short_version(one.version));
  }
  return text;
}

}  // namespace patchbench
