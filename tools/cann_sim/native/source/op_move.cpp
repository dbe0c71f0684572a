// Copies, fills, concatenation, lookups and writes by index.
#include <algorithm>

#include "operators.h"

using sim::Operand;
using sim::Shape;
using sim::Tensor;

namespace {

void compute_copy(const Tensor& from, const Tensor& to) {
  if (sim::is_integral(from.dtype)) {
    sim::write(to, sim::read<int64_t>(from, to.shape));
  } else {
    sim::write(to, sim::read<double>(from, to.shape));
  }
}

// The axes of `from` in the order in which they lie in memory; empty where it is no mere transposition.
std::vector<int64_t> permutation(const Tensor& from) {
  std::vector<int64_t> order(from.shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return from.stride[a] > from.stride[b]; });
  Tensor stored = from;
  for (size_t i = 0; i < order.size(); ++i) {
    stored.shape[i] = from.shape[order[i]];
    stored.stride[i] = from.stride[order[i]];
  }
  return stored.contiguous() ? order : std::vector<int64_t>{};
}

void plan_fill(sim::Plan& plan, const char* op_type, const Tensor* self, double value) {
  const bool fill = std::string(op_type) == "Fill";
  std::vector<Operand> inputs;
  if (fill) {
    inputs = {Operand::fixed("dims", self->shape), Operand::number("value", self->dtype)};
  } else {
    inputs = {Operand::of("x", self)};
  }
  plan.step(op_type, inputs, {Operand::of("y", self)}, {},
            [y = *self, value] { sim::write(y, std::vector<double>(y.elements(), value)); });
}

void plan_concatenation(sim::Plan& plan, const aclTensorList* list, int64_t dim, const Tensor* out) {
  std::vector<Tensor> parts;
  for (const aclTensor* item : list->items) {
    if (item->elements() > 0) parts.push_back(*item);
  }
  const int64_t axis = sim::axis_of(dim, out->shape.size());
  plan.step("ConcatD", {Operand::dynamic("x", parts)}, {Operand::of("y", out)}, {sim::whole("concat_dim", axis)},
            [parts, axis, y = *out] {
              std::vector<std::vector<double>> values;
              for (const Tensor& part : parts) values.push_back(sim::read<double>(part));
              Tensor place = y;
              for (size_t i = 0; i < parts.size(); ++i) {
                place.shape[axis] = parts[i].shape[axis];
                sim::write(place, values[i]);
                place.offset += place.stride[axis] * place.shape[axis];
              }
            });
}

// ---- by index -------------------------------------------------------------------------------------------------------

// Whole rows of `table` along `axis`, chosen by `indices`; negative indices count from the end.
void compute_take(const Tensor& table, int64_t axis, const Tensor& indices, const Tensor& out) {
  const std::vector<int64_t> wanted = sim::read<int64_t>(indices);
  const std::vector<double> values = sim::read<double>(table);
  int64_t inner = 1, outer = 1;
  for (size_t i = 0; i < table.shape.size(); ++i) (static_cast<int64_t>(i) < axis ? outer : inner) *= table.shape[i];
  const int64_t size = table.shape[axis];
  inner /= size;
  std::vector<double> taken;
  for (int64_t before = 0; before < outer; ++before) {
    for (int64_t index : wanted) {
      const int64_t row = index < 0 ? index + size : index;
      if (row < 0 || row >= size) throw sim::Refused("index " + std::to_string(index) + " of " + std::to_string(size));
      const auto from = values.begin() + (before * size + row) * inner;
      taken.insert(taken.end(), from, from + inner);
    }
  }
  sim::write(out, taken);
}

// `self[indices]` as a list of memory offsets: those of the broadcast indices, and within each a block of what is not indexed.
struct Places {
  Tensor block;
  std::vector<int64_t> offsets;
};

Places places_of(const Tensor& self, const std::vector<Tensor>& indices, const std::vector<size_t>& axes) {
  Shape shape;
  for (const Tensor& index : indices) shape = sim::broadcast(shape, index.shape);
  Places places{self, std::vector<int64_t>(sim::elements_of(shape), self.offset)};
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::vector<int64_t> wanted = sim::read<int64_t>(indices[i], shape);
    const int64_t size = self.shape[axes[i]];
    for (size_t at = 0; at < wanted.size(); ++at) {
      const int64_t index = wanted[at] < 0 ? wanted[at] + size : wanted[at];
      if (index < 0 || index >= size) throw sim::Refused("index " + std::to_string(wanted[at]) + " of " + std::to_string(size));
      places.offsets[at] += index * self.stride[axes[i]];
    }
  }
  for (size_t i = axes.size(); i-- > 0;) {
    places.block.shape.erase(places.block.shape.begin() + static_cast<int64_t>(axes[i]));
    places.block.stride.erase(places.block.stride.begin() + static_cast<int64_t>(axes[i]));
  }
  return places;
}

