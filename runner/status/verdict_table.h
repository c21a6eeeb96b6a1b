#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/bug_state.h"
#include "core/json.h"
#include "core/package_list.h"
#include "workbench/context.h"

namespace patchbench {

/// A failure class of one version.
struct TableClass {
  std::string name, device, record;
  bool operator==(const TableClass&) const = default;
};

/// File -> function -> its digest, or "absent" as in core/function_table.h.
using FunctionDigests = std::map<std::string, std::map<std::string, std::string>>;

/// The code of a pack's files (status/same_code.h).
struct CodeDigests {
  FunctionDigests functions;  ///< those that carry the bug; empty: not known
  std::string whole;          ///< of all the code of the files, as one digest; "": not known
  /// Whether one of the functions is there.
  bool has_functions() const;
};

/// What the records say of one version of an upstream.
struct TableRelease {
  std::string version;  ///< a release, or "git:<40 hex>"
  BugState state = BugStatus::kNotMeasured;
  /// Where the bug is present: every failure class that its cases showed, with the device and the
  /// verdict that shows it.
  std::vector<TableClass> classes;
  std::string device, record;                ///< of the verdict that it rests on
  std::map<std::string, std::string> files;  ///< file -> SHA-256 or "absent", as far as recorded
  CodeDigests code;
  bool is_mitigated = false;  ///< the mitigation was verified on it
  bool is_commit() const { return version.starts_with("git:"); }
  /// Whether the files tell the version: all of `wanted` are recorded, and one of them is there.
  bool has_files(const std::vector<std::string>& wanted) const;
  /// Whether the records say the same of both: the state and the failure classes.
  bool says_the_same(const TableRelease& other) const;
};

/// A version with edits of the pack, as a record validates them.
struct TablePatch {
  std::string edits;  ///< their names, joined by ", "
  std::string version, record;
  std::map<std::string, std::string> files;  ///< as of a release, with the edits applied
};

/// A release older than the measured ones.
struct OlderRelease {
  /// The SHA-256 of its archive, in which the code that carries the bug is not; "": it may be
  /// there.
  std::string archive;
  std::map<std::string, std::string> files;  ///< of the pack's files those that it has, SHA-256
};

/// A tag whose tree has a release's files (env/git_tags.py).
struct TableTag {
  std::string tag, commit, release;
};

struct TableUpstream {
  std::string name, package;
  std::vector<TableRelease> releases;  ///< of the index oldest first, then commits
  std::vector<TablePatch> patches;
  std::map<std::string, std::string> left_out;  ///< release -> why it is not locked
  std::map<std::string, OlderRelease> older;    ///< by version
  std::vector<std::string> repositories;        ///< "github.com/owner/name", in lower case
  std::vector<TableTag> tags;
  bool has_repository(const std::string& repository) const;
  /// The release that a place in git is: a commit decides, else a tag of one of the repositories;
  /// "" without one.
  std::string release_at(const Listed& place) const;
  /// The release of a version, equal as PEP 440 compares; null without one.
  const TableRelease* find(const std::string& version) const;
};

struct TablePack {
  std::string mitigates;  ///< the package that the mitigation acts on; "" without one
  std::vector<TableUpstream> upstreams;
  const TableUpstream* find(const std::string& upstream) const;
};

/// What `scan` knows: the newest verdict of every pack on every version.
struct VerdictTable {
  std::string date;                        ///< the day of the newest record
  std::map<std::string, TablePack> packs;  ///< by slug
  Json to_json() const;
  /// The inverse. Throws Error(kUsage) `<where>: <reason>`.
  static VerdictTable parse(std::string_view text, const std::string& where);
};

/// `db` where it is named; else from the records, kept in the cache until one of their files
/// changes; else verdicts.json next to the packs (an installed package has no records).
/// Error(kNotRunnable) where there is none of them.
VerdictTable verdict_table(const Context& context, const std::string& db);

}  // namespace patchbench
