#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/manifest.h"
#include "status/inventory.h"
#include "status/verdict_table.h"

namespace patchbench {

/// A Python file of a project that defines functions which packs name.
struct CodeFile {
  std::filesystem::path path;
  std::string sha256;
  std::map<std::string, std::string> functions;  ///< qualified name -> digest (core/python_code.h)
};

/// Every such file at or below `paths`, whatever its name, by path. Of a folder, links, hidden
/// folders and environments are not followed. What cannot be read as Python goes to the
/// inventory's `unread_code`.
std::vector<CodeFile> code_files(const std::vector<std::string>& paths,
                                 const std::vector<Manifest>& packs, Inventory& inventory);

/// A file that holds code of an upstream.
struct FunctionCopy {
  const CodeFile* file = nullptr;
  const UpstreamUse* use = nullptr;
  const TableUpstream* upstream = nullptr;
  /// Whose functions they are, all that carry the bug; null where some differ, and where releases
  /// with and without the bug have them.
  const TableRelease* twin = nullptr;
  std::size_t num_same = 0;  ///< functions that are equal
  std::string differs;       ///< of a copy without a twin: what is known, in one line
};

/// What other answers are about.
struct Answered {
  std::set<std::filesystem::path> files, packages;  ///< packages: their folders
};

/// The copies of a pack's code among `files`, one for each file that holds its main part: the file
/// of the upstream with the most functions that carry the bug. What the release has in other files
/// may be in any of `files`. A file that defines the functions by name, and none of them as a
/// release has it, is not taken for a copy. Below a package that another answer is about, hits
/// alone are taken.
std::vector<FunctionCopy> function_copies(const Manifest& pack, const TablePack& table,
                                          const std::vector<CodeFile>& files,
                                          const Answered& answered);

}  // namespace patchbench
