// The older operator interface, by which torch_npu changes formats: Identity and TransData are computed, all others refused by name.
#include <acl/acl_base.h>
#include <acl/acl_op.h>
#include <acl/acl_op_compiler.h>

#include "launch.h"
#include "stream.h"

struct aclTensorDesc : sim::Tensor {};
struct aclDataBuffer {
  void* data;
  size_t size;
};
struct aclopAttr {};

namespace {

constexpr int kNotComputed = 500003;

// What a description and a buffer say together; `shape` is how the elements are counted, whatever the format.
sim::Tensor joined(const aclTensorDesc& desc, const aclDataBuffer& buffer, const sim::Shape& shape) {
  sim::Tensor tensor = desc;
  tensor.shape = shape;
  tensor.stride = sim::contiguous_strides(shape);
  tensor.data = static_cast<char*>(buffer.data);
  return tensor;
}

}  // namespace

aclTensorDesc* aclCreateTensorDesc(aclDataType dtype, int rank, const int64_t* sizes, aclFormat format) {
  auto* made = new aclTensorDesc;
  made->dtype = dtype;
  made->format = format;
  made->shape.assign(sizes, sizes + rank);
  made->storage = made->shape;
  return made;
}
void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
  desc->format = format;
  return ACL_SUCCESS;
}
aclError aclSetTensorShape(aclTensorDesc* desc, int rank, const int64_t* sizes) {
  desc->storage.assign(sizes, sizes + rank);
  return ACL_SUCCESS;
}
void aclSetTensorDescName(aclTensorDesc*, const char*) {}
aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }
aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc->format; }
aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return desc->dtype; }
size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc->shape.size(); }
aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t axis, int64_t* size) {
  *size = desc->shape.at(axis);
  return ACL_SUCCESS;
}

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return new aclDataBuffer{data, size}; }
aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete buffer;
  return ACL_SUCCESS;
}

aclopAttr* aclopCreateAttr() { return new aclopAttr; }
void aclopDestroyAttr(const aclopAttr* attr) { delete attr; }

aclError aclopCompileAndExecute(const char* op_type, int inputs, const aclTensorDesc* const in_desc[], const aclDataBuffer* const in[],
                                int outputs, const aclTensorDesc* const out_desc[], aclDataBuffer* const out[], const aclopAttr*,
                                aclopEngineType, aclopCompileType, const char*, aclrtStream stream) {
  const std::string type = op_type;
  if ((type != "TransData" && type != "Identity") || inputs != 1 || outputs != 1) {
    return sim::failed(kNotComputed, type + " is not computed by the simulation");
  }
  const aclTensorDesc& plain = in_desc[0]->format == ACL_FORMAT_FRACTAL_NZ ? *out_desc[0] : *in_desc[0];
  const sim::Tensor from = joined(*in_desc[0], *in[0], plain.shape), to = joined(*out_desc[0], *out[0], plain.shape);
  sim::Plan plan;
  plan.step(type, {sim::Operand::of("x", &from)}, {sim::Operand::of("y", &to)}, {},
            [from, to] { sim::write(to, sim::read<double>(from)); });
  return sim::launch(new aclOpExecutor{type, std::move(plan.steps)}, stream);
}
