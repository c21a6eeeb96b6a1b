#include "run/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "exec/environment.h"

namespace patchbench {

namespace {

bool has_mode(const Manifest& manifest, const Subject& subject) {
  const std::vector<std::string> modes = manifest.modes();
  return subject == SubjectKind::kMitigated &&
         std::find(modes.begin(), modes.end(), subject.mode()) != modes.end();
}

}  // namespace

void check_cases(const Manifest& manifest, const std::vector<std::string>& cases) {
  std::vector<std::string> names;
  for (const Case& c : manifest.cases) names.push_back(c.name);
  for (const std::string& name : cases) {
    if (manifest.find_case(name) == nullptr) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: no case '{}'{}", manifest.slug.str(), name,
                                                 did_you_mean(name, names)));
    }
  }
}

void check_subject(const Manifest& manifest, const Subject& subject) {
  if (has_subject(manifest, subject)) return;
  const std::string kind = subject.text().substr(0, subject.text().find(':'));
  throw Error(ErrorCode::kUsage, fmt::format("{}: no subject '{}'{}", manifest.slug.str(), subject,
                                             did_you_mean(kind, manifest.subjects)));
}

void need_mode(const Manifest& manifest, const Subject& subject) {
  const std::vector<std::string> modes = manifest.modes();
  if (subject != SubjectKind::kMitigated || subject == Subject(SubjectKind::kMitigated) ||
      modes.empty() || has_mode(manifest, subject))
    return;
  throw Error(ErrorCode::kUsage, fmt::format("{}: --subject {}: the mitigation has no mode '{}'{}",
                                             manifest.slug.str(), subject, subject.mode(),
                                             did_you_mean(subject.mode(), modes)));
}

bool has_subject(const Manifest& manifest, const Subject& subject) {
  const auto& subjects = manifest.subjects;
  const Subject known = subject.is_lone_edit()        ? SubjectKind::kPatched
                        : has_mode(manifest, subject) ? SubjectKind::kMitigated
                                                      : subject;
  return std::find(subjects.begin(), subjects.end(), known.text()) != subjects.end();
}

const UpstreamUse& upstream_use(const Manifest& manifest, const std::string& wanted,
                                const Subject& subject) {
  if (manifest.upstreams.empty()) {
    throw Error(ErrorCode::kNotRunnable,
                manifest.slug.str() + ": names no upstream; try --subject op or model");
  }
  const std::string acts_on = subject == SubjectKind::kMitigated ? manifest.mitigated() : "";
  const std::string name = wanted.empty() ? acts_on : wanted;
  if (!acts_on.empty() && name != acts_on) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: the mitigation acts on {}, not on {}",
                                               manifest.slug.str(), acts_on, name));
  }
  if (name.empty()) return manifest.upstreams.front();
  std::vector<std::string> names;
  for (const UpstreamUse& use : manifest.upstreams) {
    if (use.name == name) return use;
    names.push_back(use.name);
  }
  throw Error(ErrorCode::kUsage, fmt::format("{}: no upstream '{}'{}", manifest.slug.str(), name,
                                             did_you_mean(name, names)));
}

Device chosen_device(const std::optional<std::string>& wanted) {
  const std::vector<exec::Gpu> gpus = exec::find_gpus();
  if (!wanted) return gpus.empty() ? Device{} : Device{DeviceKind::kCuda, 0};
  const std::optional<Device> device = Device::parse(*wanted == "cuda" ? "cuda:0" : *wanted);
  if (!device)
    throw Error(ErrorCode::kUsage,
                fmt::format("--device: '{}' is neither cpu nor cuda:N", *wanted));
  if (device->is_gpu() && static_cast<std::size_t>(device->index) >= gpus.size()) {
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("--device {}: this machine has {} NVIDIA GPU{}; try --device cpu",
                            *wanted, gpus.empty() ? "no" : std::to_string(gpus.size()),
                            gpus.size() == 1 ? "" : "s"));
  }
  return *device;
}

SeedRange seeds_of(const std::string& text) {
  constexpr uint64_t kMost = 1'000'000;
  const std::size_t dash = text.find('-');
  const auto number = [&](const std::string& part) {
    const bool is_number = !part.empty() && part.size() < 20 &&
                           part.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || (dash != std::string::npos && std::stoull(part) > kMost))
      throw Error(ErrorCode::kUsage,
                  "--seed " + text + ": want a number or FIRST-LAST, each at most 1000000");
    return std::stoull(part);
  };
  const uint64_t first = number(text.substr(0, dash));
  const uint64_t last = dash == std::string::npos ? first : number(text.substr(dash + 1));
  if (last < first)
    throw Error(ErrorCode::kUsage, "--seed " + text + ": the last is before the first");
  return {first, last};
}

}  // namespace patchbench
