#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/manifest.h"

/// A case's axes, read with a check. All throw Error(kUsage) `case NAME: axis 'X' ...`.
namespace patchbench::harness {

[[noreturn]] void refuse(const Case& item, const std::string& reason);
const Json& axis(const Case& item, const std::string& name);
/// A whole number in [1, 2^20].
int64_t extent(const Case& item, const std::string& name);
/// A number >= 0.
double amount(const Case& item, const std::string& name);
bool flag(const Case& item, const std::string& name);
/// Whole numbers of at least 1 that add up to `total`.
std::vector<int64_t> lengths(const Case& item, const std::string& name, int64_t total);
/// One of `known`, with did-you-mean; a value that is not text is taken as JSON spells it.
std::string choice(const Case& item, const std::string& name,
                   const std::vector<std::string>& known);
/// How often the subject goes backward through one graph, or calls a backward on the same tensors;
/// the last gradients count. Axis `backwards`, 1 where it is not there.
int64_t backwards(const Case& item);
/// The factor by which the harness multiplies the upstream gradient: axis `gradient_times`, 1 where
/// it is not there.
double gradient_times(const Case& item);
/// An axis that a case need not have: the factor by which a pack multiplies some of its inputs, 1
/// where it is not there. `logits_times`: what logits are made of; a softmax of large logits is
/// that of few classes or keys. `decay_times`: the logarithm of a decay.
double factor(const Case& item, const std::string& name);
/// `known`, and `name` where the case has it.
std::vector<std::string> with_optional(const Case& item, std::vector<std::string> known,
                                       const std::string& name);
/// The case has exactly these axes, and may have those that the harness gives every pack:
/// `backwards`; `scaled_from`, a case whose inputs it takes, with `gradient_times`; `grad_layout`
/// "expanded": the upstream gradient is one value of stride 0, as out.sum() makes it, or one of
/// layouts.h; `grad_mask`, rows of it that are 0; `input_layout`, of the other floating inputs;
/// `input_times`, a factor of these; `scenario` (core/scenario.h).
void check_axes(const Case& item, const std::vector<std::string>& known);

}  // namespace patchbench::harness
