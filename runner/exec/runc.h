#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "core/json.h"
#include "exec/sandbox.h"

namespace patchbench::exec {

/// A base image's file system as a staged folder carries it, for runc without an engine above it.
struct Bundle {
  std::filesystem::path rootfs;
  std::string tree_digest, python, tag;
};
/// <cache>/bundle: image.json and the unpacked rootfs; nullopt unless both are there.
std::optional<Bundle> find_bundle(const std::filesystem::path& cache);

/// The OCI config.json of one run: no network, no capabilities, a read-only root.
Json runc_config(const SandboxSpec& spec, const Bundle& bundle);

/// Runs a spec by runc. Needs root, runc on PATH and the bundle in the default cache.
SandboxReport run_in_runc(const SandboxSpec& spec);

}  // namespace patchbench::exec
