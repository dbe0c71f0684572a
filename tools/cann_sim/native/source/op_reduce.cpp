// Reductions, softmax and norms.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "operators.h"

using sim::Operand;
using sim::Shape;
using sim::Tensor;

namespace {

// `values` of `shape` as rows: the reduced axes last, so that each run of `length` makes one result.
struct Rows {
  std::vector<double> values;
  int64_t length;
};

std::vector<int64_t> axes_of(const aclIntArray* given, size_t rank) {
  std::vector<int64_t> axes;
  if (given != nullptr) {
    for (int64_t axis : given->values) axes.push_back(sim::axis_of(axis, rank));
  }
  if (axes.empty()) {
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), 0);
  }
  return axes;
}

Rows rows_of(const Tensor& x, const std::vector<int64_t>& axes) {
  Tensor turned = x;
  turned.shape.clear();
  turned.stride.clear();
  int64_t length = 1;
  for (const bool reduced : {false, true}) {
    for (size_t axis = 0; axis < x.shape.size(); ++axis) {
      if (reduced != (std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis)) != axes.end())) continue;
      turned.shape.push_back(x.shape[axis]);
      turned.stride.push_back(x.stride[axis]);
      if (reduced) length *= x.shape[axis];
    }
  }
  return {sim::read<double>(turned), length};
}

// One result for each row.
template <class Reduce>
std::vector<double> reduced(const Rows& rows, int64_t results, Reduce reduce) {
  std::vector<double> out;
  for (int64_t i = 0; i < results; ++i) out.push_back(reduce(rows.values.data() + i * rows.length, rows.length));
  return out;
}

template <class Reduce>
void plan_reduction(sim::Plan& plan, const char* op_type, const Tensor* x, const aclIntArray* dims, bool keep, const Tensor* out,
                    Reduce reduce) {
  const std::vector<int64_t> axes = axes_of(dims, x->shape.size());
  plan.step(op_type, {Operand::of("x", x), Operand::fixed("axes", axes)}, {Operand::of("y", out)}, {sim::flag("keep_dims", keep)},
            [x = *x, y = *out, axes, reduce] { sim::write(y, reduced(rows_of(x, axes), y.elements(), reduce)); });
}

double sum(const double* row, int64_t length) { return std::accumulate(row, row + length, 0.0); }
double mean(const double* row, int64_t length) { return sum(row, length) / static_cast<double>(length); }
double largest(const double* row, int64_t length) { return *std::max_element(row, row + length); }
double smallest(const double* row, int64_t length) { return *std::min_element(row, row + length); }
double every(const double* row, int64_t length) { return std::all_of(row, row + length, [](double x) { return x != 0; }); }
double some(const double* row, int64_t length) { return std::any_of(row, row + length, [](double x) { return x != 0; }); }
double where_largest(const double* row, int64_t length) { return static_cast<double>(std::max_element(row, row + length) - row); }

// The strides of `x` with one axis moved to the end.
Tensor axis_last(const Tensor& x, int64_t axis) {
  Tensor turned = x;
  turned.shape.erase(turned.shape.begin() + axis);
  turned.stride.erase(turned.stride.begin() + axis);
  turned.shape.push_back(x.shape[axis]);
  turned.stride.push_back(x.stride[axis]);
  return turned;
}

void compute_softmax(const Tensor& x, const Tensor& y, int64_t axis, bool logarithm) {
  std::vector<double> values = sim::read<double>(axis_last(x, axis));
  const int64_t length = x.shape[axis];
  for (size_t start = 0; start < values.size(); start += length) {
    double* row = &values[start];
    const double top = largest(row, length);
    double total = 0;
    for (int64_t i = 0; i < length; ++i) total += std::exp(row[i] - top);
    for (int64_t i = 0; i < length; ++i) {
      row[i] = logarithm ? row[i] - top - std::log(total) : std::exp(row[i] - top) / total;
    }
  }
  sim::write(axis_last(y, axis), values);
}

