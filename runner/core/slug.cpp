#include "core/slug.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace patchbench {
namespace {

constexpr size_t kMaxSlug = 48;
constexpr size_t kMaxListed = 12;

bool is_slug(std::string_view text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_word = [&](char c) { return is_lower(c) || (c >= '0' && c <= '9'); };
  if (text.empty() || text.size() > kMaxSlug || !is_lower(text.front()) || text.back() == '_')
    return false;
  if (text.find("__") != std::string_view::npos) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) { return is_word(c) || c == '_'; });
}

/// Levenshtein distance: insertions, deletions and replacements.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

}  // namespace

Slug::Slug(std::string text) : text_(std::move(text)) {
  if (!is_slug(text_)) {
    throw Error(
        ErrorCode::kUsage,
        "\"" + shown(text_) +
            "\" is no slug: lower-case words of letters and digits joined by \"_\", at most 48 "
            "characters, e.g. liger_flce_none_bwd");
  }
}

const std::vector<Column>& all_columns() {
  static const std::vector<Column> columns = {Column::kPack,    Column::kRepro,
                                              Column::kPatches, Column::kMitigation,
                                              Column::kTest,    Column::kEvidence};
  return columns;
}

std::string column_name(Column column) {
  switch (column) {
    case Column::kPack:
      return "packs";
    case Column::kRepro:
      return "repro";
    case Column::kPatches:
      return "patches";
    case Column::kMitigation:
      return "mitigations";
    case Column::kTest:
      return "tests";
    case Column::kEvidence:
      return "reports";
  }
  throw Error(ErrorCode::kInternal, "a column outside of the table");
}

std::string cell_path(const Slug& slug, Column column) {
  switch (column) {
    case Column::kPack:
    case Column::kRepro:
    case Column::kPatches:
      return column_name(column) + "/" + slug.str();
    case Column::kMitigation:
      return "mitigations/patchbench_mitigations/" + slug.str() + ".py";
    case Column::kTest:
      return "tests/packs/" + slug.str() + "_test.cpp";
    case Column::kEvidence:
      return "reports/evidence/" + slug.str();
  }
  throw Error(ErrorCode::kInternal, "a column outside of the table");
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  size_t best = word.size() / 3 + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const size_t d = distance(word, candidate);
    if (d < best) {
      best = d;
      found = candidate;
    }
  }
  return found;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  if (candidates.empty()) return "";
  const std::string near = nearest(word, candidates);
  if (!near.empty()) return "; did you mean " + near + "?";
  std::string out = "; one of: ";
  for (size_t i = 0; i < candidates.size() && i < kMaxListed; ++i)
    out += (i ? ", " : "") + candidates[i];
  if (candidates.size() > kMaxListed)
    out += " and " + std::to_string(candidates.size() - kMaxListed) + " more";
  return out;
}

}  // namespace patchbench
