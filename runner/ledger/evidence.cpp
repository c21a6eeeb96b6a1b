#include "ledger/evidence.h"
#include "core/file_text.h"
#include "ledger/jsonl.h"
#include "ledger/made.h"

#include <set>

namespace patchbench::ledger {

void each_evidence_file(const std::filesystem::path& root, const std::vector<std::string>& slugs,
                        const std::function<void(const std::string&, const std::string&)>& take) {
  for (const std::string& slug : slugs) {
    const std::filesystem::path folder = root / "reports/evidence" / slug;
    if (!std::filesystem::exists(folder)) continue;
    std::set<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() == ".jsonl") files.insert(file.path());
    }
    for (const std::filesystem::path& file : files) {
      take(read_file(file), file.string());
    }
  }
}

std::vector<Entry> evidence(const std::filesystem::path& root,
                            const std::vector<std::string>& slugs) {
  std::vector<Entry> entries;
  each_evidence_file(root, slugs, [&](const std::string& text, const std::string& file) {
    for (Incoming& one : read_jsonl(text, file)) {
      Entry entry;
      entry.digest = std::move(one.digest);
      entry.origin = "local";
      entry.record = std::move(one.record);
      entry.made = {entry.record.started(), 0, entry.digest};
      entries.push_back(std::move(entry));
    }
  });
  return entries;
}

std::vector<Entry> known(const std::filesystem::path& ledger, const std::filesystem::path& root,
                         const std::vector<std::string>& slugs) {
  std::vector<Entry> entries;
  if (std::filesystem::exists(ledger)) entries = Ledger::open(ledger)->all();
  std::set<std::string> own;
  std::erase_if(entries, [&](const Entry& entry) {
    if (entry.made.order > 0) own.insert(entry.digest);
    return entry.made.order == 0 && is_dated_ahead(entry.made.date, entry.received);
  });
  for (Entry& entry : evidence(root, slugs)) {
    if (!own.contains(entry.digest) && !is_dated_ahead(entry.made.date, ""))
      entries.push_back(std::move(entry));
  }
  const std::set<std::string> evicted = evicted_digests(entries);
  std::erase_if(entries, [&](const Entry& entry) { return evicted.contains(entry.digest); });
  return entries;
}

}  // namespace patchbench::ledger
