#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "core/package_list.h"

namespace patchbench {

/// What a text of UTF-8 lists, which may be nothing: what core/package_list.h reads, and in YAML a
/// conda environment, a conda-lock or a pixi.lock. Error(kUsage) `<file>[:<line>]: <reason>`.
PackageList read_list(std::string_view text, ListKind kind, const std::string& file,
                      const ReadIncluded& read_included);
/// The same of a file's bytes, by its form or as a kind that was named. Error(kUsage) where it
/// names nothing, too.
PackageList packages_in(std::string_view bytes, const std::string& file,
                        const ReadIncluded& read_included, std::optional<ListKind> kind = {});

}  // namespace patchbench
