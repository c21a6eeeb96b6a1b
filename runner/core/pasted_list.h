#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/package_list.h"

namespace patchbench {

// What tools print of an environment, as people paste it. None of it says that it is whole. Lines
// of a prompt ("$ pip list") and fences are skipped.

/// The table of `pip list` and `uv pip list`, with or without its head: name, version, and the
/// folder of an editable project. It ends at a blank line; a row that is none is unread.
bool is_pip_list(std::string_view text);
PackageList pip_list_packages(std::string_view text, const std::string& file);

/// `conda list`, and what its --explicit and --export write. What no channel of pip's brought is of
/// the source "conda".
bool is_conda_list(std::string_view text);
PackageList conda_list_packages(std::string_view text, const std::string& file);

/// conda's own, such as _libgcc_mutex: no index has such a name.
bool is_of_conda(std::string_view name);

/// Name and version in the file name of a conda package:
/// "linux-64/pytorch-2.4.0-py3.11_0.conda" -> "pytorch", "2.4.0". nullopt for another text.
std::optional<std::pair<std::string, std::string>> package_of_conda_url(std::string_view url);

/// The report of a tool, with a line for each package that it asks for: `transformers env`, `trl
/// env`, `accelerate env`, `llamafactory-cli env`, Liger-Kernel's, `ds_report`, torch's
/// collect_env. "X version: not installed" names nothing.
bool is_report(std::string_view text);
PackageList reported_packages(std::string_view text, const std::string& file);

}  // namespace patchbench