void plan_softmax(sim::Plan& plan, const char* op_type, const Tensor* self, int64_t dim, const Tensor* out, bool logarithm) {
  const int64_t axis = sim::axis_of(dim, self->shape.size());
  plan.step(op_type, {Operand::of("x", self)}, {Operand::of("y", out)}, {{"axes", "list_int", std::vector<int64_t>{axis}}},
            [x = *self, y = *out, axis, logarithm] { compute_softmax(x, y, axis, logarithm); });
}

}  // namespace

ACLNN(aclnnMean, (const aclTensor* self, const aclIntArray* dim, bool keep, aclDataType, aclTensor* out),
      { plan_reduction(plan, "ReduceMean", self, dim, keep, out, mean); })
ACLNN(aclnnMeanV2, (const aclTensor* self, const aclIntArray* dim, bool keep, bool, aclTensor* out),
      { plan_reduction(plan, "ReduceMean", self, dim, keep, out, mean); })
ACLNN(aclnnReduceSum, (const aclTensor* self, const aclIntArray* dim, bool keep, aclDataType, aclTensor* out),
      { plan_reduction(plan, "ReduceSum", self, dim, keep, out, sum); })
ACLNN(aclnnAmax, (const aclTensor* self, const aclIntArray* dim, bool keep, aclTensor* out),
      { plan_reduction(plan, "ReduceMax", self, dim, keep, out, largest); })
ACLNN(aclnnAmin, (const aclTensor* self, const aclIntArray* dim, bool keep, aclTensor* out),
      { plan_reduction(plan, "ReduceMin", self, dim, keep, out, smallest); })
ACLNN(aclnnMax, (const aclTensor* self, aclTensor* out), { plan_reduction(plan, "ReduceMax", self, nullptr, false, out, largest); })
ACLNN(aclnnMin, (const aclTensor* self, aclTensor* out), { plan_reduction(plan, "ReduceMin", self, nullptr, false, out, smallest); })
ACLNN(aclnnAll, (const aclTensor* self, const aclIntArray* dim, bool keep, aclTensor* out),
      { plan_reduction(plan, "ReduceAll", self, dim, keep, out, every); })
ACLNN(aclnnAny, (const aclTensor* self, const aclIntArray* dim, bool keep, aclTensor* out),
      { plan_reduction(plan, "ReduceAny", self, dim, keep, out, some); })
ACLNN(aclnnArgMax, (const aclTensor* self, int64_t dim, bool, aclTensor* out), {
  const std::vector<int64_t> axes = {sim::axis_of(dim, self->shape.size())};
  plan.step("ArgMaxV2", {Operand::of("x", self), Operand::fixed("dimension", axes)}, {Operand::of("y", out)}, {},
            [x = *self, y = *out, axes] { sim::write(y, reduced(rows_of(x, axes), y.elements(), where_largest)); });
})

ACLNN(aclnnSoftmax, (const aclTensor* self, int64_t dim, aclTensor* out), { plan_softmax(plan, "SoftmaxV2", self, dim, out, false); })
ACLNN(aclnnLogSoftmax, (const aclTensor* self, int64_t dim, aclTensor* out), { plan_softmax(plan, "LogSoftmaxV2", self, dim, out, true); })

ACLNN(aclnnRmsNorm, (const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y, const aclTensor* rstd), {
  plan.step("RmsNorm", {Operand::of("x", x), Operand::of("gamma", gamma)}, {Operand::of("y", y), Operand::of("rstd", rstd)},
            {sim::real("epsilon", epsilon)}, [x = *x, gamma = *gamma, epsilon, y = *y, rstd = *rstd] {
              std::vector<double> values = sim::read<double>(x), scales;
              const std::vector<double> weights = sim::read<double>(gamma);
              for (size_t start = 0; start < values.size(); start += weights.size()) {
                double squares = 0;
                for (size_t i = 0; i < weights.size(); ++i) squares += values[start + i] * values[start + i];
                scales.push_back(1 / std::sqrt(squares / static_cast<double>(weights.size()) + epsilon));
                for (size_t i = 0; i < weights.size(); ++i) values[start + i] *= scales.back() * weights[i];
              }
              sim::write(y, values);
              sim::write(rstd, scales);
            });
})
