#pragma once
#include <functional>
#include <string>

#include "core/manifest.h"
#include "status/source_copies.h"
#include "status/verdict_table.h"

namespace patchbench {

/// The digests of a pack's code in one version or copy. `digest_of` gives the digest of an entry
/// of a file as FunctionTable::find does.
CodeDigests code_digests(
    const UpstreamUse& use,
    const std::function<std::string(const std::string& file, const std::string& entry)>& digest_of);

/// The same of a copy's files; none where a file cannot be read as Python.
CodeDigests code_digests(const UpstreamUse& use, const SourceCopy& copy);

/// The measured release that has this code, the newest of several; null where none is known to.
/// A hit needs the functions that carry the bug to be equal. A release without the bug needs all
/// the code of the files to be equal, for the cases ran more than these functions.
const TableRelease* same_code_as(const TableUpstream& upstream, const CodeDigests& code);

/// How functions compare with those of a release, file by file.
struct Compared {
  std::size_t num_same = 0, num_there = 0, num_named = 0;  ///< of the release's functions
  int num_others = 0;                                      ///< that differ
  std::string others;                                      ///< their names
  void add(const FunctionDigests::mapped_type& release, const FunctionDigests::mapped_type& own);
  /// Whether all are there as the release has them, and none that the release has not.
  bool is_whole() const { return num_named > 0 && num_others == 0; }
  /// How many are shared with a version, and the names of the others.
  std::string text(const std::string& version) const;
};

/// One line about code that no measured release has: the release that shares the most functions
/// with it, the newest of several, and which functions differ. "" where none is shared.
std::string nearest_code(const TableUpstream& upstream, const CodeDigests& code);

}  // namespace patchbench
