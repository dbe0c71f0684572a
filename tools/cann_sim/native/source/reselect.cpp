// Reading an op library's root as the CANN runtime does (docs/cann.md, "How the runtime reads it"; tools/cann_sim/reader.py).
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unordered_map>

#include "counters.h"
#include "json.h"
#include "kernels.h"
#include "launch.h"
#include "version.h"

namespace sim {
namespace {

struct Library {
  std::mutex lock;
  std::unordered_map<std::string, std::shared_ptr<Kernel>> by_key;
  std::atomic<bool> used = false;
};

Library& library() {
  static auto* one = new Library;
  return *one;
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw JsonError("cannot open " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// $ASCEND_HOME_PATH/opp_latest if it resolves, else $ASCEND_OPP_PATH.
std::string default_root() {
  const char* home = std::getenv("ASCEND_HOME_PATH");
  std::error_code ignored;
  if (home != nullptr && *home != '\0') {
    const std::string latest = std::string(home) + "/opp_latest";
    if (std::filesystem::exists(latest, ignored)) return latest;
  }
  const char* opp = std::getenv("ASCEND_OPP_PATH");
  return opp == nullptr ? "" : opp;
}

// The path of a kernel's json: that of its object, cut at the first ".o" anywhere in it.
std::string json_path(const std::string& object) {
  const size_t cut = object.find(".o");
  if (cut == std::string::npos || object.size() >= PATH_MAX) throw JsonError("no path of an object: " + object);
  return object.substr(0, cut) + ".json";
}

std::shared_ptr<Kernel> load_kernel(const std::string& op_type, const std::string& path) {
  const Json facts = parse_json(content(json_path(path)));
  facts.at("sha256").text();
  const Json& platform = facts.at("platformInfo");
  return std::make_shared<Kernel>(op_type, path, platform.at("cube_core_cnt").whole(), platform.at("vector_core_cnt").whole());
}

std::vector<std::string> keys_of(const Json& entry) {
  const Json& key = entry.at("simplifiedKey");
  if (!std::holds_alternative<Array>(key.value)) return {key.text()};
  std::vector<std::string> keys;
  for (const Json& item : key.array()) keys.push_back(item.text());
  return keys;
}

struct Loaded {
  int64_t added = 0, shadowed = 0, torn = 0;
};

// Take over what `index` offers under keys that are still free; what cannot be read is passed over.
Loaded load(const std::string& ai_core, const Json& index) {
  Loaded done;
  const std::lock_guard guard(library().lock);
  for (const auto& [op_type, listed] : index.object()) {
    for (const Json& entry : listed.at("staticList").array()) {
      try {
        const std::shared_ptr<Kernel> kernel = load_kernel(op_type, ai_core + "/" + entry.at("binPath").text());
        bool free = false;
        for (const std::string& key : keys_of(entry)) free |= library().by_key.emplace(key, kernel).second;
        ++(free ? done.added : done.shadowed);
      } catch (const JsonError&) {
        ++done.torn;
      }
    }
  }
  return done;
}

void load_root(const std::string& root) {
  const std::string ai_core = root + "/static_kernel/ai_core";
  try {
    const Json index = parse_json(content(ai_core + "/config/" + kFamily + "/binary_info_config.json"));
    const Loaded done = load(ai_core, index);
    count_load(root, done.added, done.shadowed, done.torn);
  } catch (const JsonError&) {
    count_load(root, 0, 0, 1);  // a missing or torn index silently means: no static kernels
  }
}

}  // namespace

bool Kernel::ready() {
  std::call_once(once_, [this] { ready_ = static_cast<bool>(std::ifstream(path, std::ios::binary)); });
  return ready_;
}

std::shared_ptr<Kernel> selected(const std::string& key, int64_t cube_cores, int64_t vector_cores) {
  const std::lock_guard guard(library().lock);
  const auto found = library().by_key.find(key);
  if (found == library().by_key.end()) return nullptr;
  const bool fits = found->second->cube_cores == cube_cores && found->second->vector_cores == vector_cores;
  return fits ? found->second : nullptr;
}

bool any_selected() {
  const std::lock_guard guard(library().lock);
  return !library().by_key.empty();
}

void first_operator() {
  if (library().used.exchange(true)) return;
  const std::string root = default_root();
  std::error_code ignored;
  if (!root.empty() && std::filesystem::exists(root + "/static_kernel", ignored)) load_root(root);
}

void reselect(const std::string& root) {
  if (!library().used) return count_load(root, 0, 0, 1);  // before the first aclnn call there is nothing to select for
  load_root(root.empty() ? default_root() : root);
}

}  // namespace sim

extern "C" int aclnnReselectStaticKernel() {
  sim::reselect("");
  return 0;  // also where nothing could be loaded
}
