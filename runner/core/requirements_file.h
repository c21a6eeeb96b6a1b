#pragma once
#include <string>
#include <string_view>

#include "core/package_list.h"

namespace patchbench {

/// What a pip requirements file names, the files that it includes too. A file in which each line is
/// pinned lists all that there is, as `pip freeze` writes it; of another one `unread` says so.
/// Error(kUsage) `<file>:<line>: <reason>` for a line that is not a requirement, and for more than
/// 100 included files.
PackageList required_packages(std::string_view text, const std::string& file,
                              const ReadIncluded& read_included);

}  // namespace patchbench
