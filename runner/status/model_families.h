#pragma once
#include <filesystem>

#include "core/scan_report.h"

namespace patchbench {

/// What the measured model classes of a pack (`<evidence>/<slug>/families.json`, from
/// env/model_families.py) say of the models that were read: how far a class is off where its
/// release is wrong for it; and which failure classes are ruled out, because every model of every
/// config.json is right in that release, one of the files was named, and no other loss was read. A
/// model class or a release that was not measured leaves all open.
void apply_model_families(ScanReport& report, const std::filesystem::path& evidence);

}  // namespace patchbench
