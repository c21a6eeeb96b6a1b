#include <iostream>
#include <string_view>

// Each program's own `main`, renamed by cmake/judge.cmake.
#define PB_PROGRAM(word) extern "C" int patchbench_main_##word(int argc, char** argv);
#include "judge_programs.inc"
#undef PB_PROGRAM

namespace {

struct Program {
  std::string_view word;
  int (*run)(int argc, char** argv);
};

#define PB_PROGRAM(word) {#word, patchbench_main_##word},
constexpr Program kPrograms[] = {
#include "judge_programs.inc"
};
#undef PB_PROGRAM

}  // namespace

/// patchbench-judge SLUG WORDS...: what `repro_SLUG WORDS...` does; `explore_function` likewise.
int main(int argc, char** argv) {
  if (argc > 1) {
    for (const Program& program : kPrograms) {
      if (program.word == argv[1]) return program.run(argc - 1, argv + 1);
    }
  }
  std::cerr << "usage: patchbench-judge SLUG WORDS...; `patchbench reproduce` and `explore` start "
               "it. Programs:";
  for (const Program& program : kPrograms) std::cerr << " " << program.word;
  std::cerr << "\n";
  return 2;
}
