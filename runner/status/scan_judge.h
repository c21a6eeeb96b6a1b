#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/scan_report.h"
#include "status/function_copies.h"
#include "status/inventory.h"
#include "status/source_copies.h"
#include "status/verdict_table.h"

namespace patchbench {

/// Judges one listed version, or one copy of the files, of one upstream of one pack; the rules are
/// the ones in status/scan.h. Holds references to all that it is given.
class ScanJudge {
 public:
  ScanJudge(const Manifest& pack, const UpstreamUse& use, const TablePack* table,
            const TableUpstream* upstream, const Inventory& inventory,
            const std::map<std::string, std::vector<SourceCopy>>& copies)
      : pack_(pack),
        use_(use),
        table_(table),
        upstream_(upstream),
        inventory_(inventory),
        copies_(copies) {}
  /// `copy`: its files, null where they are not at hand.
  void judge(ScanAnswer& answer, const Listed& listed, const SourceCopy* copy) const;
  /// The same of functions in a file of another name.
  void judge_functions(ScanAnswer& answer, const FunctionCopy& copy) const;

 private:
  using Files = std::map<std::string, std::string>;
  void judge_release(ScanAnswer& answer, const Listed& listed, const SourceCopy* copy) const;
  void judge_files(ScanAnswer& answer, const Listed& listed, const SourceCopy& copy,
                   const Files& files) const;
  void judge_version(ScanAnswer& answer, const Listed& listed) const;
  void judge_range(ScanAnswer& answer, const std::string& range) const;
  void judge_older_range(ScanAnswer& answer, const std::string& range) const;
  void take(ScanAnswer& answer, const TableRelease& release, const std::string& remark) const;
  void take_older(ScanAnswer& answer, const OlderRelease& release, const std::string& remark) const;
  void take_classes(ScanAnswer& answer, const TableRelease& release) const;
  void leave_open(ScanAnswer& answer, const std::string& why) const;
  std::string unmeasured(const std::string& version) const;
  void check_requirements(ScanAnswer& answer) const;
  void add_mitigation(ScanAnswer& answer) const;
  void add_next(ScanAnswer& answer) const;

  const Manifest& pack_;
  const UpstreamUse& use_;
  const TablePack* table_;
  const TableUpstream* upstream_;
  const Inventory& inventory_;
  const std::map<std::string, std::vector<SourceCopy>>& copies_;
};

}  // namespace patchbench
