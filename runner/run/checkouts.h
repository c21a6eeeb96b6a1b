#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/series.h"
#include "workbench/context.h"

namespace patchbench {

/// The pack's edits, its mutants and its claimed changes, carried to a pin.
using PackEdits = git::Series;

/// What runs ask of the upstreams' histories. What it is by default reads git; a test's does not.
class Checkouts {
 public:
  virtual ~Checkouts() = default;
  /// The pack's edits carried to a pin by three-way merge. Throws Error(kUsage) naming file and
  /// lines where they conflict.
  virtual PackEdits edits_at(const Context& context, const Manifest& manifest,
                             const UpstreamUse& use, const Pin& pin) = 0;
  /// The commit a release's tag points to, as a git pin; nullopt without such a tag. Throws
  /// Error::unreachable.
  virtual std::optional<Pin> tagged(const Context& context, const Upstream& upstream,
                                    const std::string& version) = 0;
  /// The commits after `good` up to `bad` that touch a file, oldest first.
  virtual std::vector<Pin> commits_between(const Context& context, const Pin& good, const Pin& bad,
                                           const std::vector<std::string>& files) = 0;
};

/// The context's, else git's.
Checkouts& checkouts_of(const Context& context);

}  // namespace patchbench
