#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/checkout.h"

namespace patchbench::git {

// In what follows `before` are the edits of the same series that come first: an edit's base is the
// pin after them.

/// Unified diff of one edit against its base (libgit2; three lines of context). Never to be
/// committed: holds upstream context.
std::string unified_diff(const Edit& edit, const Pin& pin, Store& store,
                         const std::vector<Edit>& before = {});

/// Whether a text is "Name <mail>", as git takes it for an author: one line, a name without angle
/// brackets, one address with an @.
bool is_mailbox(std::string_view text);

/// A `git am`-able mail for one edit at the pin, in the git layout (`git_prefix` + path).
/// Byte-stable. `signer`, "Name <mail>", signs it off and is its author where the edit names none;
/// without one the mail says below its `---` that nobody signed it off. Lines that end in CR need
/// `git am --keep-cr`; the mail says so there, too.
std::string format_mail(const Edit& edit, const Pin& pin, Store& store,
                        const std::string& git_prefix, int number, int total,
                        const std::vector<Edit>& before = {}, const std::string& signer = "");

}  // namespace patchbench::git
