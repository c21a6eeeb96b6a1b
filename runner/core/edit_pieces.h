#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/edit.h"

namespace patchbench {

/// Lines of a file of the release, whose length is unknown.
inline constexpr int64_t kEndless = INT64_C(1) << 40;

/// Lines of the release from `base` on, each indented by `shift` more spaces; or, where `base` is
/// 0, one line of ours.
struct Piece {
  int64_t base = 0, count = 1;
  int shift = 0;
  std::string line;
};

/// A file after scripts: ranges of the release and our lines. Needs no text of the release.
class Pieces {
 public:
  Pieces(std::string path, bool is_new);

  /// Throws Error(kUsage) for lines that are not there, or have too few spaces to take off.
  void run(const EdCommand& command);

  const std::vector<Piece>& list() const { return pieces_; }

 private:
  std::size_t cut_after(int64_t num_lines, const EdCommand& command);
  void move(const EdCommand& command);
  void shift(const EdCommand& command, std::size_t begin, std::size_t end);
  [[noreturn]] void fail(const EdCommand& command, const std::string& reason) const;

  std::string path_;
  std::vector<Piece> pieces_;
};

}  // namespace patchbench