struct Indexed {
  std::vector<Tensor> indices;
  std::vector<size_t> axes;
  std::vector<int64_t> sizes;  // 1 where an axis is indexed, as CANN tells of holes
};

// The indices that are there; they must be whole numbers on the first axes, side by side, as x[a, b] has them.
Indexed indexed_of(const aclTensorList* list) {
  Indexed found;
  for (size_t axis = 0; axis < list->items.size(); ++axis) {
    const aclTensor* index = list->items[axis];
    const bool there = index != nullptr && !(index->shape.size() == 1 && index->shape[0] == 0);
    found.sizes.push_back(there);
    if (!there) continue;
    if (index->dtype == ACL_BOOL) throw sim::Refused("a mask as an index");
    if (!found.axes.empty() && found.axes.back() + 1 != axis) throw sim::Refused("indices with a gap between them");
    found.indices.push_back(*index);
    found.axes.push_back(axis);
  }
  if (!found.axes.empty() && found.axes.front() != 0) throw sim::Refused("indices that do not begin with the first axis");
  return found;
}

}  // namespace

namespace sim {

void copy_step(Plan& plan, const Tensor& from, const Tensor& to) {
  auto compute = [from, to] { compute_copy(from, to); };
  if (from.dtype != to.dtype) {
    return plan.step("Cast", {Operand::of("x", &from)}, {Operand::of("y", &to)}, {whole("dst_type", to.dtype)}, compute);
  }
  if (!to.contiguous()) {
    return plan.step("ViewCopy", {Operand::of("dst", &to), Operand::of("src", &from)}, {Operand::of("dst", &to)}, {}, compute);
  }
  if (from.shape != to.shape) {
    return plan.step("BroadcastTo", {Operand::of("x", &from), Operand::fixed("shape", to.shape)}, {Operand::of("y", &to)}, {}, compute);
  }
  if (from.contiguous()) return plan.step("TensorMove", {Operand::of("x", &from)}, {Operand::of("y", &to)}, {}, compute);
  const std::vector<int64_t> order = permutation(from);
  if (!order.empty()) {
    return plan.step("Transpose", {Operand::of("x", &from), Operand::fixed("perm", order)}, {Operand::of("y", &to)}, {}, compute);
  }
  plan.step("AsStrided", {Operand::of("x", &from)}, {Operand::of("y", &to)}, {}, compute);
}

}  // namespace sim

ACLNN(aclnnInplaceCopy, (aclTensor * self, const aclTensor* source), { sim::copy_step(plan, *source, *self); })
ACLNN(aclnnCast, (const aclTensor* self, aclDataType, aclTensor* out), { sim::copy_step(plan, *self, *out); })
ACLNN(aclnnPermute, (const aclTensor* self, const aclIntArray* dims, aclTensor* out), {
  Tensor turned = *self;
  for (size_t i = 0; i < dims->values.size(); ++i) {
    turned.shape[i] = self->shape[dims->values[i]];
    turned.stride[i] = self->stride[dims->values[i]];
  }
  sim::copy_step(plan, turned, *out);
})
ACLNN(aclnnInplaceZero, (aclTensor * self), { plan_fill(plan, "ZerosLike", self, 0); })
ACLNN(aclnnInplaceOne, (aclTensor * self), { plan_fill(plan, "OnesLike", self, 1); })
ACLNN(aclnnInplaceFillScalar, (aclTensor * self, const aclScalar* value), { plan_fill(plan, "Fill", self, value->real); })
ACLNN(aclnnInplaceFillTensor, (aclTensor * self, const aclTensor* value), {
  plan.step("Fill", {Operand::fixed("dims", self->shape), Operand::of("value", value)}, {Operand::of("y", self)}, {},
            [y = *self, value = *value] { sim::write(y, sim::read<double>(value, y.shape)); });
})
ACLNN(aclnnArange, (const aclScalar* start, const aclScalar* end, const aclScalar* step, aclTensor* out), {
  const double first = start->real;
  const double each = step->real;
  const Tensor y = *out;
  plan.step("Range", {Operand::number("start", y.dtype), Operand::number("limit", y.dtype), Operand::number("delta", y.dtype)},
            {Operand::of("y", out)}, {}, [=] {
              std::vector<double> values(y.elements());
              for (size_t i = 0; i < values.size(); ++i) values[i] = first + each * static_cast<double>(i);
              sim::write(y, values);
            });
  static_cast<void>(end);  // the output's size tells it
})
ACLNN(aclnnForeachCopy, (const aclTensorList* sources, aclTensorList* targets), {
  const std::vector<const aclTensor*>& from = sources->items;
  std::vector<Tensor> all, to;
  for (size_t i = 0; i < from.size(); ++i) {
    all.push_back(*from[i]);
    to.push_back(*targets->items[i]);
  }
  plan.step("ForeachCopy", {Operand::dynamic("x", all)}, {Operand::dynamic("y", to)}, {}, [all, to] {
    for (size_t i = 0; i < all.size(); ++i) compute_copy(all[i], to[i]);
  });
})
ACLNN(aclnnCat, (const aclTensorList* tensors, int64_t dim, aclTensor* out), { plan_concatenation(plan, tensors, dim, out); })

