#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/checkout.h"

namespace patchbench::git {

using patchbench::Series;

/// The edits of a pack's patches folder. An absent folder is an empty series. Throws Error(kUsage)
/// for a malformed edit, one without all the fields that a pack's edit needs, and an `.edit` of
/// another name. `upstream`: only the edits whose header names that upstream; "" takes all.
Series load_series(const std::filesystem::path& folder, const std::string& upstream = "");

/// The part of a pack's edits that serves `version`: those written for it (header Base), where
/// there are any, else those for `red_pin`, to be carried by three-way merge. `base` says which it
/// is.
struct BasedSeries {
  Series series;
  std::string base;
};
BasedSeries series_for(const Series& all, const std::string& version, const std::string& red_pin);

/// An edit from a changed copy of the pin's package root; `before` are the edits of the same series
/// that come first: the edit's base is the pin after them. Only files of the upstream's package
/// count. Throws Error(kUsage) if nothing differs.
Edit edit_from_folder(const std::filesystem::path& changed_package, const Pin& pin, Store& store,
                      const std::string& name, const std::vector<Edit>& before = {});

}  // namespace patchbench::git
