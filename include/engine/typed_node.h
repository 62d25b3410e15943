// Typed nodes: a kernel that is a function of its node's inputs, and returns the node's outputs.
//
//   graph.Add({.name = "dense", .inputs = {x}}, reads(weights),
//             [](const Tensor& in, const Tensor& w) { return Dot(in, w); });
//
// Parameters: an optional NodeContext& or RunContext&; one for each input; then the object of each Data that the node
// names.
//   const X&   looks at the input                 Value&     the input, whatever its type
//   X, X&&     takes the input: the node must be its only consumer
// Result: nothing, one output, or a std::tuple of several. A Value is an output of any type.
//
// Threads:   as any kernel. The function's parameters must have fixed types, which those of a generic lambda have not.
// Errors:    see Graph::Add and NodeContext.
#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "engine/data.h"
#include "engine/node.h"

namespace engine::detail {

// The parameters and the result of a function. A generic lambda has no Signature.
template <class F>
struct SignatureOf;
template <class R, class... P>
struct Signature {
  using Result = R;
  using Params = std::tuple<P...>;  // only named; no such tuple is ever made
  static constexpr bool kContext = false;
};
template <class R, class... P>
struct Signature<R, NodeContext&, P...> : Signature<R, P...> {
  static constexpr bool kContext = true;
};
template <class R, class... P>
struct Signature<R, RunContext&, P...> : Signature<R, P...> {
  static constexpr bool kContext = true;
};
template <class R, class... P>
struct SignatureOf<R (*)(P...)> : Signature<R, P...> {};
template <class R, class... P>
struct SignatureOf<R (*)(P...) noexcept> : Signature<R, P...> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...)> : Signature<R, P...> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) const> : Signature<R, P...> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) noexcept> : Signature<R, P...> {};
template <class R, class C, class... P>
struct SignatureOf<R (C::*)(P...) const noexcept> : Signature<R, P...> {};
template <class F>
  requires requires { &F::operator(); }
struct SignatureOf<F> : SignatureOf<decltype(&F::operator())> {};

// fn(inputs...) -> outputs; an optional NodeContext& or RunContext& comes first.
template <class F>
concept TypedKernel = requires { typename SignatureOf<std::decay_t<F>>::Result; } &&
                      (std::tuple_size_v<typename SignatureOf<std::decay_t<F>>::Params> > 0 ||
                       !std::is_void_v<typename SignatureOf<std::decay_t<F>>::Result>);

// How a typed kernel gets one input. A Value& gets the Value itself, whatever it holds.
template <class P>
struct InputParam {
  using Type = std::remove_cvref_t<P>;
  static constexpr bool kAny = std::is_same_v<Type, Value>;
  static_assert(!kAny || std::is_lvalue_reference_v<P>, "an input of any type is taken as `Value&`");
  static constexpr bool kLooks = kAny || (std::is_lvalue_reference_v<P> && std::is_const_v<std::remove_reference_t<P>>);
  static_assert(
      kLooks || !std::is_lvalue_reference_v<P>,
      "an input of a node is `const T&`, which looks at it, or `T` or `T&&`, which take it: others may read it");
  using Held = std::conditional_t<kAny, Value&, std::conditional_t<kLooks, const Type&, Type>>;
  static constexpr const std::type_info* kType = kAny ? nullptr : &typeid(Type);
  static Held From(NodeContext& ctx, size_t input) {
    if constexpr (kAny) {
      return ctx.In(input);
    } else if constexpr (kLooks) {
      return ctx.In<Type>(input);
    } else {
      return ctx.Take<Type>(input);
    }
  }
};

// What a typed kernel returns: nothing, one object, or a std::tuple of several.
template <class R>
struct OutputsOf {
  static constexpr std::array<const std::type_info*, 1> kTypes{&typeid(R)};
  static void Keep(NodeContext& ctx, R&& result) { ctx.Return(0, std::move(result)); }
};
template <>
struct OutputsOf<Value> {
  static constexpr std::array<const std::type_info*, 1> kTypes{nullptr};
  static void Keep(NodeContext& ctx, Value&& result) { ctx.Out(0) = std::move(result); }
};
template <>
struct OutputsOf<void> {
  static constexpr std::array<const std::type_info*, 0> kTypes{};
};
template <class... R>
struct OutputsOf<std::tuple<R...>> {
  static constexpr std::array<const std::type_info*, sizeof...(R)> kTypes{&typeid(R)...};
  static void Keep(NodeContext& ctx, std::tuple<R...>&& results) {
    [&]<size_t... kI>(std::index_sequence<kI...>) {
      (ctx.Return(kI, std::get<kI>(std::move(results))), ...);
    }(std::index_sequence_for<R...>());
  }
};

// The body of a typed node: calls fn(inputs..., objects of the Data that the node names...).
template <class F, class... Uses>
struct TypedKernelBody {
  F fn;
  std::tuple<decltype(std::declval<const Uses&>().Pin())...> pins;

  using Sign = SignatureOf<F>;
  using Outputs = OutputsOf<std::decay_t<typename Sign::Result>>;
  static constexpr size_t kObjects =
      std::tuple_size_v<decltype(std::tuple_cat(Uses::Give(std::declval<const Uses&>().Pin())...))>;
  static_assert(std::tuple_size_v<typename Sign::Params> >= kObjects,
                "the function of a node takes its inputs, and then the object of each Data that it names");
  using InputIndex = std::make_index_sequence<std::tuple_size_v<typename Sign::Params> - kObjects>;
  template <size_t kI>
  using Input = InputParam<std::tuple_element_t<kI, typename Sign::Params>>;

  static constexpr auto kInputs = []<size_t... kI>(std::index_sequence<kI...>) {
    return std::array<const std::type_info*, sizeof...(kI)>{Input<kI>::kType...};
  }(InputIndex());

  void operator()(RunContext& run) {
    auto& ctx = static_cast<NodeContext&>(run);
    const auto call = [&](auto&&... args) -> decltype(auto) {
      if constexpr (Sign::kContext) {
        return fn(ctx, std::forward<decltype(args)>(args)...);
      } else {
        return fn(std::forward<decltype(args)>(args)...);
      }
    };
    auto params = std::tuple_cat(Inputs(ctx, InputIndex()), Objects(std::index_sequence_for<Uses...>()));
    if constexpr (std::is_void_v<typename Sign::Result>) {
      std::apply(call, std::move(params));
    } else {
      Outputs::Keep(ctx, std::apply(call, std::move(params)));
    }
  }

 private:
  template <size_t... kI>
  static std::tuple<typename Input<kI>::Held...> Inputs([[maybe_unused]] NodeContext& ctx, std::index_sequence<kI...>) {
    return {Input<kI>::From(ctx, kI)...};
  }
  template <size_t... kI>
  auto Objects(std::index_sequence<kI...>) {
    return std::tuple_cat(Uses::Give(std::get<kI>(pins))...);
  }
};

}  // namespace engine::detail
