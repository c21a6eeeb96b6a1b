#include "ledger/made.h"

#include <algorithm>

#include "ledger/ledger.h"

namespace patchbench::ledger {

bool is_dated_ahead(const std::string& started, const std::string& received) {
  return started > (received.empty() ? utc_now() : std::min(received, utc_now()));
}

void date_by_order(const std::vector<std::size_t>& own,
                   const std::function<Made&(std::size_t)>& made_of) {
  std::string newest = utc_now();
  for (std::size_t i = own.size(); i > 0; --i) {
    Made& made = made_of(own[i - 1]);
    made.date = newest = std::min(made.date, newest);
    made.order = static_cast<int64_t>(i);
  }
}

}  // namespace patchbench::ledger
