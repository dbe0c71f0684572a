#include "tensor.h"

#include <cmath>
#include <cstring>

namespace sim {
namespace {

struct BFloat16 {
  uint16_t bits;
  operator double() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

BFloat16 to_bfloat16(double given) {
  const float value = static_cast<float>(given);
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  if (std::isnan(value)) return {0x7FC0};
  return {static_cast<uint16_t>((wide + 0x7FFF + (wide >> 16 & 1)) >> 16)};  // to the nearest, ties to even
}

template <class Element, class Value>
Element converted(Value value) {
  if constexpr (std::is_same_v<Element, BFloat16>) {
    return to_bfloat16(static_cast<double>(value));
  } else if constexpr (std::is_same_v<Element, bool>) {
    return value != 0;
  } else {
    return static_cast<Element>(value);
  }
}

// Calls `act` with a value of the C++ type that has this dtype's elements.
template <class Act>
void with_type(aclDataType dtype, Act&& act) {
  switch (dtype) {
    case ACL_FLOAT:
      return act(float{});
    case ACL_FLOAT16:
      return act(_Float16{});
    case ACL_BF16:
      return act(BFloat16{});
    case ACL_DOUBLE:
      return act(double{});
    case ACL_BOOL:
      return act(bool{});
    case ACL_INT8:
      return act(int8_t{});
    case ACL_UINT8:
      return act(uint8_t{});
    case ACL_INT16:
      return act(int16_t{});
    case ACL_INT32:
      return act(int32_t{});
    case ACL_INT64:
      return act(int64_t{});
    default:
      throw Refused("dtype number " + std::to_string(dtype));
  }
}

// Calls `visit` with the element offset of every position of `shape` in order.
template <class Visit>
void walk(const Shape& shape, const Shape& stride, int64_t offset, Visit&& visit) {
  Shape at(shape.size(), 0);
  for (int64_t left = elements_of(shape); left > 0; --left) {
    visit(offset);
    for (size_t axis = shape.size(); axis-- > 0;) {
      offset += stride[axis];
      if (++at[axis] < shape[axis]) break;
      offset -= stride[axis] * shape[axis];
      at[axis] = 0;
    }
  }
}

Shape broadcast_strides(const Tensor& tensor, const Shape& shape) {
  if (tensor.shape.size() > shape.size()) throw Refused("broadcasting to fewer axes");
  Shape strides(shape.size(), 0);
  const size_t before = shape.size() - tensor.shape.size();
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == shape[before + i]) {
      strides[before + i] = tensor.stride[i];
    } else if (tensor.shape[i] != 1) {
      throw Refused("shapes that cannot be broadcast");
    }
  }
  return strides;
}

// Where an element of a tensor in FRACTAL_NZ is, from where it would be in rows: blocks of rows and columns, column of blocks by column.
class NzPlace {
 public:
  explicit NzPlace(const Tensor& tensor) {
    const bool in_rows = tensor.contiguous();
    const size_t rank = tensor.shape.size(), stored = tensor.storage.size();
    if (rank < 2 || stored != rank + 2 || tensor.offset != 0 || !(in_rows || tensor.transposed().contiguous())) {
      throw Refused("this view of a tensor in FRACTAL_NZ");
    }
    rows_ = tensor.shape[in_rows ? rank - 2 : rank - 1];
    columns_ = tensor.shape[in_rows ? rank - 1 : rank - 2];
    block_columns_ = tensor.storage[stored - 4];
    block_rows_ = tensor.storage[stored - 3];
    height_ = tensor.storage[stored - 2];
    width_ = tensor.storage[stored - 1];
  }
  int64_t operator()(int64_t at) const {
    const int64_t matrix = at / (rows_ * columns_), row = at / columns_ % rows_, column = at % columns_;
    const int64_t block = (matrix * block_columns_ + column / width_) * block_rows_ + row / height_;
    return (block * height_ + row % height_) * width_ + column % width_;
  }

 private:
  int64_t rows_, columns_, block_rows_, block_columns_, height_, width_;
};

// Calls `visit` with the place in memory of every element in order, broadcast to `shape`.
template <class Visit>
void walk(const Tensor& tensor, const Shape& shape, Visit&& visit) {
  const Shape strides = broadcast_strides(tensor, shape);
  if (tensor.format != ACL_FORMAT_FRACTAL_NZ) return walk(shape, strides, tensor.offset, visit);
  const NzPlace place(tensor);
  walk(shape, strides, 0, [&](int64_t at) { visit(place(at)); });
}

}  // namespace

int64_t elements_of(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

Shape broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() < b.size() ? b : a;
  const Shape& shorter = a.size() < b.size() ? a : b;
  Shape both = longer;
  const size_t before = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& size = both[before + i];
    if (size == 1) size = shorter[i];
    if (shorter[i] != 1 && shorter[i] != size) throw Refused("shapes that cannot be broadcast");
  }
  return both;
}

int64_t axis_of(int64_t axis, size_t rank) {
  const int64_t axes = rank ? static_cast<int64_t>(rank) : 1;
  if (axis < -axes || axis >= axes) throw Refused("axis " + std::to_string(axis) + " of " + std::to_string(rank));
  return axis < 0 ? axis + axes : axis;
}

