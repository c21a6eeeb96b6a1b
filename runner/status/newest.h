#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/record.h"
#include "ledger/record_set.h"

namespace patchbench {

/// A verdict with what it was made of.
struct NewestVerdict {
  const ledger::Entry* entry;
  RunContext run;
  QuestionContext question;
  Outcome outcome;

  std::string question_text() const;  ///< "reproduce model", "claim NAME", "mitigation MODE"
  std::string device() const { return run.machine.value("device", "cpu"); }
  std::string upstream() const { return run.pin.upstream(); }
  std::string version() const { return run.pin.version(); }
};

/// The newest verdict on each question about one version of one pack on one device, among the ones
/// of which `counts` is true; unsigned imports are left out. In the order of slug, upstream,
/// version, its companions, question, device.
std::vector<NewestVerdict> newest_verdicts(const ledger::RecordSet& record_set,
                                           const std::function<bool(const NewestVerdict&)>& counts);

}  // namespace patchbench
