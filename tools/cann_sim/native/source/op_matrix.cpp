// Matrix products.
#include <memory>

#include "operators.h"

using sim::Operand;
using sim::Shape;
using sim::Tensor;

namespace {

// A matrix as it lies in memory, and whether the product reads it transposed.
std::pair<Tensor, bool> as_stored(const Tensor& matrix) {
  if (matrix.shape.size() >= 2 && !matrix.contiguous() && matrix.transposed().contiguous()) return {matrix.transposed(), true};
  return {matrix, false};
}

Shape batches(const Tensor& tensor) { return Shape(tensor.shape.begin(), tensor.shape.end() - 2); }

Shape with(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return batch;
}

// The product of the last two axes; a vector on the left is a row, on the right a column.
std::vector<double> product(Tensor left, Tensor right) {
  if (left.shape.size() == 1) {
    left.shape.insert(left.shape.begin(), 1);
    left.stride.insert(left.stride.begin(), 0);
  }
  if (right.shape.size() == 1) {
    right.shape.push_back(1);
    right.stride.push_back(0);
  }
  const Shape batch = sim::broadcast(batches(left), batches(right));
  const int64_t rows = left.shape[left.shape.size() - 2], inner = left.shape.back(), columns = right.shape.back();
  if (right.shape[right.shape.size() - 2] != inner) throw sim::Refused("matrices that do not fit");
  const std::vector<double> a = sim::read<double>(left, with(batch, rows, inner));
  const std::vector<double> b = sim::read<double>(right, with(batch, inner, columns));
  const int64_t count = sim::elements_of(batch);
  std::vector<double> out(count * rows * columns, 0.0);
  for (int64_t line = 0; line < count * rows; ++line) {
    double* to = &out[line * columns];
    for (int64_t k = 0; k < inner; ++k) {
      const double factor = a[line * inner + k];
      const double* from = &b[(line / rows * inner + k) * columns];
      for (int64_t column = 0; column < columns; ++column) to[column] += factor * from[column];
    }
  }
  return out;
}

void plan_product(sim::Plan& plan, const Tensor* left, const Tensor* right, const Tensor* bias, double alpha, double beta,
                  const Tensor* out) {
  const bool batched = left->shape.size() > 2 && right->shape.size() > 2;
  const bool half = left->dtype == ACL_FLOAT16 || left->dtype == ACL_BF16;
  const auto [x1, first] = as_stored(*left);
  const auto [x2, second] = as_stored(*right);
  plan.step(batched ? "BatchMatMulV2" : half ? "MatMulV3" : "MatMulV2",
            {Operand::of("x1", &x1), Operand::of("x2", &x2), Operand::optional("bias", bias), Operand::of("offset_w", nullptr)},
            {Operand::of("y", out)},
            {sim::flag(batched ? "adj_x1" : "transpose_x1", first), sim::flag(batched ? "adj_x2" : "transpose_x2", second),
             sim::whole("offset_x", 0)},
            [a = *left, b = *right, added = bias == nullptr ? Tensor{} : *bias, alpha, beta, y = *out] {
              std::vector<double> values = product(a, b);
              for (double& value : values) value *= alpha;
              if (added.data != nullptr) {
                const std::vector<double> more = sim::read<double>(added, y.shape);
                for (size_t i = 0; i < values.size(); ++i) values[i] += beta * more[i];
              }
              sim::write(y, values);
            });
}

// A row of biases goes into the product's own kernel; anything else is added by a second one.
void plan_addmm(sim::Plan& plan, const Tensor* added, const Tensor* left, const Tensor* right, double beta, double alpha,
                const Tensor* out) {
  if (added->shape.size() == 1 && alpha == 1 && beta == 1) return plan_product(plan, left, right, added, 1, 1, out);
  auto addend = std::make_shared<std::vector<double>>();
  plan_product(plan, left, right, nullptr, alpha, 0, out);
  sim::Step& first = plan.steps.back();
  first.compute = [compute = std::move(first.compute), addend, x = *added, y = *out] {
    *addend = sim::read<double>(x, y.shape);  // before the product, which may go to the same memory
    compute();
  };
  plan.step("Add", {Operand::of("x1", added), Operand::of("x2", out)}, {Operand::of("y", out)}, {}, [addend, beta, y = *out] {
    std::vector<double> values = sim::read<double>(y);
    for (size_t i = 0; i < values.size(); ++i) values[i] += beta * (*addend)[i];
    sim::write(y, values);
  });
}

}  // namespace

ACLNN(aclnnMm, (const aclTensor* self, const aclTensor* other, aclTensor* out, int8_t),
      { plan_product(plan, self, other, nullptr, 1, 0, out); })
ACLNN(aclnnMatmul, (const aclTensor* self, const aclTensor* other, aclTensor* out, int8_t),
      { plan_product(plan, self, other, nullptr, 1, 0, out); })
ACLNN(aclnnMatmulWeightNz, (const aclTensor* self, const aclTensor* other, aclTensor* out, int8_t),
      { plan_product(plan, self, other, nullptr, 1, 0, out); })
ACLNN(aclnnBatchMatMul, (const aclTensor* self, const aclTensor* other, aclTensor* out, int8_t),
      { plan_product(plan, self, other, nullptr, 1, 0, out); })
ACLNN(aclnnMv, (const aclTensor* self, const aclTensor* other, aclTensor* out, int8_t),
      { plan_product(plan, self, other, nullptr, 1, 0, out); })
ACLNN(aclnnAddmm,
      (const aclTensor* self, const aclTensor* mat1, const aclTensor* mat2, const aclScalar* beta, const aclScalar* alpha, aclTensor* out,
       int8_t),
      { plan_addmm(plan, self, mat1, mat2, beta->real, alpha->real, out); })
ACLNN(aclnnInplaceAddmm,
      (aclTensor * self, const aclTensor* mat1, const aclTensor* mat2, const aclScalar* beta, const aclScalar* alpha, int8_t),
      { plan_addmm(plan, self, mat1, mat2, beta->real, alpha->real, self); })
ACLNN(aclnnBaddbmm,
      (const aclTensor* self, const aclTensor* batch1, const aclTensor* batch2, const aclScalar* beta, const aclScalar* alpha,
       aclTensor* out, int8_t),
      { plan_addmm(plan, self, batch1, batch2, beta->real, alpha->real, out); })
