#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

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

/// "tail_cpu_float32_plain": the name of a tested (case with a name, device, dtype, form).
template <typename Info>
std::string point_name(const Info& info) {
  const auto& [c, device, type, form] = info.param;
  return c.name + "_" + device.substr(0, device.find(':')) + "_" + c10::getDtypeNames(type).first +
         (form == Form::kPlain ? "_plain" : "");
}

}  // namespace patchbench::op_test
