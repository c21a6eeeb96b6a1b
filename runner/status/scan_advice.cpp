#include "status/scan_advice.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

namespace patchbench {
namespace {

/// What is hit: pack -> package.
using Hits = std::set<std::pair<std::string, std::string>>;

Hits hits_in(const std::vector<ScanAnswer>& answers) {
  Hits hits;
  for (const ScanAnswer& one : answers) {
    if (one.state == ScanState::kHit) hits.emplace(one.slug, one.package);
  }
  return hits;
}

/// The releases of the index that are newer than all that is hit of a package, the oldest first.
std::vector<std::string> newer_releases(const std::vector<ScanAnswer>& answers,
                                        const std::string& package, const VerdictTable& table) {
  std::optional<std::vector<std::string>> versions;
  for (const ScanAnswer& one : answers) {
    if (one.state != ScanState::kHit || one.package != package) continue;
    const TableUpstream* upstream = table.packs.at(one.slug).find(one.upstream);
    std::vector<std::string> after;
    bool is_after = false;
    for (const TableRelease& row : upstream->releases) {
      if (is_after && !row.version.starts_with("git:")) after.push_back(row.version);
      is_after |= row.record == one.record;
    }
    if (!versions || after.size() < versions->size()) versions = std::move(after);
  }
  return versions.value_or(std::vector<std::string>());
}

/// What a release of a package comes to: the smaller, the better.
struct Weighed {
  Upgrade upgrade;
  std::size_t num_unanswered = 0, num_hits = 0, num_unknown = 0;
  auto rank() const { return std::tuple(num_unanswered, num_hits, num_unknown); }
};

std::vector<std::string> slugs_in(const Hits& from, const Hits& without) {
  std::set<std::string> slugs;
  for (const auto& hit : from) {
    if (!without.contains(hit)) slugs.insert(hit.first);
  }
  return {slugs.begin(), slugs.end()};
}

Weighed weigh(const std::string& release, const std::string& package, const Hits& before,
              const std::vector<ScanAnswer>& answers) {
  Weighed out{.upgrade = {.release = release}};
  Hits open;
  for (const ScanAnswer& one : answers) {
    out.num_unanswered += one.state == ScanState::kHit && !one.acts;
    if (one.state != ScanState::kUnknown) continue;
    open.emplace(one.slug, one.package);
    out.num_unknown += one.package == package;
  }
  const Hits now = hits_in(answers);
  out.num_hits = now.size();
  Hits left = now;
  left.insert(open.begin(), open.end());
  Hits own, others;
  for (const auto& hit : before) (hit.second == package ? own : others).insert(hit);
  out.upgrade.cures = slugs_in(own, left);
  out.upgrade.keeps = slugs_in(own, Hits());
  std::erase_if(out.upgrade.keeps, [&](const std::string& slug) {
    return std::find(out.upgrade.cures.begin(), out.upgrade.cures.end(), slug) !=
           out.upgrade.cures.end();
  });
  Hits brought = now;
  // A pack whose answer is lost is not right either.
  for (const auto& one : open) {
    if (one.second == package) brought.insert(one);
  }
  out.upgrade.brings = slugs_in(brought, before);
  return out;
}

}  // namespace

void add_upgrades(std::vector<ScanAnswer>& answers, const VerdictTable& table,
                  const Rescan& rescan) {
  std::set<std::string> packages;
  for (const auto& hit : hits_in(answers)) packages.insert(hit.second);
  PinnedPackages pins;
  Hits before = hits_in(answers);
  for (const std::string& package : packages) {
    Weighed best;
    for (const std::string& release : newer_releases(answers, package, table)) {
      PinnedPackages with = pins;
      with[package] = release;
      Weighed one = weigh(release, package, before, rescan(with));
      const bool is_better = best.upgrade.release.empty() || one.rank() < best.rank();
      if (!one.upgrade.cures.empty() && is_better) best = std::move(one);
    }
    if (best.upgrade.release.empty()) continue;
    pins[package] = best.upgrade.release;
    before = hits_in(rescan(pins));
    for (ScanAnswer& one : answers) {
      if (one.state == ScanState::kHit && one.package == package) one.upgrade = best.upgrade;
    }
  }
}

}  // namespace patchbench
