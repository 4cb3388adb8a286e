#include "team.h"

#include <algorithm>
#include <chrono>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace quire {
namespace {

// How long an idle thread spins for the next run: longer than the host needs between two decode
// steps of a small model, short enough not to matter as processor use.
constexpr auto kIdleSpin = std::chrono::microseconds(60);
// Pauses in a barrier before the thread yields its core to a stalled one (some tens of
// microseconds).
constexpr int kBarrierPauses = 2000;

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
  states_ = std::vector<ThreadState>(static_cast<size_t>(num_threads_));
  try {
    for (int thread = 1; thread < num_threads_; thread++)
      threads_.emplace_back([this, thread] { serve(thread); });
  } catch (...) {  // the system cannot create more threads: those that started must be joined
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  work_arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Keeps the other threads off the caller's core, within the cores that the caller may use.
// Otherwise a thread that is woken while every core is busy is placed on its waker's core, and the
// two alternate at every barrier until the system moves one of them, which takes several times the
// time of a step.
void Team::leave_core_to_caller() {
#if defined(__linux__)
  const int core = sched_getcpu();
  if (core == callers_core_) return;
  callers_core_ = core;
  cpu_set_t others;
  if (sched_getaffinity(0, sizeof(others), &others) != 0) return;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) < num_threads_ - 1) return;
  for (std::thread& thread : threads_)
    pthread_setaffinity_np(thread.native_handle(), sizeof(others), &others);
#endif
}

void Team::run(Function function, void* argument) {
  if (num_threads_ == 1) return function(argument, *this, 0);
  leave_core_to_caller();
  function_ = function;
  argument_ = argument;
  num_working_.store(num_threads_ - 1, std::memory_order_relaxed);
  // Sequentially consistent with the sleeper, which registers before its last check of generation_:
  // either it sees the new generation, or we see it registered.
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (num_asleep_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_arrived_.notify_all();
  }
  work(0);
  finish();
}

// This thread's part of a run.
void Team::work(int thread) {
  try {
    function_(argument_, *this, thread);
  } catch (const Stopped&) {
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

// Waits for the other threads and resets the team for the next run.
void Team::finish() {
  for (int pauses = 0; num_working_.load(std::memory_order_acquire) > 0; pauses++) {
    if (pauses < kBarrierPauses)
      pause_briefly();
    else
      std::this_thread::yield();
  }
  int used = 0;
  for (ThreadState& state : states_) {
    used = std::max(used, std::min(state.num_shares, kMaxShares));
    state.num_shares = 0;
  }
  for (int i = 0; i < used; i++) shares_[i].value.store(0, std::memory_order_relaxed);
  if (!failed_.load(std::memory_order_relaxed)) return;
  failed_.store(false, std::memory_order_relaxed);  // threads may be at different barriers
  arrived_.store(0, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Team::serve(int thread) {
  uint32_t seen = 0;
  for (;;) {
    const auto idle_since = std::chrono::steady_clock::now();
    for (int spins = 1; generation_.load(std::memory_order_acquire) == seen; spins++) {
      pause_briefly();
      if (spins % 64 != 0 || std::chrono::steady_clock::now() - idle_since < kIdleSpin) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      num_asleep_.fetch_add(1, std::memory_order_seq_cst);
      work_arrived_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      num_asleep_.fetch_sub(1, std::memory_order_seq_cst);
    }
    seen++;
    if (stopping_.load()) return;
    work(thread);
    num_working_.fetch_sub(1, std::memory_order_release);
  }
}

std::atomic<int64_t>& Team::next_share(int thread) {
  return shares_[states_[static_cast<size_t>(thread)].num_shares++ % kMaxShares].value;
}

void Team::wait_for_all(int thread) {
  int& num_shares = states_[static_cast<size_t>(thread)].num_shares;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    // The last thread to arrive: no other touches the counters until the phase changes.
    const int used = num_shares < kMaxShares ? num_shares : kMaxShares;
    for (int i = 0; i < used; i++) shares_[i].value.store(0, std::memory_order_relaxed);
    arrived_.store(0, std::memory_order_relaxed);
    num_shares = 0;
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  num_shares = 0;
  for (int pauses = 0; phase_.load(std::memory_order_acquire) == phase; pauses++) {
    if (failed_.load(std::memory_order_relaxed)) throw Stopped{};
    if (pauses < kBarrierPauses)
      pause_briefly();
    else
      std::this_thread::yield();
  }
}

}  // namespace quire
