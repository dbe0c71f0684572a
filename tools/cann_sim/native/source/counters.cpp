#include "counters.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>

#include "json.h"
#include "version.h"

namespace sim {
namespace {

struct Counters {
  std::mutex lock;
  std::map<std::string, int64_t> dynamic, fixed, kernels, gone;
  Array loads, dumps;
  int64_t host_launches = 0, replays = 0;

  Json told() {
    auto as_json = [](const std::map<std::string, int64_t>& counts) {
      Object object;
      for (const auto& [name, count] : counts) object[name] = count;
      return object;
    };
    auto sum = [](const std::map<std::string, int64_t>& counts) {
      int64_t total = 0;
      for (const auto& [name, count] : counts) total += count;
      return total;
    };
    const std::lock_guard guard(lock);
    return Object{
        {"cann_version", kVersion},
        {"pid", static_cast<int64_t>(getpid())},
        {"launches", sum(dynamic) + sum(fixed)},
        {"static_launches", sum(fixed)},
        {"host_launches", host_launches},
        {"replays", replays},
        {"dynamic", as_json(dynamic)},
        {"static", as_json(fixed)},
        {"kernels", as_json(kernels)},
        {"gone", as_json(gone)},
        {"loads", loads},
        {"dumps", dumps},
    };
  }
};

// Never destroyed: launches may end after main does.
Counters& counters() {
  static auto* one = new Counters;
  return *one;
}

// $CANN_SIM_COUNTERS is a directory in which every process leaves its counters when it exits by itself.
[[gnu::destructor]] void leave_counters() {
  const char* directory = std::getenv("CANN_SIM_COUNTERS");
  if (directory == nullptr || *directory == '\0') return;
  std::ofstream file(std::string(directory) + "/" + std::to_string(getpid()) + ".json");
  file << counters().told().written() << "\n";
}

}  // namespace

void count_launch(const std::string& op_type, const std::string& kernel) {
  const std::lock_guard guard(counters().lock);
  ++(kernel.empty() ? counters().dynamic : counters().fixed)[op_type];
  if (!kernel.empty()) ++counters().kernels[kernel];
}

void count_host_launch() {
  const std::lock_guard guard(counters().lock);
  ++counters().host_launches;
}

void count_replay() {
  const std::lock_guard guard(counters().lock);
  ++counters().replays;
}

void count_gone(const std::string& kernel) {
  const std::lock_guard guard(counters().lock);
  ++counters().gone[kernel];
}

void count_load(const std::string& root, int64_t loaded, int64_t shadowed, int64_t torn) {
  const std::lock_guard guard(counters().lock);
  counters().loads.push_back(Object{{"root", root}, {"loaded", loaded}, {"shadowed", shadowed}, {"torn", torn}});
}

void count_dump(const std::string& path, int64_t records) {
  const std::lock_guard guard(counters().lock);
  counters().dumps.push_back(Object{{"path", path}, {"records", records}});
}

}  // namespace sim

const char* cann_sim_counters() {
  thread_local std::string told;
  told = sim::counters().told().written();
  return told.c_str();
}

void cann_sim_reset_counters() {
  sim::Counters& all = sim::counters();
  const std::lock_guard guard(all.lock);
  all.dynamic.clear();
  all.fixed.clear();
  all.kernels.clear();
  all.gone.clear();
  all.loads.clear();
  all.dumps.clear();
  all.host_launches = all.replays = 0;
}
