// What the operator files share: operands of the usual names, and elementwise steps.
#pragma once

#include <type_traits>
#include <utility>

#include "launch.h"

namespace sim {

inline Attribute whole(std::string name, int64_t value) { return {std::move(name), "int", value}; }
inline Attribute real(std::string name, double value) { return {std::move(name), "float", value}; }
inline Attribute flag(std::string name, bool value) { return {std::move(name), "bool", value}; }

// `op` over all positions of `out`, with the inputs broadcast: on whole numbers where all of them are, else in double precision.
template <class Op, class... Inputs>
void compute_map(const Tensor& out, Op op, const Inputs&... inputs) {
  auto run = [&](const auto&... values) {
    using Result = decltype(op(values[0]...));
    std::vector<std::conditional_t<std::is_floating_point_v<Result>, double, int64_t>> results;
    const int64_t count = out.elements();
    results.reserve(count);
    for (int64_t i = 0; i < count; ++i) results.push_back(op(values[i]...));
    write(out, results);
  };
  if ((is_integral(inputs.dtype) && ...)) {
    run(read<int64_t>(inputs, out.shape)...);
  } else {
    run(read<double>(inputs, out.shape)...);
  }
}

// One elementwise kernel of one, two or three inputs.
template <class Op>
void map1(Plan& plan, const char* op_type, const Tensor* x, const Tensor* out, Op op, Attributes attributes = {}) {
  plan.step(op_type, {Operand::of("x", x)}, {Operand::of("y", out)}, std::move(attributes),
            [x = *x, out = *out, op] { compute_map(out, op, x); });
}
template <class Op>
void map2(Plan& plan, const char* op_type, const Tensor* a, const Tensor* b, const Tensor* out, Op op, Attributes attributes = {}) {
  plan.step(op_type, {Operand::of("x1", a), Operand::of("x2", b)}, {Operand::of("y", out)}, std::move(attributes),
            [a = *a, b = *b, out = *out, op] { compute_map(out, op, a, b); });
}

// A copy of `from` into `to`, whatever their dtypes and layouts; the kernel that CANN would take for it.
void copy_step(Plan& plan, const Tensor& from, const Tensor& to);

}  // namespace sim
