#include "job/line_blocks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace patchbench::job {

LineBlocks::Read LineBlocks::next(int fd) {
  // The rest of the last block, a line that has not ended yet, moves to the front.
  if (ready_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + ready_, filled_ - ready_);
    filled_ -= ready_;
    skip_ = ready_ = 0;
  }
  if (buffer_.size() - filled_ < kBlock)
    buffer_.resize(std::min(filled_ + filled_ / 2 + kBlock, kLongestLine + kBlock));
  const ssize_t got = ::read(fd, buffer_.data() + filled_, buffer_.size() - filled_);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Read::kWait;
  if (got < 0) throw Error(ErrorCode::kInternal, std::string("read: ") + std::strerror(errno));
  if (got == 0) return Read::kEnd;
  const std::size_t from = filled_;
  filled_ += static_cast<std::size_t>(got);
  drop_carriage_returns(from);
  // A line feed may have moved to where the carriage return before it stood.
  const std::size_t first = from == 0 ? 0 : from - 1;
  const void* last = ::memrchr(buffer_.data() + first, '\n', filled_ - first);
  if (last != nullptr) {
    ready_ = static_cast<std::size_t>(static_cast<const char*>(last) - buffer_.data()) + 1;
  } else if (filled_ >= kLongestLine) {
    ready_ = filled_;
    ++num_cut_lines_;
  }
  return Read::kSome;
}

std::string_view LineBlocks::flush() {
  skip_ = ready_;
  ready_ = filled_;
  return block();
}

void LineBlocks::drop_carriage_returns(std::size_t from) {
  // The one before `from` may be the first half of a pair.
  char* const begin = buffer_.data() + (from == 0 ? 0 : from - 1);
  char* const end = buffer_.data() + filled_;
  char* found = static_cast<char*>(std::memchr(begin, '\r', static_cast<std::size_t>(end - begin)));
  if (found == nullptr) return;
  char* to = found;
  for (char* at = found; at < end;) {
    char* const next =
        static_cast<char*>(std::memchr(at + 1, '\r', static_cast<std::size_t>(end - at - 1)));
    char* const stop = next == nullptr ? end : next;
    // A lone one is kept: progress bars rewrite their line with it.
    if (at + 1 < end && at[1] == '\n') ++at;
    std::memmove(to, at, static_cast<std::size_t>(stop - at));
    to += stop - at;
    at = stop;
  }
  filled_ = static_cast<std::size_t>(to - buffer_.data());
}

}  // namespace patchbench::job
