// Owns the C interface of the kernel's foundation; model_abi.h owns that of the model step.
// Everything that Python calls is declared in one of the two. Pointers are borrowed for the call
// unless a comment says otherwise; sizes are in elements unless the name ends in _bytes. Calls do
// not throw: those that return a Status return an error status if anything inside threw, on any
// thread.
//
// kAbiVersion counts every change of a function or struct that Python sees; library.py refuses a
// library of another version.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "matmul.h"

#define QUIRE_EXPORT extern "C" __attribute__((visibility("default")))

namespace quire {
constexpr int32_t kAbiVersion = 10;

enum Status : int32_t { kOk = 0, kNoMemory = -1, kFailed = -2 };

// The error message of this thread's last call that returned kFailed.
std::string& failure_text();

// Runs `work` and turns its exceptions into a Status.
template <class Work>
int32_t guarded(Work&& work) {
  try {
    work();
    return kOk;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::exception& failure) {
    failure_text() = failure.what();
  } catch (...) {
    failure_text() = "no standard exception";
  }
  return kFailed;
}

}  // namespace quire

QUIRE_EXPORT int32_t quire_abi_version();
// The instruction set that this library was compiled for: "portable", "avx2", ...
QUIRE_EXPORT const char* quire_isa();
// Null if processor and operating system let this process use that instruction set, else the
// reason. Requests permission to use the AMX registers. Safe to call on any processor.
QUIRE_EXPORT const char* quire_unsupported_reason(const char* isa);

// A team of threads (team.h). Owned by the caller; null if the system cannot create threads.
QUIRE_EXPORT quire::Team* quire_team_create(int32_t num_threads);
QUIRE_EXPORT void quire_team_destroy(quire::Team* team);
// For tests: a run in which `thread` throws between two barriers, std::bad_alloc or, if `text` is
// not null, a std::runtime_error with it.
QUIRE_EXPORT int32_t quire_team_fail(quire::Team* team, int32_t thread, const char* text);
// The error message of this thread's last call that returned kFailed.
QUIRE_EXPORT const char* quire_failure_text();

// Sizes that the caller needs before it allocates.
QUIRE_EXPORT int64_t quire_panel_bytes(int32_t weight_type, int64_t depth);
QUIRE_EXPORT int64_t quire_activation_bytes(int32_t weight_type, int64_t num_rows, int64_t depth);

QUIRE_EXPORT int32_t quire_pack(quire::Team* team, const quire::PackedMatrix* matrix,
                                const quire::WeightSource* source);
QUIRE_EXPORT int32_t quire_unpack(quire::Team* team, const quire::PackedMatrix* matrix, float* rows,
                                  float* up, int64_t stride);

// y = epilogue(x . W^T) for x [num_rows][stride], converting x into `buffer` of
// quire_activation_bytes() first.
QUIRE_EXPORT int32_t quire_matmul(quire::Team* team, const quire::PackedMatrix* matrix,
                                  const float* x, int64_t stride, int64_t num_rows, void* buffer,
                                  const quire::MatmulOutput* output, int32_t ordering);

// For tests: the best column of each row of a plain product (best_columns.h): best[i] for rows with
// wanted[i]; the other rows are stored in `output`.
QUIRE_EXPORT int32_t quire_best_columns(quire::Team* team, const quire::PackedMatrix* matrix,
                                        const float* x, int64_t stride, int64_t num_rows,
                                        void* buffer, const quire::MatmulOutput* output,
                                        const uint8_t* wanted, int64_t* best);

// Reads the buffer once with all threads and returns the sum of its 8-byte words, to measure memory
// read bandwidth.
QUIRE_EXPORT uint64_t quire_read_pass(quire::Team* team, const void* buffer, int64_t num_bytes);
