#pragma once
#include <cstdint>

#include "sm90_loads.h"

/// How many keys the queries name that run at a time. The sums of grad_kv of these keys, and their
/// rows of kv, are what L2 has to hold.
namespace patchbench::ops::sparse_mla_dims {

constexpr int kCountThreads = 1024;
constexpr int kPageWords = 8192;  ///< of 32 pages each
/// Slots that a thread reads before it marks the first.
constexpr int kSlotsAtOnce = 8;

struct PageSet {
  uint32_t pages[kPageWords];
  int32_t count;
};

/// Keys, rounded up to pages, that num_queries consecutive queries in the middle name. A page is
/// one key, up to 262,144 keys. By one CTA of kCountThreads; all threads get the result.
PB_DEVICE int64_t count_named_keys(const SparseMla& p, int64_t num_queries, PageSet& shared) {
  int shift = 0;
  while (p.seqlen_k >> shift > 32 * kPageWords) ++shift;
  for (int word = thread_index(); word < kPageWords; word += kCountThreads) shared.pages[word] = 0;
  if (thread_index() == 0) shared.count = 0;
  // Pages are marked next, and counted.
  sync_threads();
  const int64_t queries = num_queries < p.seqlen_q ? num_queries : p.seqlen_q;
  const int64_t first = (p.batch / 2 * p.seqlen_q + (p.seqlen_q - queries) / 2) * p.topk;
  const int64_t end = queries * p.topk;
  for (int64_t begin = thread_index(); begin < end; begin += kSlotsAtOnce * kCountThreads) {
    int32_t index[kSlotsAtOnce];
    PB_UNROLL
    for (int i = 0; i < kSlotsAtOnce; ++i) {
      const int64_t slot = begin + i * kCountThreads;
      index[i] = slot < end ? p.indices[first + slot] : -1;
    }
    PB_UNROLL
    for (int i = 0; i < kSlotsAtOnce; ++i) {
      if (index[i] < 0 || index[i] >= p.seqlen_k) continue;
      const int page = index[i] >> shift;
      atomic_or_shared(shared.pages[page / 32], 1u << page % 32);
    }
  }
  // Marks of all threads are counted next.
  sync_threads();
  int count = 0;
  for (int word = thread_index(); word < kPageWords; word += kCountThreads)
    count += count_bits(shared.pages[word]);
  atomic_add_shared(shared.count, count);
  // The counts of all threads are in the sum.
  sync_threads();
  return int64_t{shared.count} << shift;
}

}  // namespace patchbench::ops::sparse_mla_dims
