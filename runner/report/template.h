#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace patchbench::report {

/// A mustache template filled in. Values are put in as they are (no HTML escapes). Throws
/// Error(kUsage) `<where>:<line>: <reason>` for a tag whose name `data` has nowhere, with
/// did-you-mean, and for a template that cannot be parsed.
std::string fill_template(std::string_view text, const std::string& where, const Json& data);

}  // namespace patchbench::report
