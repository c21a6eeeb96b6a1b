#pragma once
#include <filesystem>

#include "cli/commands.h"

namespace patchbench::cli {

/// The named list of trusted keys, else the user's, if there is one; else "".
std::filesystem::path trusted_keys_file(const std::filesystem::path& named);

}  // namespace patchbench::cli
