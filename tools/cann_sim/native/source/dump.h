// The operator dump: one switch per process, everything kept in memory and written when it stops.
#pragma once

#include "call.h"

namespace sim {

// Keep a record of `call` if the dump runs.
void record(const Call& call);

}  // namespace sim
