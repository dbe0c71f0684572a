// For operators that exist by name alone.
#pragma once

namespace sim {

// The status of a call to `api`, which the simulation does not compute; the message names it.
int not_computed(const char* api);

}  // namespace sim
