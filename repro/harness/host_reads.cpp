#include "harness/host_reads.h"

#include <set>
#include <string_view>

namespace patchbench::harness {
namespace {

thread_local int64_t num_reads = 0;

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
  // A scalar read passes through aten::item as well; the read itself is _local_scalar_dense.
  static const std::set<std::string_view> kReads = {"aten::_local_scalar_dense",
                                                    "aten::equal",
                                                    "aten::is_nonzero",
                                                    "aten::nonzero",
                                                    "aten::_unique",
                                                    "aten::_unique2",
                                                    "aten::unique_dim",
                                                    "aten::unique_consecutive"};
  num_reads += kReads.contains(call.name());
  return nullptr;
}

}  // namespace

HostReadCounter::HostReadCounter()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(on_call).scopes({at::RecordScope::FUNCTION}))),
      before_(num_reads) {}

HostReadCounter::~HostReadCounter() { at::removeCallback(handle_); }

int64_t HostReadCounter::count() const { return num_reads - before_; }

}  // namespace patchbench::harness
