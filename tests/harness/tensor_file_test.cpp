#include "harness/tensor_file.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench::harness {
namespace {

TEST(TensorFile, RoundTripsEveryDtype) {
  Tensors tensors = {
      {"scalar", at::tensor(2.5)}, {"empty", at::zeros({0, 3})}, {"turned", at::rand({3, 2}).t()}};
  for (const auto dtype :
       {at::kBool, at::kByte, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kDouble}) {
    tensors.emplace(at::toString(dtype), at::arange(6).remainder(2).reshape({2, 3}).to(dtype));
  }
  const Tensors back = tensors_from_bytes(tensors_to_bytes(tensors), "file");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(back.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(back.at(name).equal(tensor)) << name;
  }
}

TEST(TensorFile, RefusesABoolThatIsNeitherZeroNorOne) {
  std::string bytes = tensors_to_bytes({{"flags", at::ones({3}, at::kBool)}});
  bytes.back() = 2;
  EXPECT_THROW(tensors_from_bytes(bytes, "file"), Error);
}

TEST(TensorFile, DigestSeesBytesNamesAndViews) {
  const at::Tensor t = at::arange(4, at::kFloat);
  const std::string digest = digest_of({{"a", t}});
  EXPECT_EQ(digest, digest_of({{"a", t.clone()}}));
  EXPECT_NE(digest, digest_of({{"b", t}}));
  EXPECT_NE(digest, digest_of({{"a", t.slice(0, 0, 3)}}));
  EXPECT_NE(digest, digest_of({{"a", at::tensor({0.0F, 1.0F, 2.0F, 4.0F})}}));
}

}  // namespace
}  // namespace patchbench::harness
