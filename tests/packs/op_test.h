#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

/// What the tests of all ops need.
namespace patchbench::op_test {

/// The text of the one-line c10::Error that `work` throws.
inline std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
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

}  // namespace patchbench::op_test
