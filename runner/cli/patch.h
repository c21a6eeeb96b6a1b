#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "git/rebase.h"
#include "git/series.h"

namespace patchbench::cli {

/// A pack's series for one of its upstreams, and the version it is asked about.
struct PackSeries {
  Manifest manifest;
  Upstream upstream;
  Pin base;  ///< what the edits rest on: `at`, if some were written for it, else the red pin
  Pin at;
  git::Series series;
};

/// Pins::resolve with the folder of "path:DIR" made absolute.
Pin resolve_version(const Context& context, const std::string& upstream,
                    const std::string& version);

/// `upstream`: "" takes the manifest's first; `at`: "" takes the red pin. Throws Error(kUsage)
/// with did-you-mean.
PackSeries find_series(const Context& context, const std::string& slug, const std::string& upstream,
                       const std::string& at);

/// The series carried to `pack.at`, landed edits left out. Throws Error(kUnresolved) naming the
/// edit, state, file and lines where it cannot be carried.
std::vector<Edit> carried_series(const PackSeries& pack, git::Store& store);

/// `--from`, the person who files: the author and the Signed-off-by of the mails.
void add_signer(CLI::App& command, std::string& signer);

/// Writes the series at `pack.at` as mails and a quilt `series` file; the names written, none
/// without edits. `signer`: "Name <mail>", or "" for mails that nobody signed off.
std::vector<std::string> export_series(const PackSeries& pack, git::Store& store,
                                       const std::filesystem::path& folder,
                                       const std::string& signer);

/// One line for a conflict: `path:first-last`, or the path alone.
std::string conflict_place(const git::Conflict& conflict);
Json conflicts_json(const std::vector<git::Conflict>& conflicts);

/// `patch rebase`.
void add_patch_rebase(CLI::App& patch, Context& context);
/// `patch read`.
void add_patch_read(CLI::App& patch, Context& context);
/// `patch check`.
void add_patch_check(CLI::App& patch, Context& context);

}  // namespace patchbench::cli
