#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace patchbench {

/// The most spaces that one '>' or '<' puts in or takes off.
inline constexpr int kMaxIndent = 200;

/// One ed command on 1-based lines, as a script holds it (applied top to bottom, so written
/// last line first; moves come before all else). A text line "." is held as it is in `lines`: the
/// text form writes it as `..` followed by the lone-dot repair `s/.//`, as `diff -e` does.
struct EdCommand {
  char verb = 'a';  ///< a append, c change, d delete, m move, '>' indent, '<' unindent
  int first = 0,
      last = 0;    ///< equal for one line; a: the line after which the text goes, 0 for the top
  int target = 0;  ///< m: the line after which the range goes; >, <: number of spaces
  std::vector<std::string> lines;  ///< a, c: at least one, without its line feed
  bool operator==(const EdCommand&) const = default;
};

/// What an edit does to one file.
struct FileEdit {
  std::string path;    ///< package-relative (the pin's prefix stripped)
  std::string blob;    ///< git blob id of the whole base file; "" for a new file
  std::string result;  ///< git blob id after the edit; "" for a deleted file
  std::string mode;    ///< "", "100644", "100755": a new mode
  bool final_newline = true;
  std::vector<EdCommand> commands;
  bool operator==(const FileEdit&) const = default;
};

/// One `.edit` file: a DEP-3 header, then file sections.
///
///     Subject: scale each row by its own gradient
///     Description: First line.
///      A further line begins with one space; an empty one is written " .".
///     Upstream: liger-kernel
///     Base: 0.8.0
///     …
///
///     File: liger_kernel/ops/x.py
///     Blob: <40 hex of the whole base file, or "new">
///     Result: <40 hex of the whole edited file, or "deleted">
///     Mode: 100755                  (only if it changes, or for a new file that is executable)
///     Final-Newline: no             (only if the edited file's last line has no line feed)
///
///     12,14s/^/    /
///     7c
///     our line
///     .
///     w
///
/// What is between the blank line and `w`, `w` included, is a script that `LC_ALL=C ed -s FILE`
/// executes to the same end. Addresses are plain numbers, one where first and last are equal.
/// Sections are parted by one blank line; the file ends with the line feed after the last `w`.
///
/// A mutant may be written over its fix (core/edit_over.h expands it; every digest is of the
/// expanded text). Its header then has, after Base,
///
///     Over: 0001-row-scale.edit     (edits of its folder, parted by spaces: the fix)
///     Without: 2 5-7                (hunks of the fix that it leaves out)
///
/// Hunks are the commands of the fix as one edit against the release, numbered from 1: file after
/// file in the order of their paths, in a file in the order of the script. A section's Blob,
/// Result, Mode and Final-Newline are of the expanded edit; the script is for the fixed file.
/// A file without a section is as the fix leaves it, or as released if all its hunks are left out.
struct Edit {
  std::string name;  ///< file name, e.g. 0001-row-broadcast.edit
  std::vector<std::pair<std::string, std::string>> header;  ///< DEP-3 fields in order
  std::vector<FileEdit> files;
  std::string field(std::string_view key) const;  ///< "" if absent
  /// Replaces a field's value, or adds the field at the end.
  void set_field(const std::string& key, const std::string& value);
  bool operator==(const Edit&) const = default;
};

/// A pack's `NNNN-*.edit` in order; each alone on the pin, its `mutant-*.edit`, wrong on purpose,
/// and its `claimed-*.edit`, which do what a proposal says.
struct Series {
  std::vector<Edit> edits, mutants, claimed;
};

/// Whether a file name is that of a candidate that the judge was tried with: `wrong-<name>.edit`,
/// which must not be validated, `right-<name>.edit`, which must. No part of the series.
bool is_candidate(std::string_view name);

/// The header's fields in the order in which `patch save` writes them; no other is taken.
const std::vector<std::string>& edit_field_names();
/// Which of the fields that a pack's edit needs are absent or empty.
std::vector<std::string> missing_fields(const Edit& edit);

/// Strict parser. Throws Error(kUsage) `<name>:<line>: <reason>`; refuses any ed command outside
/// the contract.
Edit parse_edit(std::string_view text, const std::string& name);
/// The text; parse_edit(format_edit(e)) == e, and format_edit(parse_edit(t)) == t for every text
/// that is taken. Throws Error(kUsage) on a value that the text cannot hold (a NUL, a header line
/// ".").
std::string format_edit(const Edit& edit);
/// The script of one file section, from its first command to `w`.
std::string ed_script(const FileEdit& edit);

/// Applies one file's commands to the base bytes ("" for a new file; "" is also what a deleted file
/// gives). Throws Error(kUsage) naming file, wanted and got blob id if the base is another, and if
/// the result is not the recorded one; also if an address lies outside the file or a range to
/// unindent has too few spaces.
std::string apply_file_edit(const FileEdit& edit, std::string_view base);

/// The lines of a text without their line feeds; a last line without one counts as a line.
/// Views of `text`: it must outlive them.
std::vector<std::string_view> split_lines(std::string_view text);

/// Takes `prefix` off the start of `text`; false, and nothing taken, where `text` starts otherwise.
bool take_prefix(std::string_view& text, std::string_view prefix);

}  // namespace patchbench
