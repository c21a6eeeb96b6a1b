#pragma once
#include <string>
#include <string_view>

#include "core/package_list.h"

namespace patchbench {

/// The Python packages of a JSON text: an SBOM in CycloneDX, SPDX 2 or SPDX 3 JSON (as syft and
/// cdxgen write them), a Pipfile.lock, or what `pip list --format json` and `conda list --json`
/// write. A component without a package URL, or with one that is of
/// no package index, is taken for a package of its name whose version names no release.
/// Error(kUsage) `<file>[:<line>]: <reason>`.
PackageList json_packages(std::string_view text, const std::string& file);

}  // namespace patchbench
