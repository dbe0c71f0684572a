#include "device.h"

#include <acl/acl.h>
#include <acl/acl_op_compiler.h>
#include <acl/acl_rt.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "launch.h"
#include "version.h"

namespace sim {
namespace {

constexpr uint32_t kDefaultDevices = 8;
constexpr int kNotSet = -1;
constexpr const char* kDriverVersion = "25.5.0";

std::atomic<int32_t> process_device = kNotSet;
thread_local int32_t thread_device = kNotSet;
std::atomic<int64_t> deterministic_option = 0;
std::atomic<int64_t> consistency_option = 0;
std::atomic<uint32_t> cube_limit = 0;
std::atomic<uint32_t> vector_limit = 0;

uint32_t device_count() {
  const char* given = std::getenv("CANN_SIM_DEVICES");
  const long count = given == nullptr ? 0 : std::strtol(given, nullptr, 10);
  return count > 0 ? static_cast<uint32_t>(count) : kDefaultDevices;
}

std::atomic<int64_t>& option(aclSysParamOpt opt) {
  return opt == ACL_OPT_DETERMINISTIC ? deterministic_option : consistency_option;
}

// The three numbers of a version; whether something such as "-beta.1" follows them.
bool read_version(const char* text, std::array<int, 3>& numbers) {
  int length = 0;
  std::sscanf(text, "%d.%d.%d%n", &numbers[0], &numbers[1], &numbers[2], &length);
  return text[length] != '\0';
}

// One byte for each device: its address stands for the context.
char contexts[1024];

}  // namespace

CoreCounts cores() {
  const uint32_t cube = cube_limit, vector = vector_limit;
  return {cube ? cube : kCubeCores, vector ? vector : kVectorCores};
}

bool deterministic() { return deterministic_option != 0; }

Surroundings surroundings() {
  const CoreCounts now = cores();
  return {deterministic(), now.cube, now.vector};
}

bool version_at_least(const char* release) {
  std::array<int, 3> mine{}, wanted{};
  const bool beta = read_version(kVersion, mine);
  read_version(release, wanted);
  return mine == wanted ? !beta : mine > wanted;
}

}  // namespace sim

// ---- the process ----------------------------------------------------------------------------------------------------

aclError aclInit(const char*) { return ACL_SUCCESS; }
aclError aclFinalize() { return ACL_SUCCESS; }

aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  std::memset(version, 0, sizeof *version);
  const char* found = name == ACL_PKG_NAME_DRIVER ? sim::kDriverVersion : sim::kVersion;
  std::snprintf(version->version, sizeof version->version, "%s", found);
  return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char*, char* version) {
  std::strcpy(version, sim::kVersion);
  return ACL_SUCCESS;
}

const char* aclrtGetSocName() { return sim::kSoc; }

// ---- devices --------------------------------------------------------------------------------------------------------

aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = sim::device_count();
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device) {
  if (device < 0 || static_cast<uint32_t>(device) >= sim::device_count()) {
    return sim::failed(ACL_ERROR_RT_PARAM_INVALID, "there is no device " + std::to_string(device));
  }
  sim::thread_device = device;
  sim::process_device = device;
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* device) {
  if (sim::thread_device == sim::kNotSet) return ACL_ERROR_RT_CONTEXT_NULL;
  *device = sim::thread_device;
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t) {
  sim::thread_device = sim::kNotSet;
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (sim::process_device == sim::kNotSet) return ACL_ERROR_RT_CONTEXT_NULL;
  *context = &sim::contexts[sim::thread_device == sim::kNotSet ? sim::process_device.load() : sim::thread_device];
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  sim::thread_device = static_cast<int32_t>(static_cast<char*>(context) - sim::contexts);
  return ACL_SUCCESS;
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  if (flags != nullptr) *flags = 0;
  *active = sim::process_device == device;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeDevice() { return ACL_SUCCESS; }
aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return ACL_SUCCESS; }

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_SUCCESS;
}

aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  *pid = getpid();
  return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
  *value = info == ACL_DEVICE_INFO_AI_CORE_NUM ? sim::kCubeCores : sim::kVectorCores;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t* value) {
  *value = attribute == ACL_DEV_ATTR_VECTOR_CORE_NUM ? sim::kVectorCores : sim::kCubeCores;
  return ACL_SUCCESS;
}

// ---- settings -------------------------------------------------------------------------------------------------------

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  *value = sim::option(opt);
  return ACL_SUCCESS;
}
aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  sim::option(opt) = value;
  return ACL_SUCCESS;
}
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value) { return aclrtSetSysParamOpt(opt, value); }

aclError aclrtSetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t value) {
  (type == ACL_RT_DEV_RES_CUBE_CORE ? sim::cube_limit : sim::vector_limit) = value;
  return ACL_SUCCESS;
}
aclError aclrtGetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t* value) {
  const sim::CoreCounts now = sim::cores();
  *value = static_cast<uint32_t>(type == ACL_RT_DEV_RES_CUBE_CORE ? now.cube : now.vector);
  return ACL_SUCCESS;
}
aclError aclrtResetDeviceResLimit(int32_t) {
  sim::cube_limit = sim::vector_limit = 0;
  return ACL_SUCCESS;
}
aclError aclrtGetStreamResLimit(aclrtStream, aclrtDevResLimitType type, uint32_t* value) {
  return aclrtGetDeviceResLimit(0, type, value);
}
aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) { return aclrtGetDeviceResLimit(0, type, value); }

// "disable": operators go by aclnn, and nothing is compiled while they run.
size_t aclGetCompileoptSize(aclCompileOpt) { return sizeof "disable"; }
aclError aclGetCompileopt(aclCompileOpt, char* value, size_t length) {
  std::snprintf(value, length, "disable");
  return ACL_SUCCESS;
}
aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }
aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }
aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
