// Streams, events and captured graphs. Work runs at once, in the caller's thread, unless its stream is being captured.
#pragma once

#include <acl/acl_rt.h>

#include <functional>

namespace sim {

// Before a call that a capture in another thread, or in this one, may forbid: a status.
int outside_of_captures(const char* api);

// Run `work`, or append it to the graph that `stream` is being captured into.
void submit(aclrtStream stream, std::function<void()> work);

}  // namespace sim
