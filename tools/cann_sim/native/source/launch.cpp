#include "launch.h"

#include <mutex>

#include "counters.h"
#include "device.h"
#include "dump.h"
#include "kernels.h"
#include "refusing.h"
#include "stream.h"

namespace sim {
namespace {

constexpr int kNotComputed = 561103;
constexpr int kNotLaunched = 561107;

std::mutex message_lock;
std::string message;

// The static kernel for a step, or none. A composite operator has no other way when one of its kernels has vanished.
std::shared_ptr<Kernel> kernel_for(const Step& step, bool composite) {
  if (!any_selected()) return nullptr;
  const Surroundings around = surroundings();
  std::shared_ptr<Kernel> kernel = selected(simplified_key(step.call, around), around.cube_cores, around.vector_cores);
  if (kernel == nullptr || kernel->ready()) return kernel;
  count_gone(kernel->path);
  if (composite) throw Refused("the files of a selected static kernel have vanished: " + kernel->path);
  return nullptr;
}

}  // namespace

void Plan::step(std::string op_type, std::vector<Operand> inputs, std::vector<Operand> outputs, Attributes attributes,
                std::function<void()> compute) {
  steps.push_back({{std::move(op_type), std::move(inputs), std::move(outputs), std::move(attributes)}, std::move(compute)});
}

int failed(int status, const std::string& text) {
  const std::lock_guard guard(message_lock);
  message = "SIMULATED CANN: " + text;
  return status;
}

int not_computed(const char* api) { return failed(kNotComputed, std::string(api) + " is not computed by the simulation"); }

int planned(const char* api, uint64_t* workspace, aclOpExecutor** executor, const std::function<void(Plan&)>& plan) {
  first_operator();
  Plan collected;
  try {
    plan(collected);
  } catch (const std::exception& error) {
    return failed(kNotComputed, std::string(api) + " does not take " + error.what());
  }
  *workspace = 0;
  *executor = new aclOpExecutor{api, std::move(collected.steps)};
  return 0;
}

int launch(aclOpExecutor* executor, aclrtStream stream) {
  const std::unique_ptr<aclOpExecutor> used(executor);
  try {
    for (Step& step : used->steps) {
      record(step.call);
      count_host_launch();
      std::shared_ptr<Kernel> kernel = kernel_for(step, used->steps.size() > 1);
      submit(stream, [op_type = step.call.op_type, kernel = std::move(kernel), compute = std::move(step.compute)] {
        count_launch(op_type, kernel ? kernel->path : "");
        compute();
      });
    }
  } catch (const std::exception& error) {
    return failed(kNotLaunched, used->api + ": " + error.what());
  }
  return 0;
}

}  // namespace sim

extern "C" const char* aclGetRecentErrMsg() {
  thread_local std::string told;
  const std::lock_guard guard(sim::message_lock);
  told = sim::message;
  return told.empty() ? nullptr : told.c_str();
}
