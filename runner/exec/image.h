#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "exec/sandbox.h"

namespace patchbench::exec {

/// The interpreter of the base image "bookworm", known before it is built.
inline constexpr const char* kImageTag = "cp311";

/// Builds (once) the base image from env/images/<name> by debootstrap and returns its engine id;
/// records its tree digest. Throws Error(kNotRunnable) if it cannot be built here.
struct BaseImage {
  std::string id, tree_digest, python, tag;  ///< tag: interpreter tag, "cp311"
};
BaseImage ensure_base_image(SandboxKind engine, const std::string& name,
                            const std::filesystem::path& cache, const std::filesystem::path& root);
/// The same if it is there already; nullopt instead of building it.
std::optional<BaseImage> find_base_image(SandboxKind engine, const std::string& name,
                                         const std::filesystem::path& cache,
                                         const std::filesystem::path& root);

/// Writes a base image's file system as a tar, with its owners. Throws Error(kNotRunnable) with the
/// engine's own line.
void export_base_image(SandboxKind engine, const BaseImage& image, const std::filesystem::path& tar,
                       const std::filesystem::path& cache);

}  // namespace patchbench::exec
