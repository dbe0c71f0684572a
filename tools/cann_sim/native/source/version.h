// Which CANN and which chip this library simulates: constants that are generated for each home.
#pragma once

#include <cstdint>

namespace sim {

extern const char* const kVersion;
extern const char* const kSoc;
extern const char* const kFamily;
extern const int64_t kCubeCores;
extern const int64_t kVectorCores;

// Whether the simulated release is `release` (such as "9.0.0") or a later one; a beta comes before its release.
bool version_at_least(const char* release);

}  // namespace sim
