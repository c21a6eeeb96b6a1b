#pragma once
#include <string>
#include <vector>

#include "status/inventory.h"
#include "status/run_settings.h"

namespace patchbench {

/// A training run, as a tracker or a checkpoint left it on a disk.
struct PastRun {
  std::string name;     ///< its folder, below the one that was named
  std::string tracker;  ///< "wandb", "mlflow" or "megatron"
  std::string day;      ///< of its start, by UTC where a time is written; "" where nothing says it
  Inventory inventory;  ///< what its lists have; `list.unread` says what could not be read
  RunSettings settings;
};

/// The runs below a folder, by path, and what was not walked. wandb: `run-DAY_TIME-ID/files` with
/// requirements.txt and config.yaml. MLflow: a folder with a run's meta.yaml, `params` and the
/// lists of its artifacts. Megatron-LM: a folder with latest_checkpointed_iteration.txt; of its
/// arguments what a run_config.yaml, config.yaml, args.yaml or args.json has, for a checkpoint's
/// own are in a pickle, which is not loaded. Links are not followed. Error(kUsage)
/// `<folder>: <reason>` where it is not a folder.
struct PastRuns {
  std::vector<PastRun> runs;
  std::vector<std::string> unread;
};
PastRuns past_runs_below(const std::string& folder);

}  // namespace patchbench
