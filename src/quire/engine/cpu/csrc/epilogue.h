// Owns what is done with the sums of a product while they are in a cache: storing rows, converting
// them for the next product, or keeping only the best column of each.
// Must not know how the sums were computed, nor any model.
//
// Each is a class with the same two functions, for each of which matmul.cpp is compiled:
//   fetch(row, first_panel, last_panel)   prefetch: row will be taken soon
//   take(row, panel, sums)                the 32 sums of one row and panel, before scale and bias
// Each pair of row and panel is taken once, by one thread, in ascending order of panels.
// Reference: the Epilogue table of matmul.h; best columns: sampling.h, greedy.
#pragma once

#include <algorithm>
#include <limits>

#include "best_columns.h"
#include "matmul.h"
#include "simd.h"

namespace quire {

// ---- arithmetic that all of them share

inline F32 clamped_swiglu(F32 gate, F32 up, float limit) {
  const F32 g = min(gate, broadcast(limit));
  const F32 u = max(min(up, broadcast(limit)), broadcast(-limit));
  return (u + 1.0f) * g * sigmoid(1.702f * g);
}

inline F32 gated(Epilogue epilogue, F32 gate, F32 up, float limit) {
  if (epilogue == Epilogue::kSiluMul) return silu(gate) * up;
  if (epilogue == Epilogue::kGeluTanhMul) return gelu_tanh(gate) * up;
  return clamped_swiglu(gate, up, limit);
}

// scale * sums + bias of `kWidth` columns, from packed column j of the panel on.
inline F32 scaled(const float* sums, const MatmulOutput& y, int64_t panel, int64_t j) {
  const F32 value = load(sums + j) * y.scale;
  return y.bias == nullptr ? value : value + load(y.bias + panel * kPanelColumns + j);
}

// Output columns of a gated panel, one vector from column j on.
inline F32 scaled_and_gated(const float* sums, const MatmulOutput& y, int64_t panel, int64_t j) {
  constexpr int64_t kHalf = kPanelColumns / 2;
  return gated(y.epilogue, scaled(sums, y, panel, j), scaled(sums, y, panel, j + kHalf), y.limit);
}

// ---- rows as float32, the plain form of every Epilogue
class StoredRows {
 public:
  StoredRows(const PackedMatrix& w, const MatmulOutput& y) : w_(w), y_(y) {}

  void fetch(int64_t row, int64_t first_panel, int64_t last_panel) const {
    const int64_t columns = columns_per_panel(w_.layout);
    const float* target = y_.rows + row * y_.stride;
    for (int64_t j = first_panel * columns; j < last_panel * columns; j += 16)
      __builtin_prefetch(target + j, 1);
  }

  void take(int64_t row, int64_t panel, const float* sums) const {
    const int64_t columns = columns_per_panel(w_.layout), first = panel * columns;
    const int64_t num = std::min(columns, w_.num_columns - first);
    float* target = y_.rows + row * y_.stride + first;
    for (int64_t j = 0; j < num; j += kWidth) {
      F32 value;
      if (w_.layout == PanelLayout::kGated)
        value = scaled_and_gated(sums, y_, panel, j);
      else if (y_.epilogue == Epilogue::kAdd)
        value = scaled(sums, y_, panel, j) + load_n(target + j, num - j);
      else
        value = scaled(sums, y_, panel, j);
      store_n(target + j, value, num - j);
    }
  }

 private:
  const PackedMatrix& w_;
  const MatmulOutput& y_;
};

// ---- outputs of a gated matrix in the input format of the next product, which saves a conversion
// pass
class ConvertedRows {
 public:
  ConvertedRows(const PackedMatrix& w, const MatmulOutput& y, const Activations& next)
      : y_(y), next_(next), last_panel_(num_panels(w) - 1) {}

  void fetch(int64_t row, int64_t first_panel, int64_t last_panel) const {
    for (int64_t panel = first_panel; panel < last_panel; panel++)
      __builtin_prefetch(activation_place(next_, row, panel * kColumns), 1);
  }

  void take(int64_t row, int64_t panel, const float* sums) const {
    uint8_t* target = activation_place(next_, row, panel * kColumns);
    for (int64_t j = 0; j < kColumns; j += kWidth)
      put(target, j, scaled_and_gated(sums, y_, panel, j));
    if (panel != last_panel_) return;
    for (int64_t j = (panel + 1) * kColumns; j < padded_depth(next_.type, next_.depth); j += kWidth)
      put(activation_place(next_, row, j), 0, F32{});
  }

 private:
  static constexpr int64_t kColumns = kPanelColumns / 2;  // of a gated panel; padding is zero

  // Writes a vector of elements, from element j of the target on.
  void put(uint8_t* target, int64_t j, F32 value) const {
    if (activation_element_bytes(next_.type) == 2)
      store(reinterpret_cast<bf16*>(target) + j, value);
    else if (next_.type == WeightType::kBF16)
      store(reinterpret_cast<float*>(target) + j, to_f32(to_bf16(value)));
    else
      store(reinterpret_cast<float*>(target) + j, value);
  }

  const MatmulOutput& y_;
  const Activations& next_;
  const int64_t last_panel_;
};

// ---- the best column of the rows that need nothing else; the other rows are stored
class BestColumns {
 public:
  BestColumns(const PackedMatrix& w, const MatmulOutput& y, BestOfRows& best)
      : stored_(w, y), w_(w), y_(y), best_(best) {}

  void fetch(int64_t row, int64_t first_panel, int64_t last_panel) const {
    if (!best_.wanted[row]) stored_.fetch(row, first_panel, last_panel);
  }

  void take(int64_t row, int64_t panel, const float* sums) const {
    if (!best_.wanted[row]) return stored_.take(row, panel, sums);
    float* values = best_.values.data() + row * kPanelColumns;
    int32_t* panels = best_.panels.data() + row * kPanelColumns;
    const int64_t num = std::min(kPanelColumns, w_.num_columns - panel * kPanelColumns);
    const F32 nothing = broadcast(-std::numeric_limits<float>::infinity());
    for (int64_t j = 0; j < num; j += kWidth) {
      F32 value = scaled(sums, y_, panel, j);
      if (num - j < kWidth)
        value = select((1u << (num - j)) - 1, value, nothing);
      const F32 before = load(values + j);
      // A NaN wins and stays, because no comparison with a NaN in place is true.
      const I32 wins = (value > before) | (value != value);
      store(values + j, wins ? value : before);
      const I32 of_best = load_as<I32>(panels + j);
      const I32 kept = wins ? broadcast(static_cast<int32_t>(panel)) : of_best;
      std::memcpy(panels + j, &kept, sizeof(kept));
    }
  }

 private:
  const StoredRows stored_;
  const PackedMatrix& w_;
  const MatmulOutput& y_;
  BestOfRows& best_;
};

}  // namespace quire
