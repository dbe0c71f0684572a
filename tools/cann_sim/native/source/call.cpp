#include "call.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>

#include "version.h"

namespace sim {
namespace {

constexpr const char* kImplMode = "high_performance";

Json tensor_json(const Operand& operand, int64_t index, const Tensor& tensor) {
  const Shape& shape = tensor.format == ACL_FORMAT_FRACTAL_NZ ? tensor.storage : tensor.shape;
  Object told{
      {"name", operand.name},
      {"index", index},
      {"param_type", operand.param_type},
      {"dtype", dtype_word(tensor.dtype)},
      {"shape", shape},
      {"format", format_word(tensor.format)},
      {"origin_shape", tensor.shape},
      {"origin_format", "ND"},
      {"value_depend", operand.constant.has_value()},
  };
  if (operand.constant) told["const_data"] = *operand.constant;
  if (version_at_least("9.1.0") && !operand.constant) {
    const bool view = !tensor.contiguous();
    told["is_view"] = view;
    if (view) {
      told["stride"] = tensor.stride;
      told["offset"] = tensor.offset;
    }
  }
  return told;
}

Json operand_json(const Operand& operand, int64_t index) {
  if (operand.list) {
    Array items;
    for (const Tensor& item : *operand.list) items.push_back(tensor_json(operand, index, item));
    return items;
  }
  return operand.tensor ? tensor_json(operand, index, *operand.tensor) : Json();
}

Json operands_json(const std::vector<Operand>& operands) {
  Array told;
  for (size_t i = 0; i < operands.size(); ++i) told.push_back(operand_json(operands[i], static_cast<int64_t>(i)));
  return told;
}

// JSON has no infinities: they become the largest finite float, as the dump writes them.
Json finite(const Json& value) {
  const double* real = std::get_if<double>(&value.value);
  return real == nullptr ? value : Json(std::clamp(*real, -static_cast<double>(FLT_MAX), static_cast<double>(FLT_MAX)));
}

std::string key_of(const Tensor& tensor) {
  std::string key = std::string(dtype_word(tensor.dtype)) + "," + format_word(tensor.format) + ",";
  const Shape& shape = tensor.format == ACL_FORMAT_FRACTAL_NZ ? tensor.storage : tensor.shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    char size[24];
    std::snprintf(size, sizeof size, "%s%llx", i ? "_" : "", static_cast<unsigned long long>(shape[i]));
    key += size;
  }
  return key;
}

std::string key_of(const Operand& operand) {
  if (operand.list) {
    std::string key = "[";
    for (size_t i = 0; i < operand.list->size(); ++i) key += (i ? ";" : "") + key_of((*operand.list)[i]);
    return key + "]";
  }
  return operand.tensor ? key_of(*operand.tensor) : "-";
}

std::string key_of(const std::vector<Operand>& operands) {
  std::string key;
  for (size_t i = 0; i < operands.size(); ++i) key += (i ? "|" : "") + key_of(operands[i]);
  return key;
}

// Numbers in one spelling, that of the simulated op_compiler: whole ones without a point, others with seven digits.
std::string key_of(double value) {
  char text[400];
  std::snprintf(text, sizeof text, "%.0f", value);
  if (value == std::floor(value)) return text;
  std::snprintf(text, sizeof text, "%.7g", value);
  const double rounded = std::stod(text);
  if (rounded == std::floor(rounded)) std::snprintf(text, sizeof text, "%.1f", rounded);
  return text;
}

std::string key_of(const Json& value) {
  if (const auto* items = std::get_if<Array>(&value.value)) {
    std::string key = "[";
    for (size_t i = 0; i < items->size(); ++i) key += (i ? ";" : "") + key_of((*items)[i]);
    return key + "]";
  }
  if (const auto* text = std::get_if<std::string>(&value.value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value.value)) return *flag ? "1" : "0";
  if (const auto* real = std::get_if<double>(&value.value)) return key_of(*real);
  return std::to_string(value.whole());
}

}  // namespace

Operand Operand::of(std::string name, const Tensor* given) {
  Operand made;
  made.name = std::move(name);
  if (given != nullptr) made.tensor = *given;
  return made;
}

Operand Operand::optional(std::string name, const Tensor* given) {
  Operand made = of(std::move(name), given);
  made.param_type = "optional";
  return made;
}

Operand Operand::fixed(std::string name, std::vector<int64_t> values) {
  Tensor shape;
  shape.shape = {static_cast<int64_t>(values.size())};
  shape.stride = {1};
  shape.dtype = ACL_INT64;
  Operand made = of(std::move(name), &shape);
  made.constant = std::move(values);
  return made;
}

Operand Operand::number(std::string name, aclDataType dtype) {
  Tensor scalar;
  scalar.dtype = dtype;
  return of(std::move(name), &scalar);
}

Operand Operand::dynamic(std::string name, std::vector<Tensor> items) {
  Operand made;
  made.name = std::move(name);
  made.param_type = "dynamic";
  made.list = std::move(items);
  return made;
}

Json record_of(const Call& call, const Surroundings& surroundings) {
  Array attributes;
  for (size_t i = 0; i < call.attributes.size(); ++i) {
    const Attribute& item = call.attributes[i];
    const Json value = finite(item.value);
    attributes.push_back(Object{{"name", item.name}, {"dtype", item.dtype}, {"index", static_cast<int64_t>(i)}, {"value", value}});
  }
  Object record{
      {"op_type", call.op_type},
      {"inputs", operands_json(call.inputs)},
      {"outputs", operands_json(call.outputs)},
      {"attrs", attributes},
      {"impl_mode", kImplMode},
      {"deterministic", surroundings.deterministic ? "true" : "false"},
      {"tune_mode", "static_kernel"},
  };
  if (version_at_least("9.0.0")) {
    record["platform_info"] = Object{{"cube_core_cnt", surroundings.cube_cores}, {"vector_core_cnt", surroundings.vector_cores}};
  }
  return record;
}

std::string simplified_key(const Call& call, const Surroundings& surroundings) {
  std::vector<std::string> attributes;
  for (const Attribute& item : call.attributes) attributes.push_back(item.name + "=" + key_of(finite(item.value)));
  std::sort(attributes.begin(), attributes.end());
  std::string joined;
  for (size_t i = 0; i < attributes.size(); ++i) joined += (i ? "," : "") + attributes[i];
  return call.op_type + "/d=" + (surroundings.deterministic ? "1" : "0") + ",p=" + kImplMode + "/" + key_of(call.inputs) + "/" +
         key_of(call.outputs) + "/" + joined;
}

std::string record_prefix(const Call& call) {
  for (const auto* side : {&call.inputs, &call.outputs}) {
    for (const Operand& operand : *side) {
      const bool listed = operand.list && !operand.list->empty();
      if (!operand.tensor && !listed) continue;
      const Tensor& first = listed ? operand.list->front() : *operand.tensor;
      std::string prefix = call.op_type + "_" + dtype_word(first.dtype) + "_" + format_word(first.format);
      for (int64_t size : first.shape) prefix += "_" + std::to_string(size);
      return prefix;
    }
  }
  return call.op_type;
}

}  // namespace sim
