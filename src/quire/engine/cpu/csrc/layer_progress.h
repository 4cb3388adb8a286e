// How many layers of a step have their K and V in the cache. The step's first thread counts, other
// threads wait: whoever sends a layer's K and V while the next ones are computed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace quire {

class LayerProgress {
 public:
  // `reached` never goes back: each step counts on from where the one before has ended.
  void reach(int64_t count) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (count <= reached_) return;
      reached_ = count;
    }
    changed_.notify_all();
  }
  void wait(int64_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t reached_ = 0;
};

}  // namespace quire
