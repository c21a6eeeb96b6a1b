// What all ops share: the note that a GPU's tensors take the plain form.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "kernel/fallback.h"
#include "packs/op_test.h"

namespace patchbench::kernel_test {
namespace {

using op_test::Fallback;
using op_test::Form;

/// Keeps torch's warnings.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

/// All that the note asks of a tensor: this test has no GPU.
struct FakeTensor {
  bool is_on_gpu;
  bool is_cuda() const { return is_on_gpu; }
};

std::vector<std::string> warnings_of(const char* op, Form form, FakeTensor tensor, int times) {
  const Fallback fallback("some_pack", form);
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  for (int i = 0; i < times; ++i)
    ops::warn_of_plain_form("some_pack", op, tensor, "compute capability 9.0");
  return warnings.texts;
}

TEST(PlainForm, IsToldOnceForEachOpOnAGpu) {
  const auto told = warnings_of("first_op", Form::kChosen, {.is_on_gpu = true}, 3);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("patchbench::first_op uses its plain torch form on this GPU. Its kernels "
                         "need compute capability 9.0."),
            std::string::npos)
      << told[0];
  EXPECT_EQ(warnings_of("second_op", Form::kChosen, {.is_on_gpu = true}, 1).size(), 1U);
}

TEST(PlainForm, IsNoNewsOnACpuOrWhereItIsForced) {
  EXPECT_TRUE(warnings_of("third_op", Form::kChosen, {.is_on_gpu = false}, 2).empty());
  EXPECT_TRUE(warnings_of("third_op", Form::kPlain, {.is_on_gpu = true}, 2).empty());
  EXPECT_EQ(warnings_of("third_op", Form::kChosen, {.is_on_gpu = true}, 2).size(), 1U);
}

}  // namespace
}  // namespace patchbench::kernel_test
