#pragma once
#include <string>
#include <string_view>

namespace patchbench::job {

/// Text of a descriptor in blocks of whole lines. Memory is bounded by the longest line that is
/// kept whole: a longer one is handed out in pieces and counted.
class LineBlocks {
 public:
  static constexpr std::size_t kBlock = 256 << 10, kLongestLine = 32 << 20;

  enum class Read { kSome, kEnd, kWait };
  /// Reads on: kSome after which `block` holds something new, kEnd at the end of the text, kWait
  /// where a descriptor that does not block has nothing yet. Throws Error(kInternal).
  Read next(int fd);
  /// Whole lines, each with its line feed; a carriage return before it is gone. Valid until the
  /// next call of next or flush.
  std::string_view block() const { return {buffer_.data() + skip_, ready_ - skip_}; }
  /// What stands after the last line feed, as the last block.
  std::string_view flush();
  int64_t num_cut_lines() const { return num_cut_lines_; }

 private:
  void drop_carriage_returns(std::size_t from);
  std::string buffer_;
  std::size_t skip_ = 0, ready_ = 0,
              filled_ = 0;  ///< handed out, ends of the block and of the text
  int64_t num_cut_lines_ = 0;
};

}  // namespace patchbench::job
