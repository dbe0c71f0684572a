#include "dump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <acl/acl_dump.h>

#include <map>
#include <mutex>
#include <set>

#include "counters.h"
#include "launch.h"
#include "version.h"

namespace sim {
namespace {

using Types = std::set<std::string>;

constexpr int kDumpStateError = 500002;
constexpr int kBadPath = 148000;

struct Recorded {
  std::string op_type;
  std::string name;
  Object record;
};

struct Dump {
  std::mutex lock;
  bool running = false;
  std::string path;
  std::vector<Recorded> records;
  std::map<std::string, int> counters;
};

Dump& dump() {
  static auto* one = new Dump;
  return *one;
}

// The op types of the first folder; the exact list is CANN's own and undocumented.
const Types kTargets = {
    "MatMulV2", "MatMulV3", "BatchMatMulV2", "BatchMatMulV3", "MatMul", "BatchMatMul", "Conv2D", "Conv2DBackpropInput",
    "Conv2DBackpropFilter", "Conv3D", "Conv3DV2", "FlashAttentionScore", "FlashAttentionScoreGrad", "FusedInferAttentionScore",
    "GroupedMatmul", "QuantBatchMatmulV3", "WeightQuantBatchMatmulV2", "TransposeBatchMatMul", "SoftmaxV2", "LayerNormV3", "RmsNorm",
};

// What a release keeps out of static compilation (docs/cann.md, "The dump").
Types not_compilable() {
  Types refused = {"ReduceSum", "ReduceMin", "ReduceMax", "ArgMinWithValue", "ArgMaxWithValue", "FusedInferAttentionScore", "GatherV2"};
  if (!version_at_least("9.1.0")) refused.insert("GatherV3");
  if (version_at_least("9.0.0")) {
    refused.insert("Range");
  } else {
    refused.merge(Types{"MoeDistributeCombine", "MoeDistributeCombineV2", "MoeDistributeDispatch", "MoeDistributeDispatchV2"});
  }
  return refused;
}

// In place, as CANN writes: no temporary name, readable by this user alone.
void write_file(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file, text.data() + done, text.size() - done);
    if (wrote <= 0) break;
    done += wrote;
  }
  ::close(file);
}

void write_folder(const Dump& all, const std::string& suffix, auto&& takes, bool debug = false) {
  const std::string folder = all.path + "/" + std::to_string(getpid()) + suffix;
  bool made = false;
  for (const Recorded& item : all.records) {
    if (!takes(item.op_type)) continue;
    if (!made) mkdir(folder.c_str(), 0700);
    made = true;
    Object record = item.record;
    if (debug) {
      record["bin_type"] = 0;
      record["bin_info"] = "/simulated/" + item.op_type + ".o";
    }
    write_file(folder + "/" + item.name, Json(record).written());
  }
}

}  // namespace

void record(const Call& call) {
  const std::lock_guard guard(dump().lock);
  if (!dump().running) return;
  const std::string prefix = record_prefix(call);
  const std::string name = prefix + "_" + std::to_string(dump().counters[prefix]++) + ".json";
  dump().records.push_back({call.op_type, name, record_of(call, surroundings()).object()});
}

}  // namespace sim

aclError aclopStartDumpArgs(uint32_t, const char* path) {
  sim::Dump& all = sim::dump();
  const std::lock_guard guard(all.lock);
  if (all.running) return sim::failed(sim::kDumpStateError, "the operator dump runs already");
  if (path == nullptr || *path == '\0') return sim::failed(sim::kBadPath, "no path for the operator dump");
  all.running = true;
  all.path = path;
  return ACL_SUCCESS;
}

aclError aclopStopDumpArgs(uint32_t) {
  sim::Dump& all = sim::dump();
  const std::lock_guard guard(all.lock);
  if (!all.running) return sim::failed(sim::kDumpStateError, "the operator dump does not run");
  mkdir(all.path.c_str(), 0700);
  const sim::Types refused = sim::not_compilable();
  sim::write_folder(all, "", [](const std::string& type) { return sim::kTargets.count(type) > 0; });
  sim::write_folder(all, "_debug", [](const std::string&) { return true; }, true);
  sim::write_folder(all, "_opcompile", [&](const std::string& type) { return refused.count(type) == 0; });
  sim::count_dump(all.path, static_cast<int64_t>(all.records.size()));
  all.running = false;
  all.records.clear();
  all.counters.clear();
  return ACL_SUCCESS;
}
