#pragma once
#include <functional>
#include <string>

#include "core/manifest.h"
#include "status/source_copies.h"
#include "status/verdict_table.h"

namespace patchbench {

/// The digest of a function, "absent" where it is not in `functions`.
std::string function_digest(const FunctionDigests& functions, const std::string& file,
                            const std::string& name);

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

/// How many functions a version shares with the code, and the names of the others.
std::string shared_text(const std::string& version, std::size_t num_same,
                        const std::string& others);

/// One line about code that no measured release has: the release that shares the most functions
/// with it, the newest of several, and which functions differ. "" where none is shared.
std::string nearest_code(const TableUpstream& upstream, const CodeDigests& code);

}  // namespace patchbench
