#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

/// Calls of the ops from C++ programs on the whole of libtorch: the judge and the tests. A pack's
/// calls.cpp has the functions of its op.h, each of which calls the operator that op.cpp registers.
namespace patchbench::ops {

/// What an operator returns that has kCount results, all tensors.
template <size_t kCount>
using Tensors = decltype(std::tuple_cat(std::array<at::Tensor, kCount>()));

/// An operator's name in the library `patchbench`, with the overload behind a dot if it has one.
template <size_t kSize>
struct OpName {
  char text[kSize];
  consteval OpName(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }  // NOLINT
};

/// An argument's type in the dispatcher's signature: tensors by reference, all else by value.
template <typename T>
using Argument = std::conditional_t<
    std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::optional<at::Tensor>>, const T&, T>;

/// Calls the operator with all arguments of its schema, in order. Throws what the operator throws.
template <OpName kName, typename Result, typename... Arguments>
Result call_op(const Arguments&... arguments) {
  static const auto op = [] {
    const std::string name = std::string("patchbench::") + kName.text;
    const size_t dot = std::min(name.find('.'), name.size() - 1);
    const bool has_overload = name[dot] == '.';
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(name.substr(0, has_overload ? dot : name.size()).c_str(),
                           has_overload ? name.c_str() + dot + 1 : "")
        .template typed<Result(Argument<Arguments>...)>();
  }();
  return op.call(arguments...);
}

}  // namespace patchbench::ops
