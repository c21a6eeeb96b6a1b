#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// One ed command on 1-based lines, as it stands in a script (applied top to bottom, so written last line first).
struct EdCommand {
  char verb;                       ///< a append, c change, d delete, m move, '>' indent, '<' unindent, '.' the lone-dot repair s/.//
  int first = 0, last = 0;
  int target = 0;                  ///< m: the line after which the range goes; >, <: number of spaces
  std::vector<std::string> lines;  ///< a, c
};

/// What an edit does to one file.
struct FileEdit {
  std::string path;       ///< package-relative (the pin's prefix stripped)
  std::string blob;       ///< git blob id of the whole base file; "" for a new file
  std::string result;     ///< git blob id after the edit; "" for a deleted file
  std::string mode;       ///< "", "100644", "100755": a new mode
  bool final_newline = true;
  std::vector<EdCommand> commands;
};

/// One `.edit` file: a DEP-3 header, then file sections.
struct Edit {
  std::string name;                                         ///< file name, e.g. 0001-row-broadcast.edit
  std::vector<std::pair<std::string, std::string>> header;  ///< DEP-3 fields in order
  std::vector<FileEdit> files;
  std::string field(std::string_view key) const;  ///< "" if absent
};

/// Strict parser. Throws Error(kUsage) `<name>:<line>: <reason>`; refuses any ed command outside the contract.
Edit parse_edit(std::string_view text, const std::string& name);
/// The text; parse_edit(format_edit(e)) == e, byte-stable.
std::string format_edit(const Edit& edit);

/// Applies one file's commands to the base bytes. Throws Error(kUsage) naming file, wanted and got blob id
/// if the base is another, and if the result is not the recorded one.
std::string apply_file_edit(const FileEdit& edit, std::string_view base);

/// The ed commands that turn `base` into `wanted` (`diff -e` form; re-indented runs become '>' / '<').
FileEdit make_file_edit(const std::string& path, std::optional<std::string_view> base,
                        std::optional<std::string_view> wanted);

}  // namespace patchbench
