#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "cli/context.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  return patchbench::cli::run_program(argc, argv, std::cout, std::cerr);
}
