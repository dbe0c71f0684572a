// Devices and what is set for them.
#pragma once

#include <cstdint>

namespace sim {

struct CoreCounts {
  int64_t cube;
  int64_t vector;
};

// What this process may use at present: the whole chip's cores, or what aclrtSetDeviceResLimit left of them.
CoreCounts cores();
// Whether deterministic kernels are asked for.
bool deterministic();

}  // namespace sim
