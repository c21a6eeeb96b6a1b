#pragma once
#include <string>
#include <string_view>

#include "core/package_list.h"

namespace patchbench {

/// What a script installs: a shell script, a Dockerfile or Containerfile, the definition of an
/// Apptainer image. Read are `pip`, `uv`, `poetry`, `conda` and `mamba` with what they install, the
/// files that they take and variables that are set in the file; a word that is not known from the
/// file is unread, as are the packages of a base image.
bool is_install_script(std::string_view text);
PackageList installed_packages(std::string_view text, const std::string& file,
                               const ReadIncluded& read_included);

}  // namespace patchbench
