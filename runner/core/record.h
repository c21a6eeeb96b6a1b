#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/observation.h"
#include "core/question.h"
#include "core/run_facts.h"
#include "core/sentinel.h"

namespace patchbench {

/// Where and on what a run took place; stands in every record of the run.
struct RunContext {
  std::string run_id;   ///< 16 hex, from the inputs of the run and its start time
  std::string started;  ///< ISO 8601 UTC
  std::string tool;     ///< patchbench version + build commit
  std::string slug, manifest_sha256;
  RunPin pin;                      ///< the version under test
  std::string tree;                ///< git tree id of the checkout, edits applied
  std::vector<std::string> edits;  ///< sha256 of each .edit applied, in order
  Json files;                      ///< upstream file -> sha256, read on the checkout by the runner
  std::string environment;         ///< name and address of the unpacked lock, or "host:<digest>"
  RunSandbox sandbox;
  Json machine;  ///< {"device","driver","cpu","os"}
  /// Empty members are left out.
  Json to_json() const;
  /// Strict: unknown or missing keys and malformed digests and times throw Error(kUsage).
  static RunContext from_json(const Json& json);
  /// Whether the subject ran in a sandbox that keeps it apart: false is shown as `unisolated`
  /// with every sentinel.
  bool is_isolated() const { return sandbox.is_isolated(); }
};

/// One ledger entry: an in-toto Statement v1 whose predicate is one of ours.
/// predicateType: urn:patchbench:observation:v1, :plan:v1, :verdict:v1, :window:v1,
/// :measurement:v1, :evict:v1. The predicate holds the run under "context" and, next to it:
/// observation:
/// {"observation"} · plan: {"plan" (RunPlan::to_json)} · verdict: {"question", "sentinel"
/// (Outcome::text), "argument", "alias", "why", "observations" (digests), "plan" (its digest; older
/// ones have none)} · evict: {"digest", "why"} · window and measurement: the body's own
/// keys. The statement's subject is the checkout (gitTree), or the manifest (sha256) where there is
/// none.
struct Record {
  Json statement;
  std::string digest() const;  ///< SHA-256 of the RFC 8785 form
  std::string type() const;    ///< "observation", "verdict", …
  const Json& predicate() const;
  std::string run_id() const;   ///< of the context
  std::string started() const;  ///< of the context
};

Record make_observation_record(const RunContext& context, const Observation& observation);
/// Cites the digests of the observation records it rests on, and of the plan record; "" where no
/// plan is known.
Record make_verdict_record(const RunContext& context, const QuestionContext& question,
                           const Outcome& outcome,
                           const std::vector<std::string>& observation_digests,
                           const std::string& plan_digest = "");
/// Any other predicate ("plan", "window", "measurement", "evict") about the subject of `context`.
/// Throws Error(kInternal) on another type, a body that is not an object or has a key "context".
Record make_record(const std::string& type, const RunContext& context, Json predicate);

/// The observation of an observation record. Throws Error(kUsage) on another type.
Observation observation_of(const Record& record);
/// The outcome a verdict record states. Throws Error(kUsage) on another type.
Outcome outcome_of(const Record& record);
/// The digests a verdict record cites, in its order.
std::vector<std::string> cited_by(const Record& verdict);

/// Checks a record's form strictly (RFC 8785 bytes, schema urn, digests, keys, size <= 2 KiB for
/// observations without logs: 8 KiB hard limit; 1 MiB for all others). Throws Error(kUsage)
/// `<where>: <reason>`.
Record parse_record(std::string_view line, const std::string& where);

/// What the check of a verdict asks of an observation record.
struct Witness {
  std::string run_id, group;  ///< group: one run's observations of one subject on one tree
  /// Without what no predicate reads: of self_reported the numbers are kept, `outside` is null.
  Observation observation;
};
/// Throws Error(kUsage) on another type.
Witness witness_of(const Record& observation);

/// What the check of a verdict asks of the records of its run, by digest.
struct RunWitnesses {
  std::map<std::string, Witness> observations;
  std::map<std::string, Json> plans;
  /// Takes what is of use; other types are left out.
  void add(const Record& record, const std::string& digest);
};

/// Recomputes a verdict record's outcome from the observations it cites. Throws Error(kIntegrity)
/// if sentinel, argument or alias differ, if a cited digest is not among `run`, if one is cited
/// twice or belongs to another run, if `run` holds an observation of the same run, subject, pin and
/// edits that is not cited, and if its plan asks for a case that no cited observation is of: a
/// sentinel rests on all that was asked and seen.
void check_verdict(const Record& verdict, const RunWitnesses& run);

/// chain_i = SHA-256(chain_{i-1} || digest_i), both as 64 hex digits; chain_{-1} is 64 zeros ("" is
/// taken for it).
std::string chain_next(const std::string& previous, const std::string& digest);

}  // namespace patchbench
