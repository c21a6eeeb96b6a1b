#pragma once
#include <string>
#include <string_view>

#include "status/pack_records.h"

namespace patchbench {

/// What the words in the cells of a verdict table mean. `glossary`: the page of all words, or a
/// link to it. With `table`, of the words in that text alone.
std::string verdict_legend(std::string_view glossary = "packs/README.md",
                           std::string_view table = "");
/// A line for each pack: on which devices its random cases are in each scenario, and the sizes of
/// its cases on a CPU that end below a real model's.
std::string looked_at_table(const std::vector<Manifest>& packs);
/// reports/STATUS.md: dates, no ages; one row per version, question and device.
std::string status_markdown(const PackRecords& verdicts);
/// The README's table: a line for each pack that has a verdict, from its manifest and its windows.
std::string pack_table(const PackRecords& verdicts);
/// A pack page's table: what holds on each tested release (the manifest's red_pin), a line for each
/// device; the legend after it.
std::string tested_release_table(const PackRecords& verdicts);

}  // namespace patchbench
