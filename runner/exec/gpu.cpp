#include "exec/gpu.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "core/file_text.h"
#include "exec/process.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// The entries of a folder, sorted; none if it is not there.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> list;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    list.push_back(it->path());
  }
  std::sort(list.begin(), list.end());
  return list;
}

}  // namespace

std::vector<fs::path> gpu_device_nodes() {
  std::vector<fs::path> nodes;
  std::error_code ignored;
  for (const fs::path& entry : entries_of("/dev")) {
    if (entry.filename().string().starts_with("nvidia") && fs::is_character_file(entry, ignored))
      nodes.push_back(entry);
  }
  for (const fs::path& entry : entries_of("/dev/nvidia-caps")) nodes.push_back(entry);
  return nodes;
}

std::vector<fs::path> gpu_driver_libraries() {
  std::string ldconfig = find_program("ldconfig");
  if (ldconfig.empty()) ldconfig = "/sbin/ldconfig";
  std::istringstream lines(run({.argv = {ldconfig, "-p"}}).out);
  std::vector<fs::path> found;
  for (std::string line; std::getline(lines, line);) {
    const auto arrow = line.find(" => ");
    if (arrow == std::string::npos || line.find("x86-64") == std::string::npos) continue;
    const fs::path path = line.substr(arrow + 4);
    const std::string name = path.filename().string();
    if (name.starts_with("libcuda.so") || name.starts_with("libnvidia-")) found.push_back(path);
  }
  return found;
}

bool has_gpu_cdi() {
  for (const char* folder : {"/etc/cdi", "/var/run/cdi"}) {
    for (const fs::path& file : entries_of(folder)) {
      if (file_text(file).value_or("").find("nvidia.com/gpu") != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace patchbench::exec
