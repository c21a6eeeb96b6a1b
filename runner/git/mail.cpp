#include "git/mail.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "git/objects.h"

namespace patchbench::git {
namespace {

constexpr std::string_view kAuthor = "Nobody <nobody@localhost>";
constexpr std::size_t kBodyWidth = 72;

/// The diff of one edit with every path behind `prefix`.
std::string diff_at(const Edit& edit, const Pin& pin, Store& store, const std::string& prefix,
                    const std::vector<Edit>& before) {
  Objects objects = Objects::in_memory();
  const Entries modes = store.entries(pin);
  std::vector<Edit> with_edit = before;
  with_edit.push_back(edit);
  Entries from, to;
  for (const FileEdit& file : edit.files) {
    std::string mode = modes.contains(file.path) ? modes.at(file.path).mode : "100644";
    for (const Edit& earlier : before) {
      for (const FileEdit& other : earlier.files) {
        if (other.path == file.path && !other.mode.empty()) mode = other.mode;
      }
    }
    const std::optional<std::string> base = read_after(store, pin, before, file.path);
    const std::optional<std::string> result = read_after(store, pin, with_edit, file.path);
    if (base) from[prefix + file.path] = {objects.write_blob(*base), mode};
    if (result)
      to[prefix + file.path] = {objects.write_blob(*result), file.mode.empty() ? mode : file.mode};
  }
  return objects.diff(objects.write_tree(from), objects.write_tree(to));
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

/// A header value as RFC 2047 has it: one encoded word if it is not plain ASCII.
std::string encoded(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::string out = "=?UTF-8?q?";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    out += is_plain ? std::string(1, c) : c == ' ' ? "_" : fmt::format("={:02X}", byte);
  }
  return out + "?=";
}

/// "2026-11-21" as "Sat, 21 Nov 2026 00:00:00 +0000".
std::string mail_date(const std::string& day, const std::string& name) {
  int parts[3] = {0, 0, 0};
  const char* at = day.data();
  const char* const end = at + day.size();
  bool is_good = day.size() == 10;
  for (int i = 0; is_good && i < 3; ++i) {
    const auto [next, code] = std::from_chars(at, end, parts[i]);
    is_good = code == std::errc() && (i == 2 ? next == end : next != end && *next == '-');
    at = next + (i == 2 ? 0 : 1);
  }
  const std::chrono::year_month_day date{std::chrono::year(parts[0]),
                                         std::chrono::month(static_cast<unsigned>(parts[1])),
                                         std::chrono::day(static_cast<unsigned>(parts[2]))};
  if (!is_good || !date.ok())
    throw Error(ErrorCode::kUsage, name + ": Last-Update is a day, YYYY-MM-DD");
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::chrono::weekday weekday{std::chrono::sys_days(date)};
  return fmt::format("{}, {} {} {} 00:00:00 +0000", kDays[weekday.c_encoding()], parts[2],
                     kMonths[parts[1] - 1], parts[0]);
}

/// A text in lines of at most `kBodyWidth` characters, as commit messages are written. Lines that
/// are set in are left as they are.
std::string wrapped(std::string_view text) {
  std::string out;
  for (std::string_view line : split_lines(text)) {
    while (line.size() > kBodyWidth && line.front() != ' ') {
      std::size_t space = line.rfind(' ', kBodyWidth);
      if (space == line.npos) space = line.find(' ');
      if (space == line.npos) break;
      out += std::string(line.substr(0, space)) + "\n";
      line.remove_prefix(space + 1);
    }
    out += std::string(line) + "\n";
  }
  return out;
}

/// The description as a commit message's body: what a mail reader would take for a diff, a cut or a
/// new mail is set in.
std::string body_of(const Edit& edit) {
  const std::string description = wrapped(edit.field("Description"));
  std::string body;
  for (const std::string_view line : split_lines(description)) {
    const bool is_read_otherwise = line.starts_with("---") || line.starts_with("diff -") ||
                                   line.starts_with("Index: ") || line.starts_with("From ") ||
                                   line.starts_with("-- ") || line.starts_with(">From ");
    body += (is_read_otherwise ? " " : "") + std::string(line) + "\n";
  }
  if (!edit.field("Bug").empty())
    body += (body.empty() ? "Bug: " : "\nBug: ") + edit.field("Bug") + "\n";
  return body;
}

}  // namespace

std::string unified_diff(const Edit& edit, const Pin& pin, Store& store,
                         const std::vector<Edit>& before) {
  return diff_at(edit, pin, store, "", before);
}

bool is_mailbox(std::string_view text) {
  const std::size_t open = text.find(" <"), at = text.find('@'), close = text.find('>');
  if (open == text.npos || open == 0 || at == text.npos || close != text.size() - 1) return false;
  const std::string_view name = text.substr(0, open);
  const std::string_view address = text.substr(open + 2, close - open - 2);
  const bool has_control = std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return !has_control && name.front() != ' ' && name.find_first_of("<>\"") == name.npos &&
         address.find_first_of(" <\"") == address.npos && address.find('@') > 0 &&
         address.find('@') == address.rfind('@') && address.back() != '@';
}

std::string format_mail(const Edit& edit, const Pin& pin, Store& store,
                        const std::string& git_prefix, int number, int total,
                        const std::vector<Edit>& before, const std::string& signer) {
  const std::string diff = diff_at(edit, pin, store, git_prefix, before);
  const std::string named = edit.field("Author").empty() ? signer : edit.field("Author");
  const std::string author = named.empty() ? std::string(kAuthor) : named;
  const size_t address = author.find(" <");
  const std::string number_of = total > 1 ? fmt::format(" {}/{}", number, total) : "";
  std::string mail = fmt::format("From {:0>40} Mon Sep 17 00:00:00 2001\n", 0);
  mail += "From: " + encoded(author.substr(0, address)) +
          (address == std::string::npos ? "" : author.substr(address)) + "\n";
  mail += "Date: " + mail_date(edit.field("Last-Update"), edit.name) + "\n";
  mail += "Subject: [PATCH" + number_of + "] " + encoded(edit.field("Subject")) + "\n";
  mail +=
      "MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: "
      "8bit\n\n";
  mail += body_of(edit);
  if (!signer.empty()) mail += "\nSigned-off-by: " + signer + "\n";
  mail += "---\n";
  if (signer.empty())
    mail +=
        "Not signed off: export it again with --from \"Name <mail>\", or take it with\n"
        "git am, then git commit --amend --reset-author --signoff.\n";
  mail += "Base: " + pin.upstream + " " + pin.version + "\n";
  if (diff.find("\r\n") != std::string::npos)
    mail += "Lines end in CR here: apply with git am --keep-cr.\n";
  return mail + "\n" + diff + "-- \n\n";
}

}  // namespace patchbench::git
