// Linked only into a simulated CANN that has it: 9.1.0 and later.
#include "kernels.h"

extern "C" int aclnnReselectStaticKernelWithPath(const char* path) {
  if (path == nullptr) return 161001;
  sim::reselect(path);
  return 0;
}
