#include <iostream>
#include <string_view>

#include "cli/program.h"
#include "exec/sandbox_command.h"

int main(int argc, char** argv) {
  // An installed program starts itself as the sandbox: a second static program would double the
  // wheel.
  if (argc > 1 && std::string_view(argv[1]) == "sandbox")
    return patchbench::exec::run_sandbox_command(argc - 1, argv + 1);
  return patchbench::cli::run_program(argc, argv, std::cout, std::cerr);
}
