// Owns the angles of rotary position embedding (Su et al., 2021) and the rotation of a head.
// Must not know how frequencies are scaled: it gets the final numbers.
//
// Reference: quire/engine/layers/rotary.py, in float32. Planes pair element i with element i +
// rotary_dim / 2; elements from rotary_dim on are unchanged.
#pragma once

#include <memory>
#include <vector>

#include "simd.h"

namespace quire {

// Cosines and sines by position, computed when a position is first used: a table for every position
// that a checkpoint allows would be larger than some models.
class RotaryTable {
 public:
  // Queries are scaled by 1 + query_beta * log(1 + floor(position / query_length)).
  RotaryTable(const float* frequencies, int64_t num_planes, float scale, float query_beta,
              int64_t query_length)
      : frequencies_(frequencies, frequencies + num_planes), scale_(scale),
        query_beta_(query_beta), query_length_(query_length) {}

  int64_t num_planes() const { return static_cast<int64_t>(frequencies_.size()); }

  bool scales_queries() const { return query_beta_ != 0.0f; }

  float query_scale(int32_t position) const {
    return 1.0f + query_beta_ * std::log1p(static_cast<float>(position / query_length_));
  }

  // Computes the tables of these positions. Called by one thread, before any calls of at().
  void prepare(const int32_t* positions, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
      const size_t page = static_cast<size_t>(positions[i]) / kPagePositions;
      if (page >= pages_.size()) pages_.resize(page + 1);
      if (!pages_[page]) fill(page);
    }
  }

  // [num_planes] cosines, then [num_planes] sines.
  const float* at(int32_t position) const {
    const size_t page = static_cast<size_t>(position) / kPagePositions;
    const size_t row = static_cast<size_t>(position) % kPagePositions;
    return pages_[page].get() + row * 2 * frequencies_.size();
  }

 private:
  static constexpr size_t kPagePositions = 128;

  void fill(size_t page) {
    const size_t planes = frequencies_.size();
    pages_[page].reset(new float[kPagePositions * 2 * planes]);
    for (size_t row = 0; row < kPagePositions; row++) {
      float* out = pages_[page].get() + row * 2 * planes;
      const float position = static_cast<float>(page * kPagePositions + row);
      for (size_t i = 0; i < planes; i++) {
        const float angle = position * frequencies_[i];
        out[i] = std::cos(angle) * scale_;
        out[planes + i] = std::sin(angle) * scale_;
      }
    }
  }

  std::vector<float> frequencies_;
  float scale_;
  float query_beta_;
  int64_t query_length_;
  std::vector<std::unique_ptr<float[]>> pages_;
};

// Rotates one head in place.
inline void rotate(float* head, const float* angles, int64_t num_planes) {
  float* upper = head + num_planes;
  const float* sines = angles + num_planes;
  for (int64_t i = 0; i < num_planes; i += kWidth) {
    const int64_t n = num_planes - i;
    const F32 a = load_n(head + i, n), b = load_n(upper + i, n);
    const F32 cosine = load_n(angles + i, n), sine = load_n(sines + i, n);
    store_n(head + i, a * cosine - b * sine, n);
    store_n(upper + i, b * cosine + a * sine, n);
  }
}

}  // namespace quire
