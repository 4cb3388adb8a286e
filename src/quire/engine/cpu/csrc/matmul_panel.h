// Owns the seam between the driver of a product (matmul.cpp) and the kernels that multiply one panel
// of weights with a few rows: in vector registers (matmul_panel.cpp) or AMX tiles (matmul_amx.cpp).
#pragma once

#include "packed_matrix.h"

namespace quire {

constexpr int64_t kPanelTileBytes = kPanelColumns * kTileBytes;  // one step of K of one panel

// What a kernel prefetches while it computes, `lines` cache lines for each tile of K: the rest of a
// panel that comes straight from memory (kNear), or a part of what follows (kFar).
enum class Fetch { kNothing, kNear, kFar };

// sums[row][32] (+)= rows . panel, over `num_tiles` 64-byte steps of K. Sums are float32, or int32 for
// int8, before any scale. The order of addition along K does not depend on how K is cut into tasks.
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
};

// Rows that one task may have.
constexpr int64_t kVectorRows = kBlockRows;
constexpr int64_t kAmxRows = 2 * kBlockRows;  // two blocks, so that each tile of weights is used twice

void vector_product(WeightType type, const PanelTask& task);

// Whether this library has AMX kernels for the type. (f32 has none.)
bool has_amx(WeightType type);
void amx_product(WeightType type, const PanelTask& task);

// The tile registers of this thread. Other code of the process (oneDNN) configures them too, so they
// are configured anew for every product and released after it.
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
