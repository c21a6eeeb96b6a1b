#pragma once
#include <map>
#include <string>
#include <string_view>

#include "core/json.h"

namespace patchbench {

/// The part of a manifest that can change a verdict: expanded cases, classes in their order,
/// bounds, spaces, subjects, what claims test. Left out are prose, what only `scan` reads, filing
/// and lifecycle. What is not known here counts as judged. `manifest`: the document, of any date.
Json judged_part(Json manifest);
/// SHA-256 of the RFC 8785 form of judged_part: two manifests with the same one ask the same of
/// every release.
std::string judged_digest(Json manifest);

/// Judged digests by the digest of the manifest's bytes: the tree's manifests, and the older ones
/// that records name (reports/evidence/judged.json, made from git's history by judged_test).
class JudgedDigests {
 public:
  /// {"judged": [[judged digest, manifest digests…], …], "unknown": [manifest digests]}. Throws
  /// Error(kUsage) `<path>: <reason>`.
  static JudgedDigests parse(std::string_view text, const std::string& path);
  void add(const std::string& manifest_sha256, const std::string& judged);
  /// The judged digest; of bytes that nobody knows the digest itself, so that they are compared by
  /// bytes.
  const std::string& of(const std::string& manifest_sha256) const;
  /// Whether runs under both manifests answer the same question.
  bool is_same(const std::string& one, const std::string& other) const;

 private:
  std::map<std::string, std::string, std::less<>> judged_;
};

}  // namespace patchbench
