#include "harness/host_reads.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace patchbench::harness {
namespace {

int64_t reads_of(const std::function<void()>& work) {
  const HostReadCounter reads;
  work();
  return reads.count();
}

TEST(HostReadCounter, CountsEachReadOnceWhateverItIsNestedIn) {
  const at::Tensor x = torch::arange(6.0);
  EXPECT_EQ(reads_of([&] { x.sum().item<double>(); }), 1);
  EXPECT_EQ(reads_of([&] { static_cast<void>(x.gt(3).any().item<bool>()); }), 1);
  EXPECT_EQ(reads_of([&] { static_cast<void>(torch::equal(x, x)); }), 1);
  EXPECT_EQ(reads_of([&] { torch::nonzero(x); }), 1);
  EXPECT_EQ(reads_of([&] { torch::where(x.gt(2)); }), 1);
  EXPECT_EQ(reads_of([&] { x.index({x.gt(2)}); }), 1);
  EXPECT_EQ(reads_of([&] { x.masked_select(x.gt(2)); }), 1);
}

TEST(HostReadCounter, CountsNothingOnACapturablePath) {
  at::Tensor x = torch::arange(6.0);
  EXPECT_EQ(reads_of([&] {
              torch::where(x.gt(2), x, 0.0);
              x.masked_fill(x.gt(2), 1.0);
              x.scatter_reduce(0, torch::zeros({6}, at::kLong), x, "amax");
              x.gt(2).any(0, true);
            }),
            0);
}

TEST(HostReadCounter, CountsOnlyItsOwnThreadAndOnlyWhileItLives) {
  const at::Tensor x = torch::ones({2});
  EXPECT_EQ(reads_of([&] { std::thread([&] { x.sum().item<double>(); }).join(); }), 0);
  x.sum().item<double>();
  EXPECT_EQ(reads_of([] {}), 0);
}

}  // namespace
}  // namespace patchbench::harness
