#include "status/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/digest.h"
#include "core/version_range.h"
#include "status/function_copies.h"
#include "status/scan_advice.h"
#include "status/scan_judge.h"
#include "status/source_copies.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using Copies = std::map<std::string, std::vector<SourceCopy>>;

/// Every file of every upstream that some pack looks at.
std::map<std::string, std::set<std::string>> wanted_files(const std::vector<Manifest>& packs) {
  std::map<std::string, std::set<std::string>> wanted;
  for (const Manifest& pack : packs) {
    for (const UpstreamUse& use : pack.upstreams) {
      if (use.from_environment) continue;
      const std::vector<std::string> files = use.code_files();
      wanted[use.name].insert(files.begin(), files.end());
    }
  }
  return wanted;
}

/// "megatron/core" of "megatron/core/transformer/x.py": the first two folders of a path.
fs::path module_of(const std::string& file) {
  const std::size_t first = file.find('/'), second = file.find('/', first + 1);
  return file.substr(0, second == std::string::npos ? first : second);
}

/// The answers of one pack.
class PackScan {
 public:
  PackScan(const Manifest& pack, const TablePack* table, const Inventory& inventory,
           const Copies& copies)
      : pack_(pack), table_(table), inventory_(inventory), copies_(copies) {}

  std::vector<ScanAnswer> answers() {
    for (const UpstreamUse& use : pack_.upstreams) {
      if (!use.from_environment) ask(use);
    }
    if (answers_.empty()) {
      ScanAnswer none = answer(pack_.upstreams.front());
      none.state = ScanState::kNotInstalled;
      none.why = "no package of the pack is listed";
      answers_.push_back(std::move(none));
    }
    return std::move(answers_);
  }

  /// Of copies of the pack's functions in other files.
  std::vector<ScanAnswer> code_answers(const std::vector<CodeFile>& files) {
    if (table_ == nullptr) return {};
    Answered answered;
    for (const UpstreamUse& use : pack_.upstreams) {
      const auto at = copies_.find(use.name);
      for (const SourceCopy& copy : at == copies_.end() ? std::vector<SourceCopy>() : at->second) {
        for (const auto& [file, digest] : copy.files) {
          answered.files.insert(copy.root / file);
          answered.packages.insert(copy.root / file.substr(0, file.find('/')));
        }
      }
    }
    for (const FunctionCopy& copy : function_copies(pack_, *table_, files, answered)) {
      ScanAnswer next = answer(*copy.use);
      next.source = "code";
      next.file = copy.file->path.string();
      ScanJudge(pack_, *copy.use, table_, copy.upstream, inventory_, copies_)
          .judge_functions(next, copy);
      answers_.push_back(std::move(next));
    }
    return std::move(answers_);
  }

 private:
  ScanAnswer answer(const UpstreamUse& use) const {
    const TableUpstream* upstream = table_ == nullptr ? nullptr : table_->find(use.name);
    return {.input = inventory_.name,
            .slug = pack_.slug.str(),
            .title = pack_.title,
            .number = pack_.number,
            .upstream = use.name,
            .package = upstream == nullptr ? normalised(use.name) : upstream->package};
  }

  void ask(const UpstreamUse& use) {
    const TableUpstream* upstream = table_ == nullptr ? nullptr : table_->find(use.name);
    const ScanAnswer blank = answer(use);
    std::vector<const SourceCopy*> free;
    if (const auto at = copies_.find(use.name); at != copies_.end()) {
      for (const SourceCopy& copy : at->second) free.push_back(&copy);
    }
    const auto listed = inventory_.list.packages.find(blank.package);
    if (listed != inventory_.list.packages.end()) {
      for (const Listed& one : listed->second) {
        const SourceCopy* copy = copy_of(one, free);
        ScanAnswer next = blank;
        next.version = one.version;
        next.range = one.range;
        next.source = one.source;
        next.file = one.file;
        next.line = one.line;
        conclude(next, use, upstream, one, copy);
      }
      const auto is_taken = [&](const SourceCopy* copy) { return taken_.contains(copy); };
      std::erase_if(free, is_taken);
    }
    const std::size_t num_before = answers_.size();
    for (const SourceCopy* copy : free) {
      if (copy->digests(use.files).empty()) continue;
      ScanAnswer next = blank;
      next.source = "copy";
      next.file = copy->root.string();
      conclude(next, use, upstream, {.source = "copy"}, copy);
    }
    const bool is_answered =
        listed != inventory_.list.packages.end() || answers_.size() != num_before;
    if (!is_answered) ask_traces(use, blank);
  }

  /// What is not listed may be there under another name: a variant of the package, or a folder of
  /// its modules in which no file is where a record knows one.
  void ask_traces(const UpstreamUse& use, ScanAnswer next) {
    next.state = ScanState::kUnknown;
    for (const auto& [name, versions] : inventory_.list.packages) {
      if (!name.starts_with(next.package + "-")) continue;
      next.why = name + " is listed, a variant that no record knows";
      next.file = versions.front().file;
      next.line = versions.front().line;
      answers_.push_back(std::move(next));
      return;
    }
    const fs::path module = module_of(use.files.front());
    std::error_code none;
    for (const fs::path& root : inventory_.roots) {
      if (!fs::is_directory(root / module, none) || !inventory_.may_read(root / module)) continue;
      next.why = "its modules are there, and no file that a record knows";
      next.source = "copy";
      next.file = (root / module).string();
      answers_.push_back(std::move(next));
      return;
    }
  }

