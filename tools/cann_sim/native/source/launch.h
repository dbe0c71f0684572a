// From an aclnn call to kernels that run: phase one plans steps, phase two runs them or appends them to a capture.
#pragma once

#include <acl/acl_rt.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "call.h"

struct aclOpExecutor;

namespace sim {

using Attributes = std::vector<Attribute>;

// One kernel of an aclnn call: what CANN would tell of it, and what it computes.
struct Step {
  Call call;
  std::function<void()> compute;
};

// What phase one collects; an operator of several steps is a composite one.
class Plan {
 public:
  void step(std::string op_type, std::vector<Operand> inputs, std::vector<Operand> outputs, Attributes attributes,
            std::function<void()> compute);
  std::vector<Step> steps;
};

// Phase one of `api`: the executor of what `plan` collects; a status, never an exception.
int planned(const char* api, uint64_t* workspace, aclOpExecutor** executor, const std::function<void(Plan&)>& plan);
// Phase two: choose each step's kernel, run or capture it; the executor is used up.
int launch(aclOpExecutor* executor, aclrtStream stream);

// The present settings of this process.
Surroundings surroundings();

// Remember `message` for aclGetRecentErrMsg; `status` for returning.
int failed(int status, const std::string& message);

}  // namespace sim

struct aclOpExecutor {
  std::string api;
  std::vector<sim::Step> steps;
};

#define SIM_UNPACK(...) __VA_ARGS__
// Define both phases of an aclnn function; the body collects its steps in `plan`.
#define ACLNN(name, parameters, ...)                                                                                  \
  extern "C" int name##GetWorkspaceSize(SIM_UNPACK parameters, uint64_t* workspace, aclOpExecutor** executor) {       \
    return sim::planned(#name, workspace, executor, [&](sim::Plan & plan) __VA_ARGS__);                               \
  }                                                                                                                   \
  extern "C" int name(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) { return sim::launch(executor, stream); }
