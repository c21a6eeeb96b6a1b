#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "run/sweep_plan.h"

namespace patchbench {

/// Where each cell stands.
enum class CellState { kWaiting, kRunning, kDone };

/// The states of all cells; of running ones as far as the executor tells.
std::vector<CellState> states_of(const SweepFolder& sweep);

/// Runs what has no result yet, each cell again up to `retries` times where it ended without one,
/// and takes the records into the ledger as they come. Cells that the ledger answers already are
/// not run. With `is_detached` it ends once Slurm has the jobs. Returns how many cells have no
/// result. Throws Error(kNotRunnable) while another process runs the same sweep.
std::size_t run_sweep(const Context& context, const SweepFolder& sweep, bool is_detached);

/// One cell: what an array task and a local worker start. Publishes its result unless it broke.
void run_cell(const Context& context, const SweepFolder& sweep, std::size_t cell);

/// Ends a sweep; what has ended stays. False where Slurm's controller does not answer.
bool cancel_sweep(const SweepFolder& sweep);

}  // namespace patchbench
