// What this process's launches ran, for tests: which were static kernels, and which.
#pragma once

#include <string>

namespace sim {

// A launch of `op_type`; `kernel` is the path of the static kernel's object, empty where the dynamic kernel ran.
void count_launch(const std::string& op_type, const std::string& kernel);
// A launch that the host made itself, whether it ran at once or was captured.
void count_host_launch();
// A replay of a captured graph, whose launches count as the ones above.
void count_replay();
// A static kernel was selected, and its object was gone.
void count_gone(const std::string& kernel);
// A load of `root`: what an index held and what came of it.
void count_load(const std::string& root, int64_t loaded, int64_t shadowed, int64_t torn);
// A dump that was written, with its number of records.
void count_dump(const std::string& path, int64_t records);

}  // namespace sim

// All counters as JSON; valid until this thread's next call.
extern "C" const char* cann_sim_counters();
extern "C" void cann_sim_reset_counters();
