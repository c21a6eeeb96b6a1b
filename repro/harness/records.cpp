#include "harness/records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/error.h"

namespace patchbench::harness {

RecordWriter::RecordWriter(int descriptor) : descriptor_(descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFD);
  if (flags < 0 || ::fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC) < 0) {
    throw Error(ErrorCode::kUsage, fmt::format("--records-fd {} is not an open descriptor: {}",
                                               descriptor, std::strerror(errno)));
  }
  // A reader that went away must end in an error of ours, not in a silent death.
  std::signal(SIGPIPE, SIG_IGN);
}

void RecordWriter::write(const Observation& observation) const {
  const std::string line = canonical_json(observation.to_json()) + "\n";
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("records descriptor {}: {}", descriptor_, std::strerror(errno)));
    }
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace patchbench::harness
