// Owns the state of a softmax that is computed in parts: the running maximum, the sum of
// exponentials and the weighted values of query rows, and the merge of two such states.
// Must not know K, V or where scores come from.
//
// Reference: attention.h. For two parts with maxima a and b, let m = max(a, b): the sums of either
// are multiplied by exp(its maximum - m) and added (Milakov and Gimelshein, 2018).
#pragma once

#include <algorithm>
#include <limits>

#include "activation.h"
#include "attention.h"

namespace quire {

// Query rows of a block, nested as KV heads, then queries, then the heads that share the KV head.
struct BlockRows {
  const QueryBlock& block;
  int64_t heads;  // query heads of a KV head

  int64_t per_kv_head() const { return block.num_queries * heads; }
  int64_t count() const { return block.num_kv_heads * per_kv_head(); }
  int64_t query(int64_t row) const { return row % per_kv_head() / heads; }
  int64_t head(int64_t row) const {
    return (block.kv_head + row / per_kv_head()) * heads + row % heads;
  }
};

// A view: out [count][dim], maxima and sums [count].
struct SoftmaxRows {
  float *out, *maxima, *sums;
  int64_t dim;
};

inline int64_t softmax_floats(int64_t count, int64_t dim) { return count * (dim + 2); }

inline SoftmaxRows softmax_rows(float* memory, int64_t count, int64_t dim) {
  return {memory, memory + count * dim, memory + count * (dim + 1), dim};
}

// The initial state: nothing seen but the sinks, [num_heads] or null.
inline void begin_softmax(const BlockRows& rows, const SoftmaxRows& state, const float* sinks) {
  std::fill(state.out, state.out + rows.count() * state.dim, 0.0f);
  for (int64_t row = 0; row < rows.count(); row++) {
    state.maxima[row] = sinks ? sinks[rows.head(row)] : -std::numeric_limits<float>::infinity();
    state.sums[row] = sinks ? 1.0f : 0.0f;
  }
}

inline void merge_softmax(int64_t count, const SoftmaxRows& into, const SoftmaxRows& part) {
  for (int64_t row = 0; row < count; row++) {
    const float a = into.maxima[row], b = part.maxima[row];
    if (b == -std::numeric_limits<float>::infinity()) continue;  // this part has seen nothing
    const float next = std::max(a, b), of_into = std::exp(a - next), of_part = std::exp(b - next);
    scale_row(into.out + row * into.dim, into.dim, of_into);
    add_scaled(into.out + row * into.dim, part.out + row * into.dim, into.dim, of_part);
    into.sums[row] = into.sums[row] * of_into + part.sums[row] * of_part;
    into.maxima[row] = next;
  }
}

// Divides by the sums and writes the rows; a token that sees nothing gets zeros.
inline void end_softmax(const AttentionStep& step, const BlockRows& rows, const SoftmaxRows& state,
                        float* out, int64_t out_stride) {
  const int64_t size = step.shape.head_dim;
  for (int64_t row = 0; row < rows.count(); row++) {
    float* target =
        out + (rows.block.first_token + rows.query(row)) * out_stride + rows.head(row) * size;
    const float sum = state.sums[row];
    const float factor = sum > 0 ? 1.0f / sum : (sum == 0 ? 0.0f : sum);
    for (int64_t d = 0; d < size; d += kWidth)
      store_n(target + d, load(state.out + row * state.dim + d) * factor, size - d);
  }
}

}  // namespace quire
