#pragma once
#include <ostream>

namespace patchbench::cli {

/// The whole program: parses the words, runs the command, maps errors to exit statuses
/// (core/exit_status.h) and prints one line for each. Results go to `out`, all else to `err`.
int run_program(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace patchbench::cli
