#pragma once
#include <map>
#include <set>
#include <string>

#include "core/observation.h"

namespace patchbench::harness {

/// What the cases that are drawn from one space came to.
class Tally {
 public:
  int asked = 0;       ///< cases that were to be drawn
  int same = 0;        ///< draws that gave a case which was there
  double seconds = 0;  ///< the subject's

  /// Adds one judged case.
  void count(const Observation& o);
  int num_red() const { return red_; }

  /// The summary of the space: its counts, its status, the digest of all inputs.
  void summarise(Observation& summary) const;

 private:
  int reached_ = 0, judged_ = 0, red_ = 0, unsupported_ = 0;
  std::string class_;                       ///< of the first red case
  std::map<std::string, int> in_scenario_;  ///< judged cases
  std::set<std::string> unanswered_;
  std::string inputs_;             ///< the digests of all inputs, one after the other
  Json watched_ = Json::object();  ///< what the subject's processes say (core/looked_at.h)
};

}  // namespace patchbench::harness
