// Device memory is host memory; what belongs to the device is known by its address.
#include <acl/acl_rt.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "launch.h"
#include "stream.h"

namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kDeviceBytes = size_t{32} << 30;

struct Block {
  size_t size;
  bool device;
};

std::mutex blocks_lock;
size_t device_bytes_used = 0;

std::map<const char*, Block>& blocks() {
  static auto* all = new std::map<const char*, Block>;
  return *all;
}

aclError allocate(void** out, size_t size, bool device) {
  const size_t rounded = (size + kAlignment) / kAlignment * kAlignment;  // one byte more at least, as CANN gives
  const std::lock_guard guard(blocks_lock);
  if (device && device_bytes_used + rounded > kDeviceBytes) {
    return sim::failed(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of device memory");
  }
  *out = std::aligned_alloc(kAlignment, rounded);
  if (*out == nullptr) return sim::failed(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of memory");
  blocks()[static_cast<char*>(*out)] = {rounded, device};
  if (device) device_bytes_used += rounded;
  return ACL_SUCCESS;
}

aclError release(void* pointer) {
  const std::lock_guard guard(blocks_lock);
  const auto block = blocks().find(static_cast<char*>(pointer));
  if (block == blocks().end()) return sim::failed(ACL_ERROR_RT_PARAM_INVALID, "freeing what was not allocated");
  if (block->second.device) device_bytes_used -= block->second.size;
  blocks().erase(block);
  std::free(pointer);
  return ACL_SUCCESS;
}

// The block that `pointer` lies in; null: memory of somebody else.
const Block* block_of(const void* pointer) {
  auto next = blocks().upper_bound(static_cast<const char*>(pointer));
  if (next == blocks().begin()) return nullptr;
  --next;
  return static_cast<const char*>(pointer) < next->first + next->second.size ? &next->second : nullptr;
}

}  // namespace

aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) { return allocate(pointer, size, true); }
aclError aclrtMallocAlign32(void** pointer, size_t size, aclrtMemMallocPolicy) { return allocate(pointer, size, true); }
aclError aclrtFree(void* pointer) { return release(pointer); }
aclError aclrtMallocHost(void** pointer, size_t size) { return allocate(pointer, size, false); }
aclError aclrtMallocHostWithCfg(void** pointer, uint64_t size, aclrtMallocConfig*) { return allocate(pointer, size, false); }
aclError aclrtFreeHost(void* pointer) { return release(pointer); }

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  const std::lock_guard guard(blocks_lock);
  *total = kDeviceBytes;
  *free = kDeviceBytes - device_bytes_used;
  return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  const std::lock_guard guard(blocks_lock);
  const Block* block = block_of(pointer);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->location.type = block == nullptr ? ACL_MEM_LOCATION_TYPE_UNREGISTERED
                              : block->device  ? ACL_MEM_LOCATION_TYPE_DEVICE
                                               : ACL_MEM_LOCATION_TYPE_HOST;
  return ACL_SUCCESS;
}

aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t count, aclrtMemcpyKind) {
  if (const int status = sim::outside_of_captures("aclrtMemcpy")) return status;
  if (count > room) return sim::failed(ACL_ERROR_RT_PARAM_INVALID, "a copy that is larger than its target");
  std::memmove(to, from, count);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t count, aclrtMemcpyKind, aclrtStream stream) {
  if (count > room) return sim::failed(ACL_ERROR_RT_PARAM_INVALID, "a copy that is larger than its target");
  sim::submit(stream, [=] { std::memmove(to, from, count); });
  return ACL_SUCCESS;
}

aclError aclrtMemset(void* to, size_t room, int32_t value, size_t count) {
  if (const int status = sim::outside_of_captures("aclrtMemset")) return status;
  if (count > room) return sim::failed(ACL_ERROR_RT_PARAM_INVALID, "a fill that is larger than its target");
  std::memset(to, value, count);
  return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t count, aclrtStream stream) {
  if (count > room) return sim::failed(ACL_ERROR_RT_PARAM_INVALID, "a fill that is larger than its target");
  sim::submit(stream, [=] { std::memset(to, value, count); });
  return ACL_SUCCESS;
}
