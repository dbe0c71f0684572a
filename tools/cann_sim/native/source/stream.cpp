#include "stream.h"

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "counters.h"
#include "launch.h"

namespace sim {
namespace {

struct Stream;

// A captured model: what to run, in order. `broken` says what spoiled its capture.
struct Graph {
  uint32_t id;
  Stream* origin;
  aclmdlRICaptureMode mode;
  std::thread::id thread;
  std::string broken;
  std::set<Stream*> streams;
  std::vector<std::function<void()>> work;
};

struct Stream {
  int32_t id;
  Graph* graph = nullptr;  // being captured into
};

struct Event {
  bool recorded = false;
  uint32_t graph = 0;  // id of the graph that its stream was being captured into; 0: none
  std::chrono::steady_clock::time_point at;
};

// Guards which stream is captured into which graph; work runs without it.
std::mutex streams_lock;
int32_t streams_made = 0;
uint32_t graphs_made = 0;
std::map<uint32_t, Graph*> capturing;
thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

Stream& default_stream() {
  static auto* one = new Stream{0};
  return *one;
}

Stream& stream_of(aclrtStream stream) { return stream == nullptr ? default_stream() : *static_cast<Stream*>(stream); }

void join(Stream& stream, Graph* graph) {
  stream.graph = graph;
  graph->streams.insert(&stream);
}

// Whether `graph`, while it is captured, forbids this thread a call that is not part of a stream's work.
bool forbids(const Graph& graph) {
  if (thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED || graph.mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) return false;
  if (graph.thread == std::this_thread::get_id()) return true;
  return graph.mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL && thread_mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
}

aclError waited(aclrtStream stream) {
  const std::lock_guard guard(streams_lock);
  Graph* graph = stream_of(stream).graph;
  if (graph == nullptr) return ACL_SUCCESS;
  graph->broken = "its stream was waited for";
  return failed(ACL_ERROR_RT_STREAM_CAPTURED, "a stream that is being captured cannot be waited for");
}

}  // namespace

int outside_of_captures(const char* api) {
  const std::lock_guard guard(streams_lock);
  for (const auto& [id, graph] : capturing) {
    if (!forbids(*graph)) continue;
    graph->broken = std::string(api) + " was called meanwhile";
    return failed(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, std::string(api) + " is forbidden while a stream is being captured");
  }
  return ACL_SUCCESS;
}

void submit(aclrtStream stream, std::function<void()> work) {
  {
    const std::lock_guard guard(streams_lock);
    if (Graph* graph = stream_of(stream).graph) {
      graph->work.push_back(std::move(work));
      return;
    }
  }
  work();
}

}  // namespace sim

using sim::Event;
using sim::Graph;
using sim::Stream;

// ---- streams --------------------------------------------------------------------------------------------------------

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  const std::lock_guard guard(sim::streams_lock);
  *stream = new Stream{++sim::streams_made};
  return ACL_SUCCESS;
}
aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

aclError aclrtDestroyStream(aclrtStream stream) {
  delete static_cast<Stream*>(stream);
  return ACL_SUCCESS;
}
aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

aclError aclrtSynchronizeStream(aclrtStream stream) { return sim::waited(stream); }
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) { return sim::waited(stream); }

aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus* status) {
  *status = ACL_STREAM_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = sim::stream_of(stream).id;
  return ACL_SUCCESS;
}

// ---- events ---------------------------------------------------------------------------------------------------------

aclError aclrtCreateEvent(aclrtEvent* event) {
  *event = new Event;
  return ACL_SUCCESS;
}
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }

aclError aclrtDestroyEvent(aclrtEvent event) {
  delete static_cast<Event*>(event);
  return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  const std::lock_guard guard(sim::streams_lock);
  auto* marked = static_cast<Event*>(event);
  const Graph* graph = sim::stream_of(stream).graph;
  *marked = {true, graph == nullptr ? 0 : graph->id, std::chrono::steady_clock::now()};
  return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream) {
  static_cast<Event*>(event)->recorded = false;
  return ACL_SUCCESS;
}

// A stream that waits for what a captured stream did is captured with it.
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  const std::lock_guard guard(sim::streams_lock);
  const auto graph = sim::capturing.find(static_cast<Event*>(event)->graph);
  Stream& waits = sim::stream_of(stream);
  if (graph != sim::capturing.end() && waits.graph == nullptr) sim::join(waits, graph->second);
  return ACL_SUCCESS;
}

aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus* status) {
  *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
aclError aclrtSynchronizeEvent(aclrtEvent) { return ACL_SUCCESS; }

aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
  *ms = std::chrono::duration<float, std::milli>(static_cast<Event*>(end)->at - static_cast<Event*>(start)->at).count();
  return ACL_SUCCESS;
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp) {
  const auto since = static_cast<Event*>(event)->at.time_since_epoch();
  *timestamp = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
  return ACL_SUCCESS;
}

// ---- captured graphs ------------------------------------------------------------------------------------------------

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
  const std::lock_guard guard(sim::streams_lock);
  Stream& origin = sim::stream_of(stream);
  if (origin.graph != nullptr) return sim::failed(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured already");
  auto* graph = new Graph{++sim::graphs_made, &origin, mode, std::this_thread::get_id(), "", {}, {}};
  sim::capturing[graph->id] = graph;
  sim::join(origin, graph);
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* model) {
  const std::lock_guard guard(sim::streams_lock);
  Graph* graph = sim::stream_of(stream).graph;
  *status = graph == nullptr          ? ACL_MODEL_RI_CAPTURE_STATUS_NONE
            : graph->broken.empty() ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE
                                    : ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED;
  if (model != nullptr) *model = graph;
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* model) {
  const std::lock_guard guard(sim::streams_lock);
  Graph* graph = sim::stream_of(stream).graph;
  if (graph == nullptr) return sim::failed(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not being captured");
  if (graph->origin != &sim::stream_of(stream)) {
    return sim::failed(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "the capture began in another stream");
  }
  for (Stream* each : graph->streams) each->graph = nullptr;
  graph->streams.clear();
  sim::capturing.erase(graph->id);
  if (!graph->broken.empty()) {
    const std::unique_ptr<Graph> spoiled(graph);
    return sim::failed(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "the capture came to nothing: " + spoiled->broken);
  }
  *model = graph;
  return ACL_SUCCESS;
}

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
  const auto* graph = static_cast<const Graph*>(model);
  sim::count_replay();
  try {
    for (const auto& work : graph->work) sim::submit(stream, work);
  } catch (const std::exception& error) {
    return sim::failed(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, std::string("a captured kernel failed: ") + error.what());
  }
  return ACL_SUCCESS;
}

aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
  *id = static_cast<Graph*>(model)->id;
  return ACL_SUCCESS;
}

aclError aclmdlRIDestroy(aclmdlRI model) {
  delete static_cast<Graph*>(model);
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  std::swap(*mode, sim::thread_mode);
  return ACL_SUCCESS;
}
