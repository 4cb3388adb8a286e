#include "packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simd.h"

namespace quire {
namespace {

// Index of row k, packed column j of a panel, in elements.
inline int64_t panel_index(WeightType type, int64_t k, int64_t j) {
  switch (type) {
    case WeightType::kF32:
      return k * kPanelColumns + j;
    case WeightType::kBF16:
      return (k / 2) * kPanelColumns * 2 + j * 2 + k % 2;
    default:
      return (k / 4) * kPanelColumns * 4 + j * 4 + k % 4;
  }
}

struct ColumnPlace {
  bool in_up;
  int64_t column;  // of the matrix
};

inline ColumnPlace place_of(const PackedMatrix& w, int64_t panel, int64_t j) {
  if (w.layout == PanelLayout::kPlain) return {false, panel * kPanelColumns + j};
  const int64_t half = kPanelColumns / 2;
  return {j >= half, panel * half + j % half};
}

inline float source_value(const void* row, WeightType element, int64_t k) {
  return element == WeightType::kF32 ? static_cast<const float*>(row)[k]
                                     : to_f32(static_cast<const bf16*>(row)[k]);
}

void pack_float_column(const PackedMatrix& w, const void* row, WeightType element, int64_t j,
                       uint8_t* panel) {
  for (int64_t k = 0; k < w.depth; k++) {
    const int64_t index = panel_index(w.type, k, j);
    if (w.type == WeightType::kF32)
      reinterpret_cast<float*>(panel)[index] = source_value(row, element, k);
    else if (element == WeightType::kBF16)
      reinterpret_cast<bf16*>(panel)[index] = static_cast<const bf16*>(row)[k];
    else
      reinterpret_cast<bf16*>(panel)[index] = to_bf16(static_cast<const float*>(row)[k]);
  }
}

// Symmetric, one scale per column: w ~ scale * q with q in [-127, 127].
void pack_int8_column(const PackedMatrix& w, const void* row, WeightType element, int64_t j,
                      uint8_t* panel, float* scale, int32_t* sum) {
  float largest = 0.0f;
  for (int64_t k = 0; k < w.depth; k++)
    largest = std::max(largest, std::fabs(source_value(row, element, k)));
  *scale = largest / 127.0f;
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  int32_t total = 0;
  for (int64_t k = 0; k < w.depth; k++) {
    const auto q = static_cast<int32_t>(std::lrintf(source_value(row, element, k) * inverse));
    total += q;
    reinterpret_cast<int8_t*>(panel)[panel_index(w.type, k, j)] = static_cast<int8_t>(q);
  }
  *sum = total * 128;
}

void convert_row_bf16(const float* source, int64_t depth, uint8_t* target, int64_t tile_stride) {
  for (int64_t k = 0; k < depth; k += 32) {
    auto* tile = reinterpret_cast<bf16*>(target + k / 32 * tile_stride);
    for (int64_t i = 0; i < 32; i += kWidth) {
      const int64_t n = std::clamp<int64_t>(depth - k - i, 0, kWidth);
      store(tile + i, load_n(source + std::min(k + i, depth), n));
    }
  }
}

void convert_row_f32(const float* source, int64_t depth, int64_t padded, bool rounded,
                     uint8_t* target, int64_t tile_stride) {
  for (int64_t k = 0; k < padded; k += 16) {
    auto* tile = reinterpret_cast<float*>(target + k / 16 * tile_stride);
    for (int64_t i = 0; i < 16; i += kWidth) {
      const int64_t n = std::clamp<int64_t>(depth - k - i, 0, kWidth);
      const F32 value = load_n(source + std::min(k + i, depth), n);
      store(tile + i, rounded ? to_f32(to_bf16(value)) : value);
    }
  }
}

// q + 128 of each lane, as bytes. The multiply-add rounds to an integer.
inline void store_bytes(uint8_t* target, F32 value, F32 inverse) {
  const F32 magic = broadcast(12582912.0f + 128.0f);
  const I32 bits = reinterpret_cast<I32>(value * inverse + magic);
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                   _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(bits)));
#else
  for (int lane = 0; lane < kWidth; lane++) target[lane] = static_cast<uint8_t>(bits[lane]);
#endif
}

float convert_row_int8(const float* source, int64_t depth, uint8_t* target, int64_t tile_stride) {
  const int64_t whole = depth / 64 * 64;
  F32 largest[4] = {};
  const auto look = [&](F32& most, F32 value) { most = max(most, max(value, -value)); };
  for (int64_t k = 0; k < whole; k += 4 * kWidth)
    for (int i = 0; i < 4; i++) look(largest[i], load(source + k + i * kWidth));
  for (int64_t k = whole; k < depth; k += kWidth) look(largest[0], load_n(source + k, depth - k));
  const float magnitude = reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  const F32 inverse = broadcast(magnitude > 0.0f ? 127.0f / magnitude : 0.0f);
  for (int64_t k = 0; k < whole; k += 64, target += tile_stride)
    for (int64_t i = 0; i < 64; i += kWidth) store_bytes(target + i, load(source + k + i), inverse);
  if (whole < depth)
    for (int64_t i = 0; i < 64; i += kWidth) {
      const int64_t rest = std::clamp<int64_t>(depth - whole - i, 0, kWidth);
      store_bytes(target + i, load_n(source + std::min(whole + i, depth), rest), inverse);
    }
  return magnitude / 127.0f;
}

}  // namespace

