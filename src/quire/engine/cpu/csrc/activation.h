// Owns elementwise functions over a whole row outside of products (matmul.h has the fused ones):
// soft-capped logits, the weighted sum of two rows.
#pragma once

#include "simd.h"

namespace quire {

// x = cap * tanh(x / cap), in place.
inline void softcap_row(float* x, int64_t size, float cap) {
  for (int64_t i = 0; i < size; i += kWidth)
    store_n(x + i, cap * tanh(load_n(x + i, size - i) / cap), size - i);
}

// y += factor * x
inline void add_scaled(float* y, const float* x, int64_t size, float factor) {
  const F32 f = broadcast(factor);
  for (int64_t i = 0; i < size; i += kWidth)
    store_n(y + i, fma(f, load_n(x + i, size - i), load_n(y + i, size - i)), size - i);
}

inline void scale_row(float* x, int64_t size, float factor) {
  for (int64_t i = 0; i < size; i += kWidth) store_n(x + i, load_n(x + i, size - i) * factor, size - i);
}

}  // namespace quire
