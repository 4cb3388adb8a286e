// Owns the products of activations with packed weights, y[M][N] = x[M][K] . W[N][K]^T, and the
// epilogues that are applied while a result is in registers.
// Must not know models, layers or caches.
//
// Reference: y = float(x') @ float(W').T in float32, where x' and W' are x and W rounded to the
// weight type (int8: quantised as packed_matrix.h says, summed exactly), then the epilogue.
#pragma once

#include "best_columns.h"
#include "packed_matrix.h"
#include "team.h"

namespace quire {

// With s = scale * (x . W^T) + bias, g and u the same of a gated matrix:
enum class Epilogue : int32_t {
  kStore = 0,          // y = s
  kAdd = 1,            // y += s
  kSiluMul = 2,        // y = g * sigmoid(g) * u
  kGeluTanhMul = 3,    // y = gelu_tanh(g) * u
  kClampedSwiglu = 4,  // g = min(g, limit), u = clamp(u, -limit, limit);
                       // y = (u + 1) * g * sigmoid(1.702 * g)          (gpt-oss)
};

struct MatmulOutput {
  float* rows;         // y, row r at rows + r * stride
  int64_t stride;      // floats
  const float* bias;   // null, or [num_panels * 32] in the order of the packed columns
  Epilogue epilogue = Epilogue::kStore;
  float scale = 1.0f;  // of the product, before bias
  float limit = 7.0f;  // of kClampedSwiglu
};

// Whether a kernel may be used for which the last bits of a row depend on the rest of the batch.
// kBatchInvariant: a row has the same bits for any number of rows, index among them, number of
// threads and range of columns. The products of this file satisfy it in either case, because every
// kernel adds along K in a fixed order that no blocking changes; some attention kernels do not.
enum class Ordering : int32_t { kFastest = 0, kBatchInvariant = 1 };

// The gated epilogues alone: `num_columns` outputs of one row from the raw products, 16 of gate and
// 16 of up alternating, as a gated matrix gives them when it is used as a plain one.
void gate_row(Epilogue epilogue, const float* packed, int64_t num_columns, float limit, float* y);

// Panels [first_panel, last_panel) for all rows of x, on the calling thread alone. y is indexed by
// absolute columns. For experts and adapters, which divide their work themselves.
void matmul_panels(const PackedMatrix& w, const Activations& x, const MatmulOutput& y,
                   int64_t first_panel, int64_t last_panel, Ordering ordering);

// The whole product. Called by every thread of the team; each returns after its share, so the
// caller places the barriers: x must be complete before the call, y is complete after a barrier.
// Uses one share().
void matmul(const PackedMatrix& w, const Activations& x, const MatmulOutput& y, Ordering ordering,
            Team& team, int thread);

// The same for a gated matrix, with outputs in the input format of the next product (not for int8):
// `next.depth` is their number of columns, and `y.rows` is not used.
void matmul_converted(const PackedMatrix& w, const Activations& x, const MatmulOutput& y,
                      const Activations& next, Ordering ordering, Team& team, int thread);

// The same for a plain matrix, keeping only the best column of each row in `best`, which belongs to
// the thread. Rows with best.wanted[row] == 0 are stored instead.
void matmul_best(const PackedMatrix& w, const Activations& x, const MatmulOutput& y,
                 BestOfRows& best, Ordering ordering, Team& team, int thread);

}  // namespace quire
