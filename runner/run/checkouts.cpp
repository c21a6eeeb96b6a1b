#include "run/checkouts.h"

#include <fmt/format.h>

#include "core/error.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "git/checkout.h"
#include "git/rebase.h"

namespace patchbench {
namespace {

PackEdits edits_at(const Context& context, const Manifest& manifest, const UpstreamUse& use,
                   const Pin& pin) {
  const auto [series, base_version] = git::series_for(
      git::load_series(context.root / cell_path(manifest.slug, Column::kPatches), use.name),
      pin.version, use.red_pin);
  const Pin base = context.pins().resolve(use.name, base_version);
  if (base.version == pin.version) return series;
  git::Store store(context.cache, context.root);
  PackEdits carried;
  const std::vector<git::Rebase> moved = git::rebase_series(series.edits, base, pin, store);
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const git::Rebase& rebase = moved[i];
    if (rebase.state == git::Rebase::State::kClean) {
      carried.edits.push_back(*rebase.edit);
    } else if (rebase.state != git::Rebase::State::kLanded) {
      std::string where;
      if (!rebase.conflicts.empty()) {
        where = fmt::format(": {} lines {}-{}", rebase.conflicts[0].path,
                            rebase.conflicts[0].first_line, rebase.conflicts[0].last_line);
      }
      throw Error(
          ErrorCode::kUsage,
          fmt::format("{} does not carry from {} to {} ({}{}); see patchbench patch rebase {}",
                      series.edits[i].name, base.version, pin.version,
                      git::rebase_state_name(rebase.state), where, manifest.slug.str()));
    }
  }
  if (carried.edits.empty() && !moved.empty())
    throw Error(ErrorCode::kUsage, fmt::format("{}: {} has landed every edit of the pack already",
                                               manifest.slug.str(), pin.version));
  const auto carry = [&](const std::vector<Edit>& alone) {
    std::vector<Edit> out;
    for (const Edit& edit : alone) {
      const git::Rebase rebase = git::rebase_edit(edit, base, pin, store);
      if (rebase.state == git::Rebase::State::kClean) {
        out.push_back(*rebase.edit);
      } else {
        exec::progress(fmt::format("{} does not carry to {} ({}): left out", edit.name, pin.version,
                                   git::rebase_state_name(rebase.state)));
      }
    }
    return out;
  };
  carried.mutants = carry(series.mutants);
  carried.claimed = carry(series.claimed);
  return carried;
}

/// The commit a release's tag points to, as a git pin; nullopt without such a tag. Throws
/// Error(kNotRunnable) if out of reach.
std::optional<Pin> tagged(const Context& context, const Upstream& upstream,
                          const std::string& version) {
  const exec::Exit listed =
      exec::run({.argv = {"git", "ls-remote", "--tags", upstream.url, "refs/tags/v" + version,
                          "refs/tags/v" + version + "^{}"}});
  if (!listed.ok()) throw Error::unreachable("git ls-remote " + upstream.url + " failed");
  std::string commit;
  for (std::size_t at = 0; at + 40 < listed.out.size(); at = listed.out.find('\n', at) + 1) {
    commit = listed.out.substr(at, 40);  // the peeled line, where there is one, comes last
    if (listed.out.find('\n', at) == std::string::npos) break;
  }
  if (commit.empty()) return std::nullopt;
  return context.pins().resolve(upstream.name, "git:" + commit);
}

class GitCheckouts : public Checkouts {
 public:
  PackEdits edits_at(const Context& context, const Manifest& manifest, const UpstreamUse& use,
                     const Pin& pin) override {
    return patchbench::edits_at(context, manifest, use, pin);
  }
  std::optional<Pin> tagged(const Context& context, const Upstream& upstream,
                            const std::string& version) override {
    return patchbench::tagged(context, upstream, version);
  }
  std::vector<Pin> commits_between(const Context& context, const Pin& good, const Pin& bad,
                                   const std::vector<std::string>& files) override {
    return git::Store(context.cache, context.root).commits_between(good, bad, files);
  }
};

}  // namespace

Checkouts& checkouts_of(const Context& context) {
  static GitCheckouts git;
  return context.checkouts != nullptr ? *context.checkouts : git;
}

}  // namespace patchbench