int64_t Tensor::elements() const { return elements_of(shape); }

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

Tensor Tensor::transposed() const {
  Tensor turned = *this;
  const size_t rank = shape.size();
  std::swap(turned.shape[rank - 1], turned.shape[rank - 2]);
  std::swap(turned.stride[rank - 1], turned.stride[rank - 2]);
  return turned;
}

const char* dtype_word(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT:
      return "float";
    case ACL_FLOAT16:
      return "float16";
    case ACL_BF16:
      return "bfloat16";
    case ACL_DOUBLE:
      return "double";
    case ACL_BOOL:
      return "bool";
    case ACL_INT8:
      return "int8";
    case ACL_UINT8:
      return "uint8";
    case ACL_INT16:
      return "int16";
    case ACL_INT32:
      return "int32";
    case ACL_INT64:
      return "int64";
    default:
      throw Refused("dtype number " + std::to_string(dtype));
  }
}

const char* format_word(aclFormat format) { return format == ACL_FORMAT_FRACTAL_NZ ? "FRACTAL_NZ" : "ND"; }

bool is_integral(aclDataType dtype) {
  return dtype != ACL_FLOAT && dtype != ACL_FLOAT16 && dtype != ACL_BF16 && dtype != ACL_DOUBLE;
}

template <class Value>
std::vector<Value> read(const Tensor& tensor, const Shape& shape) {
  std::vector<Value> values;
  values.reserve(elements_of(shape));
  with_type(tensor.dtype, [&](auto kind) {
    const auto* elements = reinterpret_cast<const decltype(kind)*>(tensor.data);
    walk(tensor, shape, [&](int64_t at) { values.push_back(static_cast<Value>(elements[at])); });
  });
  return values;
}

template <class Value>
void write(const Tensor& tensor, const std::vector<Value>& values) {
  if (static_cast<int64_t>(values.size()) != tensor.elements()) throw Refused("an output of another shape");
  with_type(tensor.dtype, [&](auto kind) {
    auto* elements = reinterpret_cast<decltype(kind)*>(tensor.data);
    size_t next = 0;
    walk(tensor, tensor.shape, [&](int64_t at) { elements[at] = converted<decltype(kind)>(values[next++]); });
  });
}

template std::vector<double> read(const Tensor&, const Shape&);
template std::vector<int64_t> read(const Tensor&, const Shape&);
template void write(const Tensor&, const std::vector<double>&);
template void write(const Tensor&, const std::vector<int64_t>&);

}  // namespace sim

// ---- the C interface ------------------------------------------------------------------------------------------------

extern "C" {

aclTensor* aclCreateTensor(const int64_t* shape, uint64_t rank, aclDataType dtype, const int64_t* stride, int64_t offset,
                           aclFormat format, const int64_t* storage, uint64_t storage_rank, void* data) {
  auto* made = new aclTensor;
  made->shape.assign(shape, shape + rank);
  made->stride = stride == nullptr ? sim::contiguous_strides(made->shape) : sim::Shape(stride, stride + rank);
  made->offset = offset;
  made->dtype = dtype;
  made->format = format;
  if (storage != nullptr) made->storage.assign(storage, storage + storage_rank);
  made->data = static_cast<char*>(data);
  return made;
}

aclScalar* aclCreateScalar(void* value, aclDataType dtype) {
  sim::Tensor one;
  one.dtype = dtype;
  one.data = static_cast<char*>(value);
  try {
    return new aclScalar{dtype, sim::read<double>(one)[0], sim::is_integral(dtype) ? sim::read<int64_t>(one)[0] : 0};
  } catch (const sim::Refused&) {
    return nullptr;
  }
}

aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  return new aclIntArray{std::vector<int64_t>(values, values + count)};
}
aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
  return new aclFloatArray{std::vector<float>(values, values + count)};
}
aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
  return new aclBoolArray{std::vector<bool>(values, values + count)};
}
aclTensorList* aclCreateTensorList(const aclTensor* const* items, uint64_t count) {
  return new aclTensorList{std::vector<const aclTensor*>(items, items + count)};
}
aclScalarList* aclCreateScalarList(const aclScalar* const* items, uint64_t count) {
  return new aclScalarList{std::vector<const aclScalar*>(items, items + count)};
}

int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return 0;
}
int aclDestroyScalar(const aclScalar* scalar) {
  delete scalar;
  return 0;
}
int aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return 0;
}
int aclDestroyFloatArray(const aclFloatArray* array) {
  delete array;
  return 0;
}
int aclDestroyBoolArray(const aclBoolArray* array) {
  delete array;
  return 0;
}

// A list owns its items.
int aclDestroyTensorList(const aclTensorList* list) {
  for (const aclTensor* item : list->items) delete item;
  delete list;
  return 0;
}
int aclDestroyScalarList(const aclScalarList* list) {
  for (const aclScalar* item : list->items) delete item;
  delete list;
  return 0;
}

int aclGetViewShape(const aclTensor* tensor, int64_t** shape, uint64_t* rank) {
  *rank = tensor->shape.size();
  *shape = new int64_t[*rank];  // the caller deletes it
  for (uint64_t i = 0; i < *rank; ++i) (*shape)[i] = tensor->shape[i];
  return 0;
}

}  // extern "C"