ACLNN(aclnnEmbedding, (const aclTensor* weight, const aclTensor* indices, const aclTensor* out), {
  plan.step("GatherV2", {Operand::of("x", weight), Operand::of("indices", indices), Operand::fixed("axis", {0})}, {Operand::of("y", out)},
            {}, [table = *weight, i = *indices, y = *out] { compute_take(table, 0, i, y); });
})
ACLNN(aclnnIndexSelect, (const aclTensor* self, int64_t dim, const aclTensor* index, aclTensor* out), {
  const int64_t axis = sim::axis_of(dim, self->shape.size());
  plan.step("GatherV2", {Operand::of("x", self), Operand::of("indices", index), Operand::fixed("axis", {axis})}, {Operand::of("y", out)},
            {}, [table = *self, axis, i = *index, y = *out] { compute_take(table, axis, i, y); });
})
ACLNN(aclnnIndex, (const aclTensor* self, const aclTensorList* indices, aclTensor* out), {
  const Indexed found = indexed_of(indices);
  plan.step("Index", {Operand::of("x", self), Operand::dynamic("indices", found.indices)}, {Operand::of("y", out)},
            {{"indexed_sizes", "list_int", found.sizes}}, [x = *self, found, y = *out] {
              Places places = places_of(x, found.indices, found.axes);
              std::vector<double> taken;
              for (int64_t offset : places.offsets) {
                places.block.offset = offset;
                const std::vector<double> block = sim::read<double>(places.block);
                taken.insert(taken.end(), block.begin(), block.end());
              }
              sim::write(y, taken);
            });
})
ACLNN(aclnnIndexPutImpl, (aclTensor * self, const aclTensorList* indices, const aclTensor* values, bool accumulate, bool), {
  const Indexed found = indexed_of(indices);
  plan.step("IndexPutV2", {Operand::of("x", self), Operand::of("value", values), Operand::dynamic("indices", found.indices)},
            {Operand::of("x", self)}, {sim::flag("accumulate", accumulate), {"indexed_sizes", "list_int", found.sizes}},
            [x = *self, found, given = *values, accumulate] {
              Places places = places_of(x, found.indices, found.axes);
              const int64_t size = places.block.elements();
              Shape shape = {static_cast<int64_t>(places.offsets.size())};
              shape.insert(shape.end(), places.block.shape.begin(), places.block.shape.end());
              if (given.shape.size() > shape.size()) throw sim::Refused("values of more than one index axis");
              const std::vector<double> all = sim::read<double>(given, shape);
              for (size_t i = 0; i < places.offsets.size(); ++i) {
                places.block.offset = places.offsets[i];
                std::vector<double> block(all.begin() + static_cast<int64_t>(i) * size, all.begin() + static_cast<int64_t>(i + 1) * size);
                if (accumulate) {
                  const std::vector<double> before = sim::read<double>(places.block);
                  for (size_t at = 0; at < block.size(); ++at) block[at] += before[at];
                }
                sim::write(places.block, block);
              }
            });
})
