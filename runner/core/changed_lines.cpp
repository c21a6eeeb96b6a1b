#include "core/changed_lines.h"

#include <cstdint>
#include <map>
#include <string>

#include "core/edit_pieces.h"

namespace patchbench {
namespace {

Json lines_of(const Pieces& pieces) {
  Json lines = Json::array(), gaps = Json::array();
  int64_t line = 1;  // of the edited file
  int64_t next = 1;  // of the release, after the last piece of it
  bool is_after_ours = false;
  for (const Piece& piece : pieces.list()) {
    const bool is_ours = piece.base == 0;
    const bool is_moved = !is_ours && piece.base < next;
    if (is_ours || is_moved || piece.shift != 0) {
      for (int64_t i = 0; i < piece.count; ++i) lines.push_back(line + i);
    } else if (piece.base > next && !is_after_ours) {
      gaps.push_back(line);
    }
    if (!is_ours && !is_moved) next = piece.base + piece.count;
    is_after_ours = is_ours;
    line += piece.count;
  }
  return {{"lines", lines}, {"gaps", gaps}};
}

}  // namespace

Json changed_lines(const std::vector<Edit>& edits) {
  std::map<std::string, Pieces> files;
  for (const Edit& edit : edits) {
    for (const FileEdit& file : edit.files) {
      if (!file.path.ends_with(".py")) continue;
      if (file.result.empty()) {
        files.erase(file.path);
        continue;
      }
      const auto [at, is_first] = files.try_emplace(file.path, file.path, file.blob.empty());
      for (const EdCommand& command : file.commands) at->second.run(command);
    }
  }
  Json changed = Json::object();
  for (const auto& [path, pieces] : files) {
    Json lines = lines_of(pieces);
    if (!lines.at("lines").empty() || !lines.at("gaps").empty()) changed[path] = std::move(lines);
  }
  return changed;
}

}  // namespace patchbench
