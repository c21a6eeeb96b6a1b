#include "exec/sandbox_command.h"

int main(int argc, char** argv) { return patchbench::exec::run_sandbox_command(argc, argv); }
