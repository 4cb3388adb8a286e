// Owns root mean square normalisation (Zhang and Sennrich, 2019) of one vector.
// Reference: y = x / sqrt(mean(x^2) + eps) * weight in float32. The order of the sum depends on the
// length alone, so a row's bits do not depend on the batch.
#pragma once

#include "simd.h"

namespace quire {

inline float inverse_rms(const float* x, int64_t size, float eps) {
  F32 sum_a = {}, sum_b = {};
  int64_t i = 0;
  for (; i + 2 * kWidth <= size; i += 2 * kWidth) {
    const F32 a = load(x + i), b = load(x + i + kWidth);
    sum_a = fma(a, a, sum_a);
    sum_b = fma(b, b, sum_b);
  }
  for (; i < size; i += kWidth) {
    const F32 a = load_n(x + i, size - i);
    sum_a = fma(a, a, sum_a);
  }
  return 1.0f / std::sqrt(reduce_add(sum_a + sum_b) / static_cast<float>(size) + eps);
}

// `y` may be `x`.
inline void rms_norm(const float* x, const float* weight, int64_t size, float eps, float* y) {
  const F32 factor = broadcast(inverse_rms(x, size, eps));
  for (int64_t i = 0; i < size; i += kWidth)
    store_n(y + i, load_n(x + i, size - i) * factor * load_n(weight + i, size - i), size - i);
}

}  // namespace quire
