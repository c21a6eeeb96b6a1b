#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace patchbench::job {

/// A recorded autotuner's choice that no measurement stands behind.
struct BadPick {
  std::filesystem::path file;
  std::string reason;
};
/// The files of a compile cache in which every candidate took inf or nan: Triton's
/// *.autotune.json, inductor's cache/, TileLang's latency.json. `num_checked` receives how many
/// hold choices.
std::vector<BadPick> bad_picks(const std::filesystem::path& folder, int64_t& num_checked);

}  // namespace patchbench::job
