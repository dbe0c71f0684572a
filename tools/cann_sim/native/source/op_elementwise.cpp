// Elementwise operators: arithmetic, comparisons, logic, activations.
#include <cmath>

#include "operators.h"

using sim::map1;
using sim::map2;
using sim::Operand;
using sim::Tensor;

namespace {

// ---- arithmetic -----------------------------------------------------------------------------------------------------

// self + alpha * other, or with a sign.
void plan_sum(sim::Plan& plan, const char* op_type, const Tensor* self, const Tensor* other, const aclScalar* alpha, double sign,
              const Tensor* out) {
  if (alpha == nullptr || alpha->real == 1) {
    if (sign > 0) return map2(plan, op_type, self, other, out, [](auto a, auto b) { return a + b; });
    return map2(plan, op_type, self, other, out, [](auto a, auto b) { return a - b; });
  }
  const double factor = sign * alpha->real;
  map2(plan, "Axpy", self, other, out, [factor](auto a, auto b) { return a + static_cast<decltype(b)>(factor * b); },
       {sim::real("alpha", factor)});
}

void plan_sum_with(sim::Plan& plan, const Tensor* self, const aclScalar* other, const aclScalar* alpha, double sign, const Tensor* out) {
  const double value = sign * (alpha == nullptr ? 1 : alpha->real) * other->real;
  map1(plan, "Adds", self, out, [value](auto a) { return a + static_cast<decltype(a)>(value); }, {sim::real("value", value)});
}

void plan_product_with(sim::Plan& plan, const Tensor* self, double factor, const Tensor* out) {
  if (sim::is_integral(out->dtype)) {
    const auto whole = static_cast<int64_t>(factor);
    return map1(plan, "Muls", self, out, [whole](auto a) { return a * whole; }, {sim::real("value", factor)});
  }
  map1(plan, "Muls", self, out, [factor](auto a) { return a * factor; }, {sim::real("value", factor)});
}

constexpr auto kMultiply = [](auto a, auto b) { return a * b; };
constexpr auto kDivide = [](auto a, auto b) { return static_cast<double>(a) / static_cast<double>(b); };

// A true division has a real result also where both inputs are whole numbers.
void plan_quotient(sim::Plan& plan, const Tensor* self, const Tensor* other, const Tensor* out) {
  plan.step("RealDiv", {Operand::of("x1", self), Operand::of("x2", other)}, {Operand::of("y", out)}, {},
            [self = *self, other = *other, out = *out] {
              std::vector<double> a = sim::read<double>(self, out.shape);
              const std::vector<double> b = sim::read<double>(other, out.shape);
              for (size_t i = 0; i < a.size(); ++i) a[i] = kDivide(a[i], b[i]);
              sim::write(out, a);
            });
}

void plan_power(sim::Plan& plan, const Tensor* self, double exponent, const Tensor* out) {
  const Tensor base = *self, result = *out;
  plan.step("Pow", {Operand::of("x1", self), Operand::number("x2", self->dtype)}, {Operand::of("y", out)}, {},
            [=] { sim::compute_map(result, [exponent](auto a) { return std::pow(static_cast<double>(a), exponent); }, base); });
}

}  // namespace

ACLNN(aclnnAdd, (const aclTensor* self, const aclTensor* other, const aclScalar* alpha, aclTensor* out),
      { plan_sum(plan, "Add", self, other, alpha, 1, out); })
ACLNN(aclnnInplaceAdd, (aclTensor * self, const aclTensor* other, const aclScalar* alpha),
      { plan_sum(plan, "Add", self, other, alpha, 1, self); })
ACLNN(aclnnAdds, (const aclTensor* self, const aclScalar* other, const aclScalar* alpha, aclTensor* out),
      { plan_sum_with(plan, self, other, alpha, 1, out); })
ACLNN(aclnnInplaceAdds, (aclTensor * self, const aclScalar* other, const aclScalar* alpha),
      { plan_sum_with(plan, self, other, alpha, 1, self); })
ACLNN(aclnnSub, (const aclTensor* self, const aclTensor* other, const aclScalar* alpha, aclTensor* out),
      { plan_sum(plan, "Sub", self, other, alpha, -1, out); })
ACLNN(aclnnInplaceSub, (aclTensor * self, const aclTensor* other, const aclScalar* alpha),
      { plan_sum(plan, "Sub", self, other, alpha, -1, self); })
ACLNN(aclnnSubs, (const aclTensor* self, const aclScalar* other, const aclScalar* alpha, aclTensor* out),
      { plan_sum_with(plan, self, other, alpha, -1, out); })
ACLNN(aclnnInplaceSubs, (aclTensor * self, const aclScalar* other, const aclScalar* alpha),
      { plan_sum_with(plan, self, other, alpha, -1, self); })
