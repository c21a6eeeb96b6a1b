#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

/// What the tests of all ops need.
namespace patchbench::op_test {

/// The text of the one-line error that `work` throws: c10::Error, or what an op on torch's stable
/// ABI throws.
inline std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was refused";
}

/// The devices of this machine.
inline std::vector<std::string> devices() {
  return torch::cuda::is_available() ? std::vector<std::string>{"cpu", "cuda:0"}
                                     : std::vector<std::string>{"cpu"};
}

enum class Form { kChosen, kPlain };

/// PATCHBENCH_OP_FALLBACK for the length of a test.
class Fallback {
 public:
  Fallback(const char* slug, Form form) {
    if (form == Form::kPlain) setenv("PATCHBENCH_OP_FALLBACK", slug, 1);
  }
  Fallback(const Fallback&) = delete;
  Fallback& operator=(const Fallback&) = delete;
  ~Fallback() { unsetenv("PATCHBENCH_OP_FALLBACK"); }
};

#ifdef PATCHBENCH_CUDA
/// Captures op(buffer) in a CUDA graph. Replays with other indices in the buffer, indices_of(0) to
/// indices_of(2), must give what op(indices) gives, bit for bit.
inline void expect_replays(
    const at::Tensor& buffer,
    const std::function<std::vector<at::Tensor>(const at::Tensor& indices)>& op,
    const std::function<at::Tensor(int replay)>& indices_of) {
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
  op(buffer);
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const std::vector<at::Tensor> captured = op(buffer);
  graph.capture_end();
  for (int replay = 0; replay < 3; ++replay) {
    const at::Tensor indices = indices_of(replay);
    buffer.copy_(indices);
    graph.replay();
    c10::cuda::device_synchronize();
    const std::vector<at::Tensor> wanted = op(indices);
    ASSERT_EQ(captured.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(at::equal(captured[i], wanted[i])) << "replay " << replay << ", result " << i;
  }
}
#endif

/// "tail_cpu_float32_plain": the name of a tested (case with a name, device, dtype, form).
template <typename Info>
std::string point_name(const Info& info) {
  const auto& [c, device, type, form] = info.param;
  return c.name + "_" + device.substr(0, device.find(':')) + "_" + c10::getDtypeNames(type).first +
         (form == Form::kPlain ? "_plain" : "");
}

}  // namespace patchbench::op_test
