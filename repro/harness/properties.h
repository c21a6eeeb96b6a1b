#pragma once
#include "core/json.h"
#include "harness/pack.h"

namespace patchbench::harness {

/// What can be said of a case's inputs besides its axes, for `--explain`: "<tensor>.<property>" ->
/// true or false.
///
///   uniform            every element is the same
///   uniform_where_kept of an upstream gradient: the rows that another input keeps are the same as
///                      the first row. An integer input with one value a row keeps the rows that
///                      are neither negative nor the axis `ignore_index`
///   first_row_zero     the first of several rows is 0
///   has_stride_0, is_contiguous, has_offset
///                      how a floating-point input is stored
///   has_negative, has_ties
///                      of integer inputs
Json properties_of(const Case& item, const Tensors& inputs);

}  // namespace patchbench::harness
