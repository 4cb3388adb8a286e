// Owns the two memory formats of a matrix product: packed weights and converted activations.
// Must not know which product kernel reads them, nor any model.
//
// Weights W[N][K] are cut into panels of 32 output columns. A panel is contiguous, K-major:
//   f32   [K_pad][32]
//   bf16  [K_pad / 2][32][2]      pairs along K, as VDPBF16PS and AMX need them
//   int8  [K_pad / 4][32][4]      quads along K, as VPDPBUSD and AMX need them
// K_pad is K rounded up so that a row of K fills whole 64-byte blocks. The padding is zero, and so
// are the columns that fill up the last panel.
//
// A gated matrix (kGated) holds two matrices of equal shape, "gate" and "up": each panel has 16
// columns of gate and then the same 16 of up, so that one register block can apply act(gate) * up.
//
// Activations X[M][K] are stored in blocks of up to 16 rows; a block is a sequence of tiles, one
// for each 64 bytes of K: tile[rows in block][64 bytes]. A single row is thus contiguous, a full
// block is what an AMX tile load reads, and every address in a register block is a constant offset.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class WeightType : int32_t { kF32 = 0, kBF16 = 1, kInt8 = 2 };
enum class PanelLayout : int32_t { kPlain = 0, kGated = 1 };

constexpr int64_t kPanelColumns = 32;
constexpr int64_t kBlockRows = 16;
constexpr int64_t kTileBytes = 64;  // bytes of one row in one tile

inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// A view: the memory belongs to the caller (Python), is 64-byte aligned, and outlives every product.
// The layout of this struct is part of the C interface.
struct PackedMatrix {
  int64_t num_columns;  // N of a plain matrix; of a gated one the columns of gate (= those of up)
  int64_t depth;        // K
  WeightType type;
  PanelLayout layout;
  const uint8_t* panels;
  const float* scales;  // int8: [num_panels * 32] column scales; else null
  const int32_t* sums;  // int8: [num_panels * 32] 128 * (sum of the column); else null
  int64_t panel_bytes;  // bytes from one panel to the next
};

int64_t weight_bytes(WeightType type);  // of one element
int64_t padded_depth(WeightType type, int64_t depth);
inline int64_t columns_per_panel(PanelLayout layout) {  // outputs per panel
  return layout == PanelLayout::kGated ? kPanelColumns / 2 : kPanelColumns;
}
inline int64_t num_panels(const PackedMatrix& w) {
  const int64_t columns = columns_per_panel(w.layout);
  return (w.num_columns + columns - 1) / columns;
}

// Fills panels [first_panel, last_panel) from row-major sources of `element` type (f32 or bf16), row
// stride in elements; `up` is null for a plain matrix. For int8, column scales and sums are written
// through the same view, whose pointers are the caller's writable memory. A bf16 source into bf16
// panels is copied bit for bit; f32 is rounded to nearest even.
struct WeightSource {
  const void* rows;
  const void* up;
  int64_t stride;
  WeightType element;
};
void pack_panels(const PackedMatrix& w, const WeightSource& source, int64_t first_panel,
                 int64_t last_panel);

// The inverse for f32 and bf16 (int8: dequantised): columns [first, last) of gate/plain, as f32 rows
// of `stride` elements; `up` receives the other half of a gated matrix, or is null.
void unpack_panels(const PackedMatrix& w, int64_t first_panel, int64_t last_panel, float* rows,
                   float* up, int64_t stride);

// Converted activations, a view over a caller's 64-byte aligned buffer.
// bf16 weights: each value is rounded to bf16 (and kept as f32 on machines without bf16 products).
// int8 weights: each row is scaled by its largest magnitude to [-127, 127] and stored as q + 128.
struct Activations {
  uint8_t* blocks;
  float* scales;  // int8: one for each row; else null
  int64_t num_rows;
  int64_t depth;
  int64_t row_bytes;  // bytes of one row, padded
  WeightType type;    // of the weights that they are multiplied with
};

// Bytes of one activation element.
inline int64_t activation_element_bytes(WeightType type) {
  if (type == WeightType::kInt8) return 1;
#if defined(__AVX512BF16__)
  if (type == WeightType::kBF16) return 2;
#endif
  return 4;
}

// The address of a row's column.
inline uint8_t* activation_place(const Activations& a, int64_t row, int64_t column) {
  const int64_t block = row / kBlockRows * kBlockRows;
  const int64_t rest = a.num_rows - block, rows_of_block = rest < kBlockRows ? rest : kBlockRows;
  const int64_t offset = column * activation_element_bytes(a.type);
  return a.blocks + block * a.row_bytes + offset / kTileBytes * rows_of_block * kTileBytes +
         (row - block) * kTileBytes + offset % kTileBytes;
}

// Bytes of the buffer that `make_activations` needs for these rows.
int64_t activation_bytes(WeightType type, int64_t num_rows, int64_t depth);
Activations make_activations(void* buffer, WeightType type, int64_t num_rows, int64_t depth);
// Writes row `row` of the activations from `depth` floats.
void convert_row(const float* source, int64_t row, const Activations& activations);
// Rows [first, last) from x + index[row] * stride (index null: row itself).
void convert_rows(const float* x, int64_t stride, const int32_t* index, int64_t first, int64_t last,
                  const Activations& activations);

}  // namespace quire
