#include "cli/patch_together.h"

#include "core/error.h"

namespace patchbench::cli {

std::map<std::string, std::vector<PackSeries>> packs_by_upstream(const Context& context,
                                                                 const std::string& only) {
  std::map<std::string, std::vector<PackSeries>> packs;
  for (const std::string& slug : context.slugs()) {
    for (const UpstreamUse& use : context.manifest(slug).upstreams) {
      if (!only.empty() && use.name != only) continue;
      PackSeries pack = find_series(context, slug, use.name, "");
      if (!pack.series.edits.empty()) packs[use.name].push_back(std::move(pack));
    }
  }
  return packs;
}

Together together_at(const std::vector<PackSeries>& packs, const Pin& at, git::Store& store) {
  Together group{at, {}, {}, {}};
  for (PackSeries pack : packs) {
    pack.at = at;
    try {
      group.series[pack.manifest.slug.str()] = carried_series(pack, store);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnresolved) throw;
      group.left_out.push_back(pack.manifest.slug.str());
    }
  }
  group.clashes = git::clashes_of(group.series, at, store);
  return group;
}

}  // namespace patchbench::cli
