#pragma once
#include <string>

namespace patchbench::harness {

/// Whether this build has the CUDA halves of the ops, so that subjects of its own run on a GPU.
bool has_cuda_ops();

/// Why torch cannot compute on `device` ("cpu" or "cuda:N") in this process, or "". A program that
/// is linked with the CPU half of libtorch alone loads libtorch_cuda.so from the folder of its own
/// libtorch_cpu.so first: call this before anything else asks torch for CUDA.
std::string why_not_on(const std::string& device);

}  // namespace patchbench::harness
