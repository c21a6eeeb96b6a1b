#pragma once
#include <string_view>

#include "core/package_list.h"

namespace patchbench {

/// Says of `one` that it comes from git, with what the place tells of its repository, tag and
/// commit. Of a folder of the repository (`subdirectory=`) they are left out: its files are not
/// where a release has them.
///   git+https://token@github.com/Owner/Name.git@v1.2#egg=x   pip, poetry
///   https://github.com/Owner/Name?tag=v1.2#<40 hex>          uv.lock
///   git@github.com:Owner/Name.git                            poetry.lock
void read_git_place(std::string_view place, Listed& one);

}  // namespace patchbench
