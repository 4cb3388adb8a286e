// Owns the interface between the driver of a product (matmul.cpp) and the kernels that multiply one
// panel of weights with a few rows: in vector registers (matmul_panel.cpp) or AMX tiles
// (matmul_amx.cpp).
#pragma once

#include "packed_matrix.h"

namespace quire {

constexpr int64_t kPanelTileBytes = kPanelColumns * kTileBytes;  // one step of K of one panel

// What a kernel prefetches while it computes. kNear: the panel comes straight from memory: whole
// tiles are prefetched kTilesAhead before use, first of this task, then of the following one
// (next). kFar: the panel is in a cache: `lines` lines of the following data are prefetched for
// each tile of K. kInOrder: a part of a task, see kInParts: `lines` lines for each tile of K, in
// ascending order from `next` on.
enum class Fetch { kNothing, kNear, kFar, kInOrder };

// AVX2 alone needs several passes over a panel for more than a few rows. So its kernel cuts such a
// task along K into parts that stay in L1, makes all passes over one part, and prefetches the
// following part meanwhile, after the last one `next`; it prefetches nothing where `lines` is 0.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kInParts = true;
#else
constexpr bool kInParts = false;
#endif

// Tiles that one core reads at full rate during one memory access.
constexpr int64_t kTilesAhead = 3;

// Whether two panels are multiplied at once where there are many rows. A broadcast activation then
// serves four vectors, so that a multiply-add costs 1.4 instructions instead of 1.6. That counts where
// a neighbour takes half of the core's instructions. Not measured with AVX512_BF16.
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
constexpr bool kPairs = true;
#else
constexpr bool kPairs = false;
#endif

// What turns exact sums of int8 into floats: x = (u - 128) * row scale, W = q * column scale.
struct Int8Scales {
  const float* rows;       // of the task's rows
  const float* columns;    // [32] of the panel, then those of the panel beside it
  const int32_t* offsets;  // [32] 128 * (sum of the column), as above
};

// sums[row][32] (+)= rows . panel, over `num_tiles` 64-byte steps of K. Sums are float32, or int32
// for int8, before any scale. The order of addition along K does not depend on how K is cut into
// tasks.
struct PanelTask {
  const uint8_t* panel;
  const uint8_t* upper;  // a block of activations of `upper_rows` rows
  const uint8_t* lower;  // the next block; only AMX takes two at once
  int64_t upper_rows, lower_rows;
  int64_t num_tiles;
  bool accumulate;
  Fetch fetch;
  const uint8_t* next;
  int64_t lines;
  void* sums;
  const uint8_t* beside;  // a second panel and its sums (kPairs), or null
  void* sums_beside;
  const Int8Scales* scales;  // int8 in vectors, the last task along K: sums become floats; else null
};

// The tile that kNear prefetches at tile `index` of the task.
inline const uint8_t* tile_ahead(const PanelTask& task, int64_t index) {
  const int64_t ahead = index + kTilesAhead;
  return ahead < task.num_tiles ? task.panel + ahead * kPanelTileBytes
                                : task.next + (ahead - task.num_tiles) * kPanelTileBytes;
}

// The most rows of one task.
constexpr int64_t kVectorRows = kBlockRows;
constexpr int64_t kAmxRows = 2 * kBlockRows;  // two blocks, so that each tile of weights is used twice

void vector_product(WeightType type, const PanelTask& task);

// bf16 weights where no instruction multiplies them: a part of a panel that is used for many rows
// is widened once for all of them. Each tile of bf16 becomes two of f32 with the same columns; the
// activations are already f32, in the same order, so the product's bits are unchanged.
#if defined(__AVX512BF16__)
constexpr bool kWidensBf16 = false;
#else
constexpr bool kWidensBf16 = true;
#endif
void widen_tiles(const uint8_t* panel, int64_t num_tiles, float* widened);

// Whether this library has AMX kernels for the type. (f32 has none.)
bool has_amx(WeightType type);
void amx_product(WeightType type, const PanelTask& task);

// The tile registers of this thread. Other libraries in the process (oneDNN) configure them too, so
// they are configured for every product and released after it.
class AmxTiles {
 public:
  AmxTiles() = default;
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  void configure(int64_t upper_rows, int64_t lower_rows);

 private:
  int64_t upper_rows_ = 0, lower_rows_ = 0;
};

}  // namespace quire