ACLNN(aclnnMul, (const aclTensor* self, const aclTensor* other, aclTensor* out), { map2(plan, "Mul", self, other, out, kMultiply); })
ACLNN(aclnnInplaceMul, (aclTensor * self, const aclTensor* other), { map2(plan, "Mul", self, other, self, kMultiply); })
ACLNN(aclnnMuls, (const aclTensor* self, const aclScalar* other, aclTensor* out), { plan_product_with(plan, self, other->real, out); })
ACLNN(aclnnInplaceMuls, (aclTensor * self, const aclScalar* other), { plan_product_with(plan, self, other->real, self); })
ACLNN(aclnnDiv, (const aclTensor* self, const aclTensor* other, aclTensor* out), { plan_quotient(plan, self, other, out); })
ACLNN(aclnnInplaceDiv, (aclTensor * self, const aclTensor* other), { plan_quotient(plan, self, other, self); })
ACLNN(aclnnDivs, (const aclTensor* self, const aclScalar* other, aclTensor* out), { plan_product_with(plan, self, 1 / other->real, out); })
ACLNN(aclnnInplaceDivs, (aclTensor * self, const aclScalar* other), { plan_product_with(plan, self, 1 / other->real, self); })
ACLNN(aclnnPowTensorScalar, (const aclTensor* self, const aclScalar* exponent, aclTensor* out),
      { plan_power(plan, self, exponent->real, out); })
ACLNN(aclnnInplacePowTensorScalar, (aclTensor * self, const aclScalar* exponent), { plan_power(plan, self, exponent->real, self); })
ACLNN(aclnnPowTensorTensor, (const aclTensor* self, const aclTensor* exponent, aclTensor* out), {
  map2(plan, "Pow", self, exponent, out, [](auto a, auto b) { return std::pow(static_cast<double>(a), static_cast<double>(b)); });
})
ACLNN(aclnnMaximum, (const aclTensor* self, const aclTensor* other, aclTensor* out),
      { map2(plan, "Maximum", self, other, out, [](auto a, auto b) { return a < b ? b : a; }); })
ACLNN(aclnnMinimum, (const aclTensor* self, const aclTensor* other, aclTensor* out),
      { map2(plan, "Minimum", self, other, out, [](auto a, auto b) { return b < a ? b : a; }); })

// ---- functions of one tensor ----------------------------------------------------------------------------------------