int64_t weight_bytes(WeightType type) {
  return type == WeightType::kF32 ? 4 : type == WeightType::kBF16 ? 2 : 1;
}

int64_t padded_depth(WeightType type, int64_t depth) {
  return round_up(depth, kTileBytes / weight_bytes(type));
}

void pack_panels(const PackedMatrix& w, const WeightSource& source, int64_t first_panel,
                 int64_t last_panel) {
  for (int64_t p = first_panel; p < last_panel; p++) {
    auto* panel = const_cast<uint8_t*>(w.panels) + p * w.panel_bytes;
    std::memset(panel, 0, static_cast<size_t>(w.panel_bytes));
    for (int64_t j = 0; j < kPanelColumns; j++) {
      const ColumnPlace place = place_of(w, p, j);
      const bool exists = place.column < w.num_columns;
      const auto* rows = static_cast<const uint8_t*>(place.in_up ? source.up : source.rows);
      const void* row = rows + place.column * source.stride * weight_bytes(source.element);
      if (w.type == WeightType::kInt8) {
        float* scale = const_cast<float*>(w.scales) + p * kPanelColumns + j;
        int32_t* sum = const_cast<int32_t*>(w.sums) + p * kPanelColumns + j;
        *scale = 0.0f;
        *sum = 0;
        if (exists) pack_int8_column(w, row, source.element, j, panel, scale, sum);
      } else if (exists) {
        pack_float_column(w, row, source.element, j, panel);
      }
    }
  }
}

void unpack_panels(const PackedMatrix& w, int64_t first_panel, int64_t last_panel, float* rows,
                   float* up, int64_t stride) {
  const int64_t first_column = first_panel * columns_per_panel(w.layout);
  for (int64_t p = first_panel; p < last_panel; p++) {
    const uint8_t* panel = w.panels + p * w.panel_bytes;
    for (int64_t j = 0; j < kPanelColumns; j++) {
      const ColumnPlace place = place_of(w, p, j);
      float* half = place.in_up ? up : rows;
      if (place.column >= w.num_columns || half == nullptr) continue;
      float* row = half + (place.column - first_column) * stride;
      for (int64_t k = 0; k < w.depth; k++) {
        const int64_t index = panel_index(w.type, k, j);
        if (w.type == WeightType::kF32)
          row[k] = reinterpret_cast<const float*>(panel)[index];
        else if (w.type == WeightType::kBF16)
          row[k] = to_f32(reinterpret_cast<const bf16*>(panel)[index]);
        else
          row[k] = static_cast<float>(reinterpret_cast<const int8_t*>(panel)[index]) *
                   w.scales[p * kPanelColumns + j];
      }
    }
  }
}

int64_t activation_bytes(WeightType type, int64_t num_rows, int64_t depth) {
  const int64_t row_bytes = padded_depth(type, depth) * activation_element_bytes(type);
  return num_rows * row_bytes + round_up(num_rows * 4, kTileBytes);
}

Activations make_activations(void* buffer, WeightType type, int64_t num_rows, int64_t depth) {
  const int64_t row_bytes = padded_depth(type, depth) * activation_element_bytes(type);
  auto* blocks = static_cast<uint8_t*>(buffer);
  auto* scales = reinterpret_cast<float*>(blocks + num_rows * row_bytes);
  return {blocks, scales, num_rows, depth, row_bytes, type};
}

void convert_row(const float* source, int64_t row, const Activations& a) {
  const int64_t rows_of_block = std::min(kBlockRows, a.num_rows - row / kBlockRows * kBlockRows);
  const int64_t tile_stride = rows_of_block * kTileBytes;
  uint8_t* target = activation_place(a, row, 0);
  if (a.type == WeightType::kInt8)
    a.scales[row] = convert_row_int8(source, a.depth, target, tile_stride);
  else if (activation_element_bytes(a.type) == 2)
    convert_row_bf16(source, a.depth, target, tile_stride);
  else
    convert_row_f32(source, a.depth, padded_depth(a.type, a.depth),
                    a.type == WeightType::kBF16, target, tile_stride);
}

void convert_rows(const float* x, int64_t stride, const int32_t* index, int64_t first, int64_t last,
                  const Activations& a) {
  for (int64_t row = first; row < last; row++)
    convert_row(x + (index == nullptr ? row : index[row]) * stride, row, a);
}

}  // namespace quire