  /// The copy that a listed package is; null where its files are not at hand.
  const SourceCopy* copy_of(const Listed& one, const std::vector<const SourceCopy*>& all) {
    const SourceCopy* found = nullptr;
    for (const SourceCopy* copy : all) {
      if (one.roots.contains(copy->root.string())) found = found == nullptr ? copy : found;
    }
    // An import hook, a link or a .pth file may lead elsewhere than the metadata say.
    for (const SourceCopy* copy : all) {
      const bool is_import = std::find(inventory_.roots.begin(), inventory_.roots.end(),
                                       copy->root) != inventory_.roots.end();
      if (found == nullptr && !one.source.empty() && is_import && !taken_.contains(copy))
        found = copy;
    }
    if (found != nullptr) taken_.insert(found);
    return found;
  }

  void conclude(ScanAnswer next, const UpstreamUse& use, const TableUpstream* upstream,
                const Listed& one, const SourceCopy* copy) {
    const ScanJudge judge(pack_, use, table_, upstream, inventory_, copies_);
    judge.judge(next, one, copy);
    answers_.push_back(std::move(next));
  }

  const Manifest& pack_;
  const TablePack* table_;
  const Inventory& inventory_;
  const Copies& copies_;
  std::vector<ScanAnswer> answers_;
  std::set<const SourceCopy*> taken_;
};

}  // namespace

namespace {

/// Names the packages of places in git by their repositories.
void name_places(PackageList& list, const VerdictTable& table) {
  std::vector<std::pair<std::string, Listed>> places;
  places.swap(list.unnamed);
  for (auto& [text, place] : places) {
    std::set<std::string> packages;
    for (const auto& [slug, pack] : table.packs) {
      for (const TableUpstream& one : pack.upstreams)
        if (one.has_repository(place.repository)) packages.insert(one.package);
    }
    if (packages.empty()) continue;
    for (const std::string& package : packages) list.add(package, place);
    std::erase(list.unread, text);
  }
}

/// The copies of the packs' files in an inventory whose packages all have their names.
Copies named_copies(const std::vector<Manifest>& packs, const VerdictTable& table,
                    Inventory& inventory) {
  name_places(inventory.list, table);
  return copies_in(inventory, wanted_files(packs));
}

std::vector<ScanAnswer> answers_from(const std::vector<Manifest>& packs, const VerdictTable& table,
                                     const Inventory& inventory, const Copies& copies) {
  std::vector<ScanAnswer> all;
  for (const Manifest& pack : packs) {
    const auto at = table.packs.find(pack.slug.str());
    PackScan scan(pack, at == table.packs.end() ? nullptr : &at->second, inventory, copies);
    for (ScanAnswer& one : scan.answers()) all.push_back(std::move(one));
  }
  return all;
}

/// Adds the answers about copies of functions at or below `paths`.
void add_copies(std::vector<ScanAnswer>& all, const std::vector<Manifest>& packs,
                const VerdictTable& table, const std::vector<std::string>& paths,
                Inventory& inventory, const Copies& copies) {
  const std::vector<CodeFile> files = code_files(paths, packs, inventory);
  for (const Manifest& pack : packs) {
    const auto at = table.packs.find(pack.slug.str());
    PackScan scan(pack, at == table.packs.end() ? nullptr : &at->second, inventory, copies);
    std::vector<ScanAnswer> found = scan.code_answers(files);
    if (found.empty()) continue;
    std::erase_if(all, [&](const ScanAnswer& one) {
      return one.slug == pack.slug.str() && one.state == ScanState::kNotInstalled;
    });
    for (ScanAnswer& one : found) all.push_back(std::move(one));
  }
}

}  // namespace

std::vector<ScanAnswer> copies_in_code(const std::vector<Manifest>& packs,
                                       const VerdictTable& table, const std::string& path,
                                       Inventory& inventory) {
  std::vector<ScanAnswer> all;
  add_copies(all, packs, table, {path}, inventory, {});
  return all;
}

std::vector<ScanAnswer> answers_of(const std::vector<Manifest>& packs, const VerdictTable& table,
                                   Inventory& inventory) {
  const Copies copies = named_copies(packs, table, inventory);
  std::vector<ScanAnswer> all = answers_from(packs, table, inventory, copies);
  add_upgrades(all, table, [&](const PinnedPackages& pins) {
    Inventory changed = inventory;
    for (const auto& [package, release] : pins)
      changed.list.packages[package] = {{.version = release}};
    Copies left = copies;
    for (const auto& [slug, pack] : table.packs) {
      for (const TableUpstream& one : pack.upstreams) {
        if (pins.contains(one.package)) left.erase(one.name);
      }
    }
    return answers_from(packs, table, changed, left);
  });
  add_copies(all, packs, table, inventory.code, inventory, copies);
  return all;
}

std::vector<ScanAnswer> answers_without_upgrades(const std::vector<Manifest>& packs,
                                                 const VerdictTable& table, Inventory& inventory) {
  const Copies copies = named_copies(packs, table, inventory);
  return answers_from(packs, table, inventory, copies);
}

}  // namespace patchbench
