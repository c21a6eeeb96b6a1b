#include "core/edit_pieces.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/error.h"

namespace patchbench {

Pieces::Pieces(std::string path, bool is_new) : path_(std::move(path)) {
  if (!is_new) pieces_.push_back({1, kEndless, 0, ""});
}

void Pieces::run(const EdCommand& command) {
  const std::size_t begin = cut_after(std::max(command.first - 1, 0), command);
  const std::size_t end = cut_after(command.last, command);
  const std::size_t first = command.verb == 'a' ? end : begin;
  if (command.verb == '>' || command.verb == '<') return shift(command, begin, end);
  if (command.verb == 'm') return move(command);
  const auto at = pieces_.begin();
  const auto place =
      pieces_.erase(at + static_cast<ptrdiff_t>(first), at + static_cast<ptrdiff_t>(end));
  std::vector<Piece> ours;
  for (const std::string& line : command.lines) ours.push_back({0, 1, 0, line});
  pieces_.insert(place, ours.begin(), ours.end());
}

/// The index of the piece after the first `num_lines` lines; cuts a piece in two where it must.
std::size_t Pieces::cut_after(int64_t num_lines, const EdCommand& command) {
  std::size_t at = 0;
  int64_t left = num_lines;
  for (; left > 0 && at < pieces_.size(); ++at) {
    const int64_t count = pieces_[at].count;
    if (count > left) {
      Piece rest = pieces_[at];
      rest.base += left;
      rest.count -= left;
      pieces_[at].count = left;
      pieces_.insert(pieces_.begin() + static_cast<ptrdiff_t>(at) + 1, std::move(rest));
    }
    left -= std::min(left, count);
  }
  if (left > 0) fail(command, "the file has " + std::to_string(num_lines - left) + " lines there");
  return at;
}

void Pieces::move(const EdCommand& command) {
  cut_after(command.target, command);  // a cut moves the pieces behind it: cut first, then count
  const std::size_t begin = cut_after(command.first - 1, command);
  const std::size_t end = cut_after(command.last, command);
  const auto at = [&](std::size_t i) { return pieces_.begin() + static_cast<ptrdiff_t>(i); };
  if (command.target < command.first) {
    std::rotate(at(cut_after(command.target, command)), at(begin), at(end));
  } else {
    std::rotate(at(begin), at(end), at(cut_after(command.target, command)));
  }
}

void Pieces::shift(const EdCommand& command, std::size_t begin, std::size_t end) {
  const std::string spaces(static_cast<std::size_t>(command.target), ' ');
  for (std::size_t i = begin; i < end; ++i) {
    Piece& piece = pieces_[i];
    if (piece.base > 0) {
      piece.shift += command.verb == '>' ? command.target : -command.target;
    } else if (command.verb == '>') {
      piece.line.insert(0, spaces);
    } else if (piece.line.starts_with(spaces)) {
      piece.line.erase(0, spaces.size());
    } else {
      fail(command, "a line has no " + std::to_string(spaces.size()) + " spaces to take off");
    }
  }
}

void Pieces::fail(const EdCommand& command, const std::string& reason) const {
  throw Error(ErrorCode::kUsage, path_ + ": command '" + command.verb + "' on lines " +
                                     std::to_string(command.first) + "-" +
                                     std::to_string(command.last) + ": " + reason);
}

}  // namespace patchbench
