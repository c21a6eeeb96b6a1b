#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/checkout.h"

namespace patchbench::git {

/// An edit from a unified diff (git's or plain; mails too); `before` are the edits of the same
/// series that come first: the edit's base is the pin after them. Throws Error(kUsage) if the diff
/// does not apply exactly (no fuzz, no offset), holds renames or binaries, or changes no file.
Edit edit_from_diff(std::string_view diff, const Pin& pin, Store& store, const std::string& name,
                    const std::vector<Edit>& before = {});

}  // namespace patchbench::git
