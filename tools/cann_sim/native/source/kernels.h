// The static kernels that this process selected, as the runtime keeps them: first loaded wins, nothing is ever dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace sim {

// A static kernel as its index and its own json tell of it; its object is opened at its first use.
class Kernel {
 public:
  Kernel(std::string op_type, std::string path, int64_t cube_cores, int64_t vector_cores)
      : op_type(std::move(op_type)), path(std::move(path)), cube_cores(cube_cores), vector_cores(vector_cores) {}

  // Whether the object is in memory; opens it the first time. False for ever where that fails.
  bool ready();

  const std::string op_type;
  const std::string path;
  const int64_t cube_cores;
  const int64_t vector_cores;

 private:
  std::once_flag once_;
  bool ready_ = false;
};

// The kernel that runs for a call with this key under these core counts; null: the dynamic one.
std::shared_ptr<Kernel> selected(const std::string& key, int64_t cube_cores, int64_t vector_cores);

// Whether any static kernel is loaded.
bool any_selected();

// The first aclnn call of a process loads what the default root holds.
void first_operator();

// Load `root` ("" is the default one), as reselect does.
void reselect(const std::string& root);

}  // namespace sim
