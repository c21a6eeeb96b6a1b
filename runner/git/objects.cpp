#include "git/objects.h"

#include <git2/sys/mempack.h>
#include <git2/sys/repository.h>

#include <cstdio>

#include "core/edit.h"

namespace patchbench::git {
namespace {

std::string last_message() {
  const git_error* error = git_error_last();
  return error != nullptr && error->message != nullptr ? error->message : "no message";
}

void check(int code, const std::string& what) {
  if (code < 0) throw Error(ErrorCode::kInternal, what + ": " + last_message());
}

void check_object(int code, const std::string& what) {
  if (code < 0) throw Damaged(what + ": " + last_message());
}

/// Owns what libgit2 hands out.
template <typename T, void (*kFree)(T*)>
class Owned {
 public:
  Owned() = default;
  ~Owned() { kFree(value_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T** out() { return &value_; }
  T* get() const { return value_; }

 private:
  T* value_ = nullptr;
};
using Blob = Owned<git_blob, git_blob_free>;
using Tree = Owned<git_tree, git_tree_free>;
using Commit = Owned<git_commit, git_commit_free>;
using Index = Owned<git_index, git_index_free>;
using Diff = Owned<git_diff, git_diff_free>;
using Reference = Owned<git_reference, git_reference_free>;
using Signature = Owned<git_signature, git_signature_free>;

git_oid oid_of(const std::string& id) {
  git_oid oid;
  check(git_oid_fromstr(&oid, id.c_str()), "git id " + id);
  return oid;
}

std::string text_of(const git_oid& oid) {
  std::string text(GIT_OID_HEXSZ, '0');
  git_oid_fmt(text.data(), &oid);
  return text;
}

std::string mode_text(git_filemode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%06o", static_cast<unsigned>(mode));
  return text;
}

struct Walk {
  Entries entries;
};

int visit(const char* folder, const git_tree_entry* entry, void* payload) {
  if (git_tree_entry_type(entry) == GIT_OBJECT_TREE) return 0;
  static_cast<Walk*>(payload)->entries[std::string(folder) + git_tree_entry_name(entry)] = {
      text_of(*git_tree_entry_id(entry)), mode_text(git_tree_entry_filemode(entry))};
  return 0;
}

constexpr std::string_view kOurs = "<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<< patched";
constexpr std::string_view kMiddle = "================================";
constexpr std::string_view kTheirs = ">>>>>>>>>>>>>>>>>>>>>>>>>>>>>>>> upstream";

class MergeResult {
 public:
  MergeResult(std::string_view base, std::string_view ours, std::string_view theirs,
              git_merge_file_favor_t favor) {
    git_merge_file_input inputs[3] = {GIT_MERGE_FILE_INPUT_INIT, GIT_MERGE_FILE_INPUT_INIT,
                                      GIT_MERGE_FILE_INPUT_INIT};
    const std::string_view texts[3] = {base, ours, theirs};
    for (int i = 0; i < 3; ++i) {
      inputs[i].ptr = texts[i].data();
      inputs[i].size = texts[i].size();
      inputs[i].path = "file";
      inputs[i].mode = 0100644;
    }
    git_merge_file_options options = GIT_MERGE_FILE_OPTIONS_INIT;
    options.favor = favor;
    options.our_label = "patched";
    options.their_label = "upstream";
    options.marker_size = 32;
    check(git_merge_file(&result_, &inputs[0], &inputs[1], &inputs[2], &options),
          "three-way merge");
  }
  ~MergeResult() { git_merge_file_result_free(&result_); }
  MergeResult(const MergeResult&) = delete;
  MergeResult& operator=(const MergeResult&) = delete;
  bool is_clean() const { return result_.automergeable != 0; }
  std::string_view text() const { return {result_.ptr, result_.len}; }

 private:
  git_merge_file_result result_{};
};

/// How many lines the hunks before a line of the old side put in (or, negative, take out).
struct Drift {
  int line = 0, lines = 0;
};

int add_hunk(const git_diff_delta*, const git_diff_hunk* hunk, void* payload) {
  Drift& drift = *static_cast<Drift*>(payload);
  // A hunk without old lines stands after its old_start.
  const int end = hunk->old_start + (hunk->old_lines > 0 ? hunk->old_lines : 1);
  if (end <= drift.line) drift.lines += hunk->new_lines - hunk->old_lines;
  return 0;
}

/// The line of `to` that a line of `from`, equal in both, becomes.
int same_line(std::string_view from, std::string_view to, int line) {
  git_diff_options options = GIT_DIFF_OPTIONS_INIT;
  options.context_lines = 0;
  options.flags = GIT_DIFF_FORCE_TEXT;
  Drift drift{line, 0};
  check(git_diff_buffers(from.data(), from.size(), "file", to.data(), to.size(), "file", &options,
                         nullptr, nullptr, add_hunk, nullptr, &drift),
        "diff");
  return line + drift.lines;
}

}  // namespace

void start_libgit2() {
  static const int kStarted = [] {
    git_libgit2_init();
    for (const int level : {GIT_CONFIG_LEVEL_PROGRAMDATA, GIT_CONFIG_LEVEL_SYSTEM,
                            GIT_CONFIG_LEVEL_XDG, GIT_CONFIG_LEVEL_GLOBAL}) {
      git_libgit2_opts(GIT_OPT_SET_SEARCH_PATH, level, "");
    }
    // The cache, or a project that is scanned, may be on a mount that shows another owner. Nothing
    // that a repository configures is run.
    return git_libgit2_opts(GIT_OPT_SET_OWNER_VALIDATION, 0);
  }();
  static_cast<void>(kStarted);
}

Merged merge_file(std::string_view base, std::string_view ours, std::string_view theirs) {
  start_libgit2();
  Merged merged;
  const MergeResult marked(base, ours, theirs, GIT_MERGE_FILE_FAVOR_NORMAL);
  merged.is_clean = marked.is_clean();
  if (merged.is_clean) {
    merged.text = marked.text();
    return merged;
  }
  const MergeResult favored(base, ours, theirs, GIT_MERGE_FILE_FAVOR_THEIRS);
  int line_of_favored = 1;
  enum { kOutside, kInOurs, kInTheirs } where = kOutside;
  for (const std::string_view line : split_lines(marked.text())) {
    if (where == kOutside && line == kOurs) {
      merged.conflicts.push_back({{}, {}, same_line(favored.text(), theirs, line_of_favored)});
      where = kInOurs;
    } else if (where == kInOurs && line == kMiddle) {
      where = kInTheirs;
    } else if (where == kInTheirs && line == kTheirs) {
      where = kOutside;
    } else if (where == kInOurs) {
      merged.conflicts.back().ours.emplace_back(line);
    } else {
      if (where == kInTheirs) merged.conflicts.back().theirs.emplace_back(line);
      ++line_of_favored;
    }
  }
  return merged;
}

Objects Objects::open(const std::filesystem::path& bare) {
  start_libgit2();
  git_repository* repo = nullptr;
  if (std::filesystem::exists(bare)) {
    check_object(git_repository_open_bare(&repo, bare.c_str()), bare.string());
  } else {
    std::filesystem::create_directories(bare.parent_path());
    const std::filesystem::path part = bare.string() + ".tmp";
    std::filesystem::remove_all(part);
    check(git_repository_init(&repo, part.c_str(), 1), part.string());
    git_repository_free(repo);
    std::filesystem::rename(part, bare);
    check(git_repository_open_bare(&repo, bare.c_str()), bare.string());
  }
  return Objects(repo);
}

Objects Objects::in_memory() {
  start_libgit2();
  git_odb* odb = nullptr;
  check(git_odb_new(&odb), "object database");
  git_odb_backend* backend = nullptr;
  git_repository* repo = nullptr;
  int code = git_mempack_new(&backend);
  if (code == 0) code = git_odb_add_backend(odb, backend, 1);
  if (code == 0) code = git_repository_wrap_odb(&repo, odb);
  git_odb_free(odb);
  check(code, "object database in memory");
  return Objects(repo);
}

std::string Objects::write_blob(std::string_view bytes) {
  git_oid oid;
  check(git_blob_create_from_buffer(&oid, repo_.get(), bytes.data(), bytes.size()),
        "writing a blob");
  return text_of(oid);
}

bool Objects::has(const std::string& id) const {
  const git_oid oid = oid_of(id);
  git_odb* odb = nullptr;
  check(git_repository_odb(&odb, repo_.get()), "the object database");
  const bool is_there = git_odb_exists(odb, &oid) == 1;
  git_odb_free(odb);
  return is_there;
}

std::string Objects::read_blob(const std::string& id) const {
  const git_oid oid = oid_of(id);
  Blob blob;
  check_object(git_blob_lookup(blob.out(), repo_.get(), &oid), "blob " + id);
  return {static_cast<const char*>(git_blob_rawcontent(blob.get())),
          static_cast<size_t>(git_blob_rawsize(blob.get()))};
}

std::string Objects::write_tree(const Entries& entries) {
  Index index;
  check(git_index_new(index.out()), "index");
  for (const auto& [path, entry] : entries) {
    git_index_entry row{};
    row.path = path.c_str();
    row.id = oid_of(entry.id);
    row.mode = static_cast<uint32_t>(std::stoul(entry.mode, nullptr, 8));
    check(git_index_add(index.get(), &row), path);
  }
  git_oid oid;
  check(git_index_write_tree_to(&oid, index.get(), repo_.get()), "writing a tree");
  return text_of(oid);
}

Entries Objects::read_tree(const std::string& id) const {
  const git_oid oid = oid_of(id);
  Tree tree;
  check_object(git_tree_lookup(tree.out(), repo_.get(), &oid), "tree " + id);
  Walk walk;
  check_object(git_tree_walk(tree.get(), GIT_TREEWALK_PRE, visit, &walk), "tree " + id);
  return walk.entries;
}

std::string Objects::write_commit(const std::string& tree_id, const std::string& message) {
  const git_oid tree_oid = oid_of(tree_id);
  Tree tree;
  check_object(git_tree_lookup(tree.out(), repo_.get(), &tree_oid), "tree " + tree_id);
  Signature who;
  check(git_signature_new(who.out(), "patchbench", "patchbench@localhost", 0, 0), "signature");
  git_oid oid;
  check(git_commit_create(&oid, repo_.get(), nullptr, who.get(), who.get(), nullptr,
                          message.c_str(), tree.get(), 0, nullptr),
        "writing a commit");
  return text_of(oid);
}

std::string Objects::tree_of(const std::string& commit_id) const {
  const git_oid oid = oid_of(commit_id);
  Commit commit;
  check_object(git_commit_lookup(commit.out(), repo_.get(), &oid), "commit " + commit_id);
  return text_of(*git_commit_tree_id(commit.get()));
}

std::string Objects::ref(const std::string& name) const {
  git_oid oid;
  const int code = git_reference_name_to_id(&oid, repo_.get(), name.c_str());
  if (code == GIT_ENOTFOUND) return "";
  check_object(code, name);
  return text_of(oid);
}

void Objects::set_ref(const std::string& name, const std::string& commit) {
  const git_oid oid = oid_of(commit);
  Reference reference;
  check(git_reference_create(reference.out(), repo_.get(), name.c_str(), &oid, 1, nullptr), name);
}

std::string Objects::diff(const std::string& from_tree, const std::string& to_tree) const {
  Tree from, to;
  const git_oid from_oid = oid_of(from_tree), to_oid = oid_of(to_tree);
  check_object(git_tree_lookup(from.out(), repo_.get(), &from_oid), "tree " + from_tree);
  check_object(git_tree_lookup(to.out(), repo_.get(), &to_oid), "tree " + to_tree);
  git_diff_options options = GIT_DIFF_OPTIONS_INIT;
  options.flags = GIT_DIFF_FORCE_TEXT;
  options.context_lines = 3;
  options.interhunk_lines = 0;
  options.id_abbrev = GIT_OID_HEXSZ;
  options.old_prefix = "a";
  options.new_prefix = "b";
  Diff diff;
  check(git_diff_tree_to_tree(diff.out(), repo_.get(), from.get(), to.get(), &options), "diff");
  git_buf text = GIT_BUF_INIT;
  const int code = git_diff_to_buf(&text, diff.get(), GIT_DIFF_FORMAT_PATCH);
  std::string out(text.ptr == nullptr ? "" : text.ptr, text.size);
  git_buf_dispose(&text);
  check(code, "diff");
  return out;
}

void Objects::write_index(const std::filesystem::path& file, const std::string& tree_id) const {
  const git_oid oid = oid_of(tree_id);
  Tree tree;
  check_object(git_tree_lookup(tree.out(), repo_.get(), &oid), "tree " + tree_id);
  std::filesystem::remove(file);
  Index index;
  check(git_index_open(index.out(), file.c_str()), file.string());
  check(git_index_read_tree(index.get(), tree.get()), file.string());
  check(git_index_write(index.get()), file.string());
}

}  // namespace patchbench::git
