#pragma once
#include <filesystem>
#include <vector>

#include "core/record.h"
#include "exec/sandbox.h"
#include "git/checkout.h"
#include "run/setup.h"

namespace patchbench {

/// The trees that a subject sees, the one under test first; what they are goes into the context.
/// Throws Error(kUsage) for edits of an installed stack.
std::vector<git::Checkout> check_out(const Context& context, const Setup& setup,
                                     const Subject& subject, const std::vector<Edit>& edits,
                                     RunContext& run);

/// How a subject is started in its sandbox; `folder` holds its work folder, log and report.
exec::SandboxSpec sandbox_spec(const Context& context, const Setup& setup, const Subject& subject,
                               const std::vector<git::Checkout>& checkouts,
                               const std::filesystem::path& folder);

/// Throws Error(kInternal) where it cannot be written.
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace patchbench
