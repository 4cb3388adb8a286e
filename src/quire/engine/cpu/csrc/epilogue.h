// Owns what is done with the sums of a product while they are in a cache: storing rows, converting
// them for the next product, or keeping only the best column of each.
// Must not know how the sums were computed, nor any model.
//
// Each is a class with the same function, for each of which matmul.cpp is compiled:
//   take(block)   the complete sums of some rows and panels, before scale and bias
// Each pair of row and panel is taken once, by one thread, in ascending order of panels. What is the
// same for all rows is decided before the loop over them: a row and a panel are multiplied in 256
// cycles where K is 256, of which a few branches for each would be a tenth.
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

// Sums [panel][row][32] of rows [first_row, last_row) and panels [first_panel, last_panel).
struct SumsOfBlock {
  int64_t first_row, last_row;
  int64_t first_panel, last_panel;
  float* sums;

  float* of(int64_t row, int64_t panel) const {
    const int64_t num_rows = last_row - first_row;
    return sums + ((panel - first_panel) * num_rows + row - first_row) * kPanelColumns;
  }
};

// ---- rows as float32, the plain form of every Epilogue
class StoredRows {
 public:
  StoredRows(const PackedMatrix& w, const MatmulOutput& y) : w_(w), y_(y) {}

  void take(const SumsOfBlock& block) const {
    if (w_.layout == PanelLayout::kGated)
      return write<kPanelColumns / 2>(block, [&](const float* sums, int64_t panel, int64_t j, F32) {
        return scaled_and_gated(sums, y_, panel, j);
      });
    if (y_.epilogue == Epilogue::kAdd)
      return write<kPanelColumns>(block, [&](const float* sums, int64_t panel, int64_t j, F32 y) {
        return scaled(sums, y_, panel, j) + y;
      });
    if (y_.bias != nullptr)
      return write<kPanelColumns>(block, [&](const float* sums, int64_t panel, int64_t j, F32) {
        return scaled(sums, y_, panel, j);
      });
    write<kPanelColumns>(block, [scale = y_.scale](const float* sums, int64_t, int64_t j, F32) {
      return load(sums + j) * scale;
    });
  }

 private:
  static constexpr int64_t kRowsAhead = 4;  // y is rarely in a near cache: its rows are prefetched

  // Stores value(sums, panel, column of the panel, what is there) for the `kColumns` outputs of
  // each row and panel.
  template <int64_t kColumns, class Value>
  void write(const SumsOfBlock& block, Value&& value) const {
    const int64_t first = block.first_panel * kColumns;
    const int64_t last = std::min(block.last_panel * kColumns, w_.num_columns);
    for (int64_t row = block.first_row; row < block.last_row; row++) {
      float* target = y_.rows + row * y_.stride;
      if (row + kRowsAhead < block.last_row)
        for (int64_t j = first; j < last; j += 16)
          __builtin_prefetch(target + kRowsAhead * y_.stride + j, 1);
      for (int64_t panel = block.first_panel; panel < block.last_panel; panel++) {
        const float* sums = block.of(row, panel);
        float* place = target + panel * kColumns;
        const int64_t num = w_.num_columns - panel * kColumns;
        if (num >= kColumns)
          for (int64_t j = 0; j < kColumns; j += kWidth)
            store(place + j, value(sums, panel, j, load(place + j)));
        else
          for (int64_t j = 0; j < num; j += kWidth)
            store_n(place + j, value(sums, panel, j, load_n(place + j, num - j)), num - j);
      }
    }
  }

  const PackedMatrix& w_;
  const MatmulOutput& y_;
};

// ---- outputs of a gated matrix in the input format of the next product, which saves a conversion
// pass
class ConvertedRows {
 public:
  ConvertedRows(const PackedMatrix& w, const MatmulOutput& y, const Activations& next)
      : y_(y), next_(next), last_panel_(num_panels(w) - 1) {}

  void take(const SumsOfBlock& block) const {
    for (int64_t row = block.first_row; row < block.last_row; row++)
      for (int64_t panel = block.first_panel; panel < block.last_panel; panel++)
        take_one(row, panel, block.of(row, panel));
  }

 private:
  static constexpr int64_t kColumns = kPanelColumns / 2;  // of a gated panel; padding is zero

  void take_one(int64_t row, int64_t panel, const float* sums) const {
    uint8_t* target = activation_place(next_, row, panel * kColumns);
    for (int64_t j = 0; j < kColumns; j += kWidth)
      put(target, j, scaled_and_gated(sums, y_, panel, j));
    if (panel != last_panel_) return;
    for (int64_t j = (panel + 1) * kColumns; j < padded_depth(next_.type, next_.depth); j += kWidth)
      put(activation_place(next_, row, j), 0, F32{});
  }

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

  void take(const SumsOfBlock& block) const {
    for (int64_t row = block.first_row; row < block.last_row; row++)
      for (int64_t panel = block.first_panel; panel < block.last_panel; panel++) {
        float* sums = block.of(row, panel);
        if (best_.wanted[row])
          compare(row, panel, sums);
        else
          stored_.take({row, row + 1, panel, panel + 1, sums});
      }
  }

 private:
  void compare(int64_t row, int64_t panel, const float* sums) const {
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

  const StoredRows stored_;
  const PackedMatrix& w_;
  const MatmulOutput& y_;
  BestOfRows& best_;
};

}  // namespace quire
