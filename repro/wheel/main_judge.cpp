#include <iostream>
#include <string_view>

// Each pack's own `main`, renamed by cmake/judge.cmake.
#define PB_PACK(slug) extern "C" int patchbench_main_##slug(int argc, char** argv);
#include "judge_packs.inc"
#undef PB_PACK

namespace {

struct Judge {
  std::string_view slug;
  int (*run)(int argc, char** argv);
};

#define PB_PACK(slug) {#slug, patchbench_main_##slug},
constexpr Judge kJudges[] = {
#include "judge_packs.inc"
};
#undef PB_PACK

}  // namespace

/// patchbench-judge SLUG WORDS...: what `repro_SLUG WORDS...` does.
int main(int argc, char** argv) {
  if (argc > 1) {
    for (const Judge& judge : kJudges) {
      if (judge.slug == argv[1]) return judge.run(argc - 1, argv + 1);
    }
  }
  std::cerr << "usage: patchbench-judge SLUG WORDS...; `patchbench reproduce` starts it. Packs:";
  for (const Judge& judge : kJudges) std::cerr << " " << judge.slug;
  std::cerr << "\n";
  return 2;
}
