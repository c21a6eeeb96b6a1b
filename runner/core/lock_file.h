#pragma once
#include <string>
#include <string_view>

#include "core/json.h"
#include "core/package_list.h"

namespace patchbench {

/// What a TOML lock of [[package]] or [[packages]] tables pins: uv (every fork), poetry, pdm,
/// pylock. Error(kUsage) `<file>:<line>: <reason>`.
PackageList toml_lock_packages(std::string_view text, const std::string& file);

/// What a Pipfile.lock pins, in every category. Error(kUsage) as above.
PackageList pipfile_packages(const Json& document, const JsonLines& lines, const std::string& file);

}  // namespace patchbench
