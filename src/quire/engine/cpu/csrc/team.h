// Owns the threads of the kernel: a fixed team that runs one function at a time.
// Must not know what it runs. Uses no OpenMP, so torch's thread pool is not affected.
//
// Thread 0 is the caller of run(). The others wait for work, first spinning for some tens of
// microseconds and then asleep, so that an idle engine uses no processor time. Inside a run,
// barrier() spins briefly and then yields: a thread that the system has stalled delays only the
// team. On Linux the other threads avoid the caller's core, if there are enough cores. A team of
// one executes no atomic instruction.
//
// Every thread of a run must call the same sequence of barrier() and share(). At most kMaxShares
// share() loops may be between two barriers.
//
// An exception on any thread ends the run: the others leave it at their next barrier, and run()
// throws the first exception on the caller's thread. The team can be used again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

class Team {
 public:
  static constexpr int kMaxShares = 32;
  using Function = void (*)(void* argument, Team& team, int thread);

  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return num_threads_; }

  // Runs function(argument, team, thread) on every thread; returns when all have returned, or
  // throws the first exception. Not re-entrant; one caller at a time.
  void run(Function function, void* argument);

  // The same for a callable work(thread).
  template <class Work>
  void run(Work&& work) {
    using Callable = std::remove_reference_t<Work>;
    run([](void* argument, Team&, int thread) { (*static_cast<Callable*>(argument))(thread); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

  // Returns after all threads of the run have called it; earlier writes are visible afterwards.
  void barrier(int thread) {
    if (num_threads_ > 1) wait_for_all(thread);
  }

  // Divides [0, count) among the threads dynamically, `grain` items at a time: work(first, last).
  template <class Work>
  void share(int thread, int64_t count, int64_t grain, Work&& work) {
    if (num_threads_ == 1) {
      if (count > 0) work(int64_t{0}, count);
      return;
    }
    std::atomic<int64_t>& next = next_share(thread);
    for (;;) {
      const int64_t first = next.fetch_add(grain, std::memory_order_relaxed);
      if (first >= count) return;
      work(first, first + grain < count ? first + grain : count);
    }
  }

  // The same one item at a time. A thread takes its next item while it works on the current one, so
  // that it can prefetch: work(item, next), where next is `count` after a thread's last item.
  template <class Work>
  void share_ahead(int thread, int64_t count, Work&& work) {
    if (num_threads_ == 1) {
      for (int64_t item = 0; item < count; item++) work(item, item + 1);
      return;
    }
    std::atomic<int64_t>& counter = next_share(thread);
    int64_t item = counter.fetch_add(1, std::memory_order_relaxed);
    while (item < count) {
      const int64_t next = counter.fetch_add(1, std::memory_order_relaxed);
      work(item, next < count ? next : count);
      item = next;
    }
  }

  // The fixed part of [0, count) of this thread, for work where threads should keep to the same
  // memory.
  void part(int thread, int64_t count, int64_t* first, int64_t* last) const {
    *first = count * thread / num_threads_;
    *last = count * (thread + 1) / num_threads_;
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };
  struct alignas(64) ThreadState {
    int num_shares = 0;  // loops since the last barrier; used by its own thread only
  };

  struct Stopped {};  // thrown at a barrier when another thread has failed

  std::atomic<int64_t>& next_share(int thread);
  void wait_for_all(int thread);
  void serve(int thread);
  void work(int thread);
  void finish();  // after a run, on the caller's thread
  void leave_core_to_caller();
  void stop();

  const int num_threads_;
  Function function_ = nullptr;
  void* argument_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};  // of runs
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};  // of barriers
  alignas(64) std::atomic<int> num_working_{0};  // threads in the run, without the caller
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // of the thread that set failed_
  Counter shares_[kMaxShares];
  std::vector<ThreadState> states_;
  std::atomic<int> num_asleep_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::vector<std::thread> threads_;
  int callers_core_ = -1;  // the other threads avoid this core
};

}  // namespace quire
