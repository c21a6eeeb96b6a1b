// One error for each tool of compute-sanitizer, in kernels with this repository's name:
// sanitizer_control TOOL. env/sanitize.py runs it.
#include <cstdio>
#include <cstring>

namespace patchbench::sanitizer_control {

/// memcheck: the last thread writes behind the end.
__global__ void write_behind(int* values) { values[threadIdx.x] = 1; }

/// racecheck: a neighbour's value is read without a barrier.
__global__ void race(int* values) {
  __shared__ int shared[64];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  values[threadIdx.x] = shared[(threadIdx.x + 32) % 64];
}

/// synccheck: half of a warp comes to the barrier.
__global__ void diverge(int* values) {
  if (threadIdx.x < 16) __syncthreads();
  values[threadIdx.x] = 1;
}

/// initcheck: nobody wrote what is read.
__global__ void read_unwritten(const int* values, int* to) {
  to[threadIdx.x] = values[threadIdx.x];
}

}  // namespace patchbench::sanitizer_control

int main(int num_words, char** words) {
  namespace control = patchbench::sanitizer_control;
  const char* tool = num_words == 2 ? words[1] : "";
  int *values = nullptr, *unwritten = nullptr;
  if (cudaMalloc(&values, 64 * sizeof(int)) != cudaSuccess ||
      cudaMalloc(&unwritten, 64 * sizeof(int)) != cudaSuccess)
    return 1;
  if (std::strcmp(tool, "memcheck") == 0) {
    control::write_behind<<<1, 65>>>(values);
  } else if (std::strcmp(tool, "racecheck") == 0) {
    control::race<<<1, 64>>>(values);
  } else if (std::strcmp(tool, "synccheck") == 0) {
    control::diverge<<<1, 32>>>(values);
  } else if (std::strcmp(tool, "initcheck") == 0) {
    control::read_unwritten<<<1, 64>>>(unwritten, values);
  } else {
    std::fputs("usage: sanitizer_control memcheck|racecheck|synccheck|initcheck\n", stderr);
    return 2;
  }
  cudaDeviceSynchronize();
  return 0;
}
