// Owns the seam between the driver of a product (matmul.cpp) and the kernels for one panel.
#pragma once

#include "packed_matrix.h"

namespace quire {

// One panel times one block of activations: sums[row][32] in float32 (int8: int32, before scales).
struct PanelTask {
  const uint8_t* panel;
  const uint8_t* block;
  int64_t num_rows;   // of the block, 1 .. kBlockRows
  int64_t num_tiles;  // 64-byte steps of K in the panel
  bool stream;        // the panel comes from memory: prefetch it
  void* sums;
};

constexpr int64_t kPanelTileBytes = kPanelColumns * kTileBytes;  // one step of K of one panel
// How far ahead a streamed panel is prefetched: the time of a memory access at the rate of one core.
// Panels follow one another in memory, so running past the end of one reaches into the next.
constexpr int64_t kPrefetchBytes = 6144;

void panel_product_f32(const PanelTask& task);
void panel_product_bf16(const PanelTask& task);
void panel_product_int8(const PanelTask& task);

}  // namespace quire
