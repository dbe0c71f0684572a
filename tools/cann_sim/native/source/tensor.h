// What aclCreateTensor and its relatives make, and reading and writing elements whatever their dtype and layout.
#pragma once

#include <acl/acl_base.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace sim {

using Shape = std::vector<int64_t>;

// An operator that the simulation does not compute, or arguments that it does not take; the message names them.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Tensor {
  Shape shape;
  Shape stride;
  int64_t offset = 0;
  aclDataType dtype = ACL_FLOAT;
  aclFormat format = ACL_FORMAT_ND;
  Shape storage;
  char* data = nullptr;

  int64_t elements() const;
  bool contiguous() const;
  // The same memory with its last two axes exchanged.
  Tensor transposed() const;
};

int64_t elements_of(const Shape& shape);
Shape contiguous_strides(const Shape& shape);
// The shape that both broadcast to; Refused where there is none.
Shape broadcast(const Shape& a, const Shape& b);
// Negative axes count from the end. Refused where there is no such axis.
int64_t axis_of(int64_t axis, size_t rank);

// The word of the record schema for a dtype; Refused for one that it has no word for.
const char* dtype_word(aclDataType dtype);
// The word for a format. torch_npu names the formats of base tensors by their rank; kernels of this kind take them as ND.
const char* format_word(aclFormat format);
bool is_integral(aclDataType dtype);

// All elements in order, broadcast to `shape`; Value is double or int64_t.
template <class Value>
std::vector<Value> read(const Tensor& tensor, const Shape& shape);
template <class Value>
std::vector<Value> read(const Tensor& tensor) {
  return read<Value>(tensor, tensor.shape);
}

// Store `values` in order; rounding is to the nearest, as the dtype can hold it.
template <class Value>
void write(const Tensor& tensor, const std::vector<Value>& values);

}  // namespace sim

// The handles of the C interface.
struct aclTensor : sim::Tensor {};
struct aclScalar {
  aclDataType dtype;
  double real;
  int64_t whole;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> items;
};
struct aclScalarList {
  std::vector<const aclScalar*> items;
};
