// Owns the C interface of the kernel's foundation; model_abi.h owns that of the model step.
// Everything Python calls is declared in one of the two. Pointers are borrowed for the call unless a
// comment says otherwise; sizes are in elements unless the name ends in _bytes. Calls do not throw.
//
// kAbiVersion counts every change of a function or struct that Python sees; library.py refuses a
// library of another version.
#pragma once

#include <cstdint>

#include "matmul.h"

#define QUIRE_EXPORT extern "C" __attribute__((visibility("default")))

namespace quire {
constexpr int32_t kAbiVersion = 3;
}

QUIRE_EXPORT int32_t quire_abi_version();
// The instruction set that this library was compiled for: "portable", "avx2", ...
QUIRE_EXPORT const char* quire_isa();
// Whether processor and operating system let this process use that set; asks the system for leave to
// use the AMX registers. Null if so, else the reason. Safe to call on any processor.
QUIRE_EXPORT const char* quire_unsupported_reason(const char* isa);

// A team of threads (team.h). Owned by the caller; null if the system gives no threads.
QUIRE_EXPORT quire::Team* quire_team_create(int32_t num_threads);
QUIRE_EXPORT void quire_team_destroy(quire::Team* team);

// Sizes that the caller needs before it allocates.
QUIRE_EXPORT int64_t quire_panel_bytes(int32_t weight_type, int64_t depth);
QUIRE_EXPORT int64_t quire_activation_bytes(int32_t weight_type, int64_t num_rows, int64_t depth);

QUIRE_EXPORT void quire_pack(quire::Team* team, const quire::PackedMatrix* matrix,
                             const quire::WeightSource* source);
QUIRE_EXPORT void quire_unpack(quire::Team* team, const quire::PackedMatrix* matrix, float* rows,
                               float* up, int64_t stride);

// y = epilogue(x . W^T) for x [num_rows][stride], converting x into `buffer` of
// quire_activation_bytes() first.
QUIRE_EXPORT void quire_matmul(quire::Team* team, const quire::PackedMatrix* matrix, const float* x,
                               int64_t stride, int64_t num_rows, void* buffer,
                               const quire::MatmulOutput* output, int32_t ordering);

// Reads the buffer once with all threads and returns the sum of its 8-byte words: the pure-read pass
// that measures memory bandwidth.
QUIRE_EXPORT uint64_t quire_read_pass(quire::Team* team, const void* buffer, int64_t num_bytes);
