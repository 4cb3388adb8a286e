#include "matmul.h"

#include <algorithm>

#include "matmul_panel.h"
#include "simd.h"

namespace quire {
namespace {

constexpr int64_t kSumsRows = kBlockRows;

struct alignas(64) Sums {
  float values[kSumsRows][kPanelColumns];
};

void multiply(const PackedMatrix& w, const PanelTask& task) {
  if (w.type == WeightType::kF32) return panel_product_f32(task);
  if (w.type == WeightType::kBF16) return panel_product_bf16(task);
  return panel_product_int8(task);
}

// int8: the exact integer sums become floats. x = (u - 128) * row scale, W = q * column scale.
void dequantize(const PackedMatrix& w, int64_t panel, const float* row_scales, int64_t num_rows,
                Sums& sums) {
  const float* scales = w.scales + panel * kPanelColumns;
  const int32_t* offsets = w.sums + panel * kPanelColumns;
  for (int64_t row = 0; row < num_rows; row++) {
    for (int64_t j = 0; j < kPanelColumns; j += kWidth) {
      const I32 exact = load_as<I32>(&sums.values[row][j]) - load_as<I32>(offsets + j);
      const F32 value = __builtin_convertvector(exact, F32) * load(scales + j);
      store(&sums.values[row][j], value * row_scales[row]);
    }
  }
}

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

// scale * sums + bias of `kWidth` columns from packed column j of the panel on.
inline F32 scaled(const float* sums, const MatmulOutput& y, int64_t panel, int64_t j) {
  const F32 value = load(sums + j) * y.scale;
  return y.bias == nullptr ? value : value + load(y.bias + panel * kPanelColumns + j);
}

void finish_row(const PackedMatrix& w, const MatmulOutput& y, int64_t panel, const float* sums,
                float* row) {
  const int64_t columns = columns_per_panel(w.layout);
  const int64_t first = panel * columns;
  const int64_t num = std::min(columns, w.num_columns - first);
  for (int64_t j = 0; j < num; j += kWidth) {
    F32 value = scaled(sums, y, panel, j);
    if (w.layout == PanelLayout::kGated)
      value = gated(y.epilogue, value, scaled(sums, y, panel, j + columns), y.limit);
    else if (y.epilogue == Epilogue::kAdd)
      value += load_n(row + first + j, num - j);
    store_n(row + first + j, value, num - j);
  }
}

}  // namespace

void matmul_panels(const PackedMatrix& w, const Activations& x, const MatmulOutput& y,
                   int64_t first_panel, int64_t last_panel, Ordering) {
  const int64_t num_tiles = padded_depth(w.type, w.depth) * weight_bytes(w.type) / kTileBytes;
  Sums sums;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    for (int64_t row = 0; row < x.num_rows; row += kBlockRows) {
      const int64_t num_rows = std::min(kBlockRows, x.num_rows - row);
      multiply(w, {w.panels + panel * w.panel_bytes, x.blocks + row * x.row_bytes, num_rows,
                   num_tiles, row == 0, &sums});
      if (w.type == WeightType::kInt8) dequantize(w, panel, x.scales + row, num_rows, sums);
      for (int64_t r = 0; r < num_rows; r++)
        finish_row(w, y, panel, sums.values[r], y.rows + (row + r) * y.stride);
    }
  }
}

void matmul(const PackedMatrix& w, const Activations& x, const MatmulOutput& y, Ordering ordering,
            Team& team, int thread) {
  team.share(thread, num_panels(w), 1, [&](int64_t first, int64_t last) {
    matmul_panels(w, x, y, first, last, ordering);
  });
}

}  // namespace quire
