#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace patchbench::cli {

/// Distribution (name as PEP 503 normalises it) -> version; "" where it is named without one.
using Installed = std::map<std::string, std::string>;

/// "Liger_Kernel" -> "liger-kernel".
std::string normalised(std::string_view name);

/// What an environment's dist-info folders say, nothing is run. `python` is a venv or an
/// interpreter in its bin folder. Error(kUsage) if no package folder belongs to it.
Installed installed_in(const std::filesystem::path& python);

/// What a lock file pins: a TOML lock of [[package]] tables (uv, poetry, pdm, pylock), a
/// Pipfile.lock, or a requirements file. Error(kUsage) if it is unreadable or names nothing.
Installed locked_in(const std::filesystem::path& lock);

/// What a requirements file names, the files that it includes too. Error(kUsage) as above.
Installed required_in(const std::filesystem::path& requirements);

}  // namespace patchbench::cli
