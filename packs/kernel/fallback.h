#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

namespace patchbench::ops {

/// Whether PATCHBENCH_OP_FALLBACK, a comma-separated list of slugs, names this pack: its op then
/// takes the plain torch form. Read at every call.
inline bool is_fallback_forced(std::string_view slug) {
  const char* value = std::getenv("PATCHBENCH_OP_FALLBACK");
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    if (rest.substr(0, comma) == slug) return true;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return false;
}

/// Whether the plain torch form of `op` on a GPU is news: it is not forced for its pack `slug`, and
/// this process was not told yet.
inline bool is_plain_form_news(std::string_view slug, const std::string& op) {
  if (is_fallback_forced(slug)) return false;
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::scoped_lock lock(mutex);
  return told.insert(op).second;
}

/// Warns once for each op of a process that the plain torch form serves tensors of a GPU: its
/// results are right, but it is slower and holds more memory than the kernels. `needs` says what
/// the kernels serve. Silent for other devices, and where the plain form is forced.
template <typename Tensor>
void warn_of_plain_form(std::string_view slug, const std::string& op, const Tensor& tensor,
                        const char* needs) {
  if (!tensor.is_cuda() || !is_plain_form_news(slug, op)) return;
  const std::string text = "patchbench::" + op + " uses its plain torch form on this GPU. Its " +
                           "kernels need " + needs + ". This warning comes once.";
  aoti_torch_warn(__func__, __FILE__, __LINE__, text.c_str());
}

}  // namespace patchbench::ops
