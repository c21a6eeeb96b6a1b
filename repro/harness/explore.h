#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "harness/answer.h"
#include "harness/pack.h"
#include "harness/records.h"
#include "harness/request.h"
#include "harness/subject_process.h"

namespace patchbench::harness {

/// The answers to a batch of cases, by name: from one subject process, or from this one.
using AnswerBatch =
    std::function<std::map<std::string, Answer>(const std::vector<SubjectCase>& batch)>;

/// What is right for one case; `why` says why nothing is, and is else empty.
struct Reference {
  Tensors oracle, plain;
  std::string why;
};

/// The references of a batch of cases, by name, where they come from outside this process.
using ReferenceBatch =
    std::function<std::map<std::string, Reference>(const std::vector<SubjectCase>& batch)>;

/// Draws cases from the request's spaces for each of its seeds, has each judged, and writes one
/// observation for each, then the smallest that shows each kind of failure, then what each space
/// came to (core/observation.h, `drawn`). Each case is judged against the oracle and by one of the
/// space's relations in turn. A failure is made smaller along RapidCheck's shrink tree, a whole
/// level of it in one batch. A subject that has to be right is also asked about mutants of its
/// outputs (regions.h); what they took is in the summary. Stops at the request's time limit; the
/// summary is then unresolved. `request.given`: these axes instead, each judged and kept.
/// With `references` these are asked instead of the pack's oracle and plain computation; a case
/// without a reference is unjudged.
void explore(const Pack& pack, const Request& request, const AnswerBatch& answers,
             const RecordWriter& records, const ReferenceBatch& references = nullptr);

}  // namespace patchbench::harness
