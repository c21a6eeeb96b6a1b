#include "ledger/read_ahead.h"

#include <utility>

namespace patchbench::ledger {
namespace {

/// Large enough that the lock costs nothing, small enough that what waits is a few MiB.
constexpr std::size_t kBatch = 64, kMostBatches = 8;

}  // namespace

ReadAhead::ReadAhead(std::function<std::optional<Incoming>()> next)
    : next_(std::move(next)), thread_([this] { read(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::scoped_lock lock(mutex_);
    is_given_up_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::read() {
  Batch batch;
  try {
    while (std::optional<Incoming> one = next_()) {
      batch.push_back(std::move(*one));
      if (batch.size() == kBatch && !put(std::exchange(batch, {}), false)) return;
    }
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    failed_ = std::current_exception();
  }
  put(std::move(batch), true);
}

bool ReadAhead::put(Batch batch, bool is_last) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_given_up_ || batches_.size() < kMostBatches; });
  batches_.push_back(std::move(batch));
  is_over_ = is_last;
  changed_.notify_all();
  return !is_given_up_;
}

std::optional<Incoming> ReadAhead::take() {
  if (at_ == current_.size()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_over_ || !batches_.empty(); });
    current_.clear();
    at_ = 0;
    if (!batches_.empty()) {
      current_ = std::move(batches_.front());
      batches_.pop_front();
    }
    changed_.notify_all();
    if (current_.empty() && failed_) std::rethrow_exception(failed_);
    if (current_.empty()) return std::nullopt;
  }
  return std::move(current_[at_++]);
}

}  // namespace patchbench::ledger