#define UNARY(name, op_type, expression)                                                                               \
  ACLNN(aclnn##name, (const aclTensor* self, aclTensor* out), { map1(plan, op_type, self, out, [](auto x) { return expression; }); }) \
  ACLNN(aclnnInplace##name, (aclTensor * self), { map1(plan, op_type, self, self, [](auto x) { return expression; }); })

UNARY(Neg, "Neg", -x)
UNARY(Abs, "Abs", x < 0 ? -x : x)
UNARY(Exp, "Exp", std::exp(x))
UNARY(Log, "Log", std::log(x))
UNARY(Sqrt, "Sqrt", std::sqrt(x))
UNARY(Rsqrt, "Rsqrt", 1 / std::sqrt(x))
UNARY(Reciprocal, "Reciprocal", 1.0 / x)
UNARY(Sin, "Sin", std::sin(x))
UNARY(Cos, "Cos", std::cos(x))
UNARY(Tanh, "Tanh", std::tanh(x))
UNARY(Erf, "Erf", std::erf(x))
UNARY(Floor, "Floor", std::floor(x))
UNARY(Ceil, "Ceil", std::ceil(x))
UNARY(Sigmoid, "Sigmoid", 1 / (1 + std::exp(-x)))
UNARY(Relu, "Relu", x < 0 ? 0 * x : x)
UNARY(LogicalNot, "LogicalNot", x == 0)
ACLNN(aclnnSilu, (const aclTensor* self, aclTensor* out),
      { map1(plan, "Swish", self, out, [](auto x) { return x / (1 + std::exp(-x)); }); })
ACLNN(aclnnGelu, (const aclTensor* self, aclTensor* out),
      { map1(plan, "GeluV2", self, out, [](auto x) { return 0.5 * x * (1 + std::erf(x * M_SQRT1_2)); }); })
ACLNN(aclnnIsFinite, (const aclTensor* self, aclTensor* out),
      { map1(plan, "IsFinite", self, out, [](auto x) { return std::isfinite(static_cast<double>(x)); }); })

// ---- comparisons and logic ------------------------------------------------------------------------------------------

#define COMPARISON(name, op_type, symbol)                                                                              \
  ACLNN(aclnn##name##Tensor, (const aclTensor* self, const aclTensor* other, aclTensor* out),                          \
        { map2(plan, op_type, self, other, out, [](auto a, auto b) { return a symbol b; }); })                         \
  ACLNN(aclnn##name##Scalar, (const aclTensor* self, const aclScalar* other, aclTensor* out), {                        \
    const double bound = other->real;                                                                                  \
    plan.step(op_type, {Operand::of("x1", self), Operand::number("x2", self->dtype)}, {Operand::of("y", out)}, {},     \
              [x = *self, y = *out, bound] { sim::compute_map(y, [bound](auto a) { return a symbol bound; }, x); });   \
  })

COMPARISON(Eq, "Equal", ==)
COMPARISON(Ne, "NotEqual", !=)
COMPARISON(Lt, "Less", <)
COMPARISON(Le, "LessEqual", <=)
COMPARISON(Gt, "Greater", >)
COMPARISON(Ge, "GreaterEqual", >=)

ACLNN(aclnnLogicalAnd, (const aclTensor* self, const aclTensor* other, aclTensor* out),
      { map2(plan, "LogicalAnd", self, other, out, [](auto a, auto b) { return a != 0 && b != 0; }); })
ACLNN(aclnnLogicalOr, (const aclTensor* self, const aclTensor* other, aclTensor* out),
      { map2(plan, "LogicalOr", self, other, out, [](auto a, auto b) { return a != 0 || b != 0; }); })
ACLNN(aclnnBitwiseNot, (const aclTensor* self, aclTensor* out), {
  if (self->dtype == ACL_BOOL) return map1(plan, "LogicalNot", self, out, [](auto x) { return x == 0; });
  map1(plan, "Invert", self, out, [](auto x) { return ~static_cast<int64_t>(x); });
})

namespace {

// Whole numbers bit by bit, which bools are too.
template <class Op>
void plan_bits(sim::Plan& plan, const char* bits, const char* logical, const Tensor* self, const Tensor* other, const Tensor* out, Op op) {
  map2(plan, self->dtype == ACL_BOOL ? logical : bits, self, other, out,
       [op](auto a, auto b) { return op(static_cast<int64_t>(a), static_cast<int64_t>(b)); });
}

}  // namespace

ACLNN(aclnnBitwiseAndTensor, (const aclTensor* self, const aclTensor* other, aclTensor* out),
      { plan_bits(plan, "BitwiseAnd", "LogicalAnd", self, other, out, [](int64_t a, int64_t b) { return a & b; }); })
ACLNN(aclnnBitwiseOrTensor, (const aclTensor* self, const aclTensor* other, aclTensor* out),
      { plan_bits(plan, "BitwiseOr", "LogicalOr", self, other, out, [](int64_t a, int64_t b) { return a | b; }); })
ACLNN(aclnnBitwiseAndScalar, (const aclTensor* self, const aclScalar* other, aclTensor* out), {
  const int64_t mask = other->whole;
  map1(plan, "BitwiseAnd", self, out, [mask](auto a) { return static_cast<int64_t>(a) & mask; });
})
ACLNN(aclnnBitwiseOrScalar, (const aclTensor* self, const aclScalar* other, aclTensor* out), {
  const int64_t bits = other->whole;
  map1(plan, "BitwiseOr", self, out, [bits](auto a) { return static_cast<int64_t>(a) | bits; });
})

// ---- choices --------------------------------------------------------------------------------------------------------

namespace {

void compute_choice(const Tensor& out, const Tensor& condition, const std::vector<double>& yes, const std::vector<double>& no) {
  const std::vector<int64_t> chosen = sim::read<int64_t>(condition, out.shape);
  std::vector<double> results(chosen.size());
  for (size_t i = 0; i < results.size(); ++i) results[i] = chosen[i] ? yes[i] : no[i];
  sim::write(out, results);
}

}  // namespace

ACLNN(aclnnSWhere, (const aclTensor* condition, const aclTensor* self, const aclTensor* other, aclTensor* out), {
  plan.step("SelectV2", {Operand::of("condition", condition), Operand::of("then", self), Operand::of("else", other)},
            {Operand::of("result", out)}, {}, [c = *condition, a = *self, b = *other, y = *out] {
              compute_choice(y, c, sim::read<double>(a, y.shape), sim::read<double>(b, y.shape));
            });
})
ACLNN(aclnnInplaceMaskedFillScalar, (aclTensor * self, const aclTensor* mask, const aclScalar* value), {
  plan.step("MaskedFill", {Operand::of("x", self), Operand::of("mask", mask), Operand::number("value", self->dtype)},
            {Operand::of("y", self)}, {}, [x = *self, m = *mask, v = value->real] {
              compute_choice(x, m, std::vector<double>(x.elements(), v), sim::read<double>(x));
            });
})
ACLNN(aclnnInplaceMaskedFillTensor, (aclTensor * self, const aclTensor* mask, const aclTensor* value), {
  plan.step("MaskedFill", {Operand::of("x", self), Operand::of("mask", mask), Operand::of("value", value)}, {Operand::of("y", self)},
            {}, [x = *self, m = *mask, v = *value] { compute_choice(x, m, sim::read<double>(v, x.shape), sim::read<double>(x)); });
})
ACLNN(aclnnClamp, (const aclTensor* self, const aclScalar* low, const aclScalar* high, aclTensor* out), {
  const double least = low == nullptr ? -INFINITY : low->real;
  const double most = high == nullptr ? INFINITY : high->real;
  const Tensor x = *self, y = *out;
  plan.step("ClipByValueV2", {Operand::of("x", self), Operand::number("min", self->dtype), Operand::number("max", self->dtype)},
            {Operand::of("y", out)}, {},
            [=] { sim::compute_map(y, [=](auto a) { return std::fmin(std::fmax(static_cast<double>(a), least), most); }, x); });
})
