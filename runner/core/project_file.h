#pragma once
#include <string>
#include <string_view>

#include "core/package_list.h"

namespace patchbench {

/// What a pyproject.toml asks for: dependencies and their groups of the standard tables, of Poetry,
/// of PDM, of Hatch's environments and of Pixi, and a pixi.toml; a source of uv's takes the place
/// of the index. Error(kUsage) `<file>:<line>:
/// <reason>`.
bool is_project(std::string_view text);
PackageList project_packages(std::string_view text, const std::string& file,
                             const ReadIncluded& read_included);

/// The same of a setup.cfg: install_requires, setup_requires, tests_require and the extras.
bool is_setup(std::string_view text);
PackageList setup_packages(std::string_view text, const std::string& file,
                           const ReadIncluded& read_included);

/// The texts of a setup.py that are requirements: with a version anywhere, without one in a list
/// that is named for them (install_requires, extras). What the program computes is unread.
bool is_setup_program(std::string_view text);
PackageList setup_program_packages(std::string_view text, const std::string& file,
                                   const ReadIncluded& read_included);

}  // namespace patchbench
