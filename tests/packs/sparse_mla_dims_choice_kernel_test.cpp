// Which kernel of the backward of patchbench::sparse_mla a launch takes, run on the host.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "packs/sm90_emulator.h"

// Over the machine's primitives.
#include "sparse_mla_dims/sm90_cluster_backward.h"
#include "sparse_mla_dims/sm90_working_set.h"

namespace patchbench::sparse_mla_dims_test {
namespace {

using namespace ops::sparse_mla_dims;
using sm90_emulator::Machine;

int64_t counted(const SparseMla& p, int64_t num_queries) {
  std::vector<int64_t> counts(kCountThreads);
  Machine machine(sizeof(PageSet), {}, kCountThreads);
  machine.run([&] {
    counts[thread_index()] =
        count_named_keys(p, num_queries, *reinterpret_cast<PageSet*>(machine.shared()));
  });
  EXPECT_EQ(counts, std::vector<int64_t>(kCountThreads, counts[0]));
  return counts[0];
}

TEST(SparseMlaChoice, CountsTheKeysThatTheQueriesInTheMiddleName) {
  constexpr int64_t kBatch = 2, kQueries = 7, kTopk = 1500;
  std::mt19937 random(1);
  for (const int64_t seqlen_k : {900, 262'144, 262'145, 1'048'576}) {
    const int64_t page = seqlen_k > 524'288 ? 4 : seqlen_k > 262'144 ? 2 : 1;
    std::vector<int32_t> indices(kBatch * kQueries * kTopk);
    // Invalid ones, too.
    std::uniform_int_distribution<int32_t> draw(-5, static_cast<int32_t>(seqlen_k) + 5);
    for (int32_t& index : indices) index = draw(random);
    const SparseMla p{.indices = indices.data(),
                      .batch = kBatch,
                      .seqlen_q = kQueries,
                      .seqlen_k = seqlen_k,
                      .topk = kTopk};
    for (const auto& [num_queries, first, end] :
         {std::tuple{3, 2, 5}, std::tuple{4, 1, 5}, std::tuple{66, 0, 7}}) {
      std::set<int64_t> pages;
      for (int64_t slot = (kQueries + first) * kTopk; slot < (kQueries + end) * kTopk; ++slot)
        if (indices[slot] >= 0 && indices[slot] < seqlen_k) pages.insert(indices[slot] / page);
      EXPECT_EQ(counted(p, num_queries), page * static_cast<int64_t>(pages.size()))
          << seqlen_k << " " << num_queries;
    }
  }
}

TEST(SparseMlaChoice, CountsNothingWhereNothingIsNamed) {
  const std::vector<int32_t> none(100, -1);
  const SparseMla p{
      .indices = none.data(), .batch = 1, .seqlen_q = 1, .seqlen_k = 1 << 20, .topk = 100};
  EXPECT_EQ(counted(p, 66), 0);
  EXPECT_EQ(counted({.seqlen_k = 1 << 20}, 66), 0);
}

/// The kernel of the backward is chosen by the head dimensions, the heads, and the bytes of kv and
/// of the sums of grad_kv of the keys.
TEST(SparseMlaChoice, TakesAClusterWhereItIsFaster) {
  const auto is_cluster = [](int64_t num_keys, int64_t num_heads, int head_dim_qk, int head_dim_v) {
    return uses_cluster(
        {.num_heads = num_heads, .head_dim_qk = head_dim_qk, .head_dim_v = head_dim_v}, num_keys,
        50 << 20);
  };
  EXPECT_FALSE(is_cluster(15170, 128, 576, 512));
  EXPECT_TRUE(is_cluster(15171, 128, 576, 512));
  EXPECT_FALSE(is_cluster(17066, 128, 512, 512));
  EXPECT_TRUE(is_cluster(17067, 128, 512, 512));
  for (const int64_t num_heads : {65, 128, 193, 256})
    EXPECT_TRUE(is_cluster(1 << 20, num_heads, 576, 512)) << num_heads;
  for (const int64_t num_heads : {1, 64, 129, 192})
    for (const int64_t head_dim_qk : {512, 576})
      EXPECT_FALSE(is_cluster(1 << 20, num_heads, head_dim_qk, 512)) << num_heads;
  for (const auto& [head_dim_qk, head_dim_v] :
       {std::pair{576, 448}, std::pair{560, 512}, std::pair{320, 256}})
    EXPECT_FALSE(is_cluster(1 << 20, 128, head_dim_qk, head_dim_v)) << head_dim_qk;
}

}  // namespace
}  // namespace patchbench::sparse_mla_dims_test
