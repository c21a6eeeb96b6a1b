#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "cli/program.h"
#include "workbench/context.h"

int main(int argc, char** argv) {
  return patchbench::cli::run_program(argc, argv, std::cout, std::cerr);
}
