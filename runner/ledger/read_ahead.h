#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ledger/ledger.h"

namespace patchbench::ledger {

/// Takes what `next` gives in a thread of its own, a few batches ahead of who asks. The order
/// stays. `take` is for one thread.
class ReadAhead {
 public:
  explicit ReadAhead(std::function<std::optional<Incoming>()> next);
  /// Waits for the call of `next` that is under way.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  /// The next one; nullopt at the end. Throws what `next` threw, after all that it gave before.
  std::optional<Incoming> take();

 private:
  using Batch = std::vector<Incoming>;
  void read();
  bool put(Batch batch, bool is_last);
  std::function<std::optional<Incoming>()> next_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> batches_;  ///< guarded by mutex_, as the three below
  bool is_over_ = false, is_given_up_ = false;
  std::exception_ptr failed_;
  Batch current_;       ///< of the taker alone
  std::size_t at_ = 0;  ///< in current_
  std::thread thread_;
};

}  // namespace patchbench::ledger
