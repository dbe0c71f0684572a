// One kernel call as CANN tells of it: the record that a dump writes, and the key under which a static kernel is looked up.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json.h"
#include "tensor.h"

namespace sim {

// An input or output: a tensor, a constant (`const_data` is part of the record), a list of tensors, or nothing.
struct Operand {
  std::string name;
  std::string param_type = "required";
  std::optional<Tensor> tensor;
  std::optional<std::vector<int64_t>> constant;
  std::optional<std::vector<Tensor>> list;

  // A tensor; absent where `given` is null.
  static Operand of(std::string name, const Tensor* given);
  static Operand optional(std::string name, const Tensor* given);
  // Whole numbers that decide the kernel, such as the axes of a reduction.
  static Operand fixed(std::string name, std::vector<int64_t> values);
  // A number that is an input on the device; its value does not decide the kernel.
  static Operand number(std::string name, aclDataType dtype);
  static Operand dynamic(std::string name, std::vector<Tensor> items);
};

struct Attribute {
  std::string name;
  std::string dtype;
  Json value;
};

struct Call {
  std::string op_type;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  std::vector<Attribute> attributes;
};

// The settings that a record tells beside the call.
struct Surroundings {
  bool deterministic;
  int64_t cube_cores;
  int64_t vector_cores;
};

// The record in the schema of the simulated CANN's version.
Json record_of(const Call& call, const Surroundings& surroundings);
// The `simplifiedKey` that the simulated op_compiler gives to a kernel for this call.
std::string simplified_key(const Call& call, const Surroundings& surroundings);
// The file name of a record without its counter: op type, dtype, format and sizes of the first tensor.
std::string record_prefix(const Call& call);

}  // namespace sim
