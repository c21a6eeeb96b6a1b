#pragma once

namespace patchbench::exec {

/// Runs one spec and writes its report: what `patchbench-sandbox SPEC.json` does.
/// The exit status: 0 the subject ended by itself with 0, 1 it failed or was killed, 2 usage, 3 the
/// engine failed.
int run_sandbox_command(int argc, const char* const* argv);

}  // namespace patchbench::exec
