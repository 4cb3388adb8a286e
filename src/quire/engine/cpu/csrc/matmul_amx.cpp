// The AMX kernels: one panel times up to 32 rows, the sums in four tile registers. Compiled to
// nothing where the instruction set lacks AMX. For 16 pairs along K, a tile product sums the first
// and the second elements of the pairs separately and then adds both to the total. This order
// differs from the vector kernels', but does not depend on the number of rows.

#include "matmul_panel.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)

#include <immintrin.h>

namespace quire {
namespace {

// Tiles 0..3 hold the sums (upper left, upper right, lower left, lower right), 4 and 5 the two blocks
// of activations, 6 and 7 the left and right half of the panel.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "the layout that LDTILECFG reads");

constexpr int kSumsStride = static_cast<int>(kPanelColumns) * 4;
constexpr int kPanelStride = kSumsStride;
constexpr int kRowStride = static_cast<int>(kTileBytes);

template <bool int8>
inline void multiply_upper() {
  if constexpr (int8) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
  } else {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
}

template <bool int8>
inline void multiply_lower() {
  if constexpr (int8) {
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  } else {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <bool has_lower>
inline void begin_sums(const PanelTask& task) {
  const auto* upper = static_cast<const uint8_t*>(task.sums);
  const uint8_t* lower = upper + task.upper_rows * kSumsStride;
  if (task.accumulate) {
    _tile_loadd(0, upper, kSumsStride);
    _tile_loadd(1, upper + kSumsStride / 2, kSumsStride);
    if (!has_lower) return;
    _tile_loadd(2, lower, kSumsStride);
    _tile_loadd(3, lower + kSumsStride / 2, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (!has_lower) return;
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <bool has_lower>
inline void end_sums(const PanelTask& task) {
  auto* upper = static_cast<uint8_t*>(task.sums);
  uint8_t* lower = upper + task.upper_rows * kSumsStride;
  _tile_stored(0, upper, kSumsStride);
  _tile_stored(1, upper + kSumsStride / 2, kSumsStride);
  if (!has_lower) return;
  _tile_stored(2, lower, kSumsStride);
  _tile_stored(3, lower + kSumsStride / 2, kSumsStride);
}

template <Fetch fetch>
inline void prefetch(const PanelTask& task, int64_t tile) {
  if (fetch == Fetch::kNear) {
    const uint8_t* next = tile_ahead(task, tile);
    for (int64_t line = 0; line < kPanelTileBytes / 64; line++) __builtin_prefetch(next + line * 64);
  }
  const uint8_t* next = task.next + tile * kPanelTileBytes;
  if (fetch == Fetch::kFar)
    for (int64_t line = 0; line < task.lines; line++) __builtin_prefetch(next + line * 64, 0, 2);
}

template <bool int8, bool has_lower, Fetch fetch>
void product(const PanelTask& task) {
  const uint8_t* w = task.panel;
  const uint8_t* upper = task.upper;
  const uint8_t* lower = task.lower;
  const int64_t upper_step = task.upper_rows * kRowStride, lower_step = task.lower_rows * kRowStride;
  begin_sums<has_lower>(task);
  for (int64_t tile = 0; tile < task.num_tiles; tile++) {
    prefetch<fetch>(task, tile);
    _tile_loadd(6, w, kPanelStride);
    _tile_loadd(4, upper, kRowStride);
    _tile_loadd(7, w + kPanelStride / 2, kPanelStride);
    multiply_upper<int8>();
    if (has_lower) {
      _tile_loadd(5, lower, kRowStride);
      multiply_lower<int8>();
      lower += lower_step;
    }
    upper += upper_step;
    w += kPanelTileBytes;
  }
  end_sums<has_lower>(task);
}

template <bool int8, bool has_lower>
void dispatch_fetch(const PanelTask& task) {
  if (task.fetch == Fetch::kNear) return product<int8, has_lower, Fetch::kNear>(task);
  if (task.fetch == Fetch::kFar) return product<int8, has_lower, Fetch::kFar>(task);
  product<int8, has_lower, Fetch::kNothing>(task);
}

template <bool int8>
void dispatch(const PanelTask& task) {
  if (task.lower_rows > 0) return dispatch_fetch<int8, true>(task);
  dispatch_fetch<int8, false>(task);
}

}  // namespace

bool has_amx(WeightType type) { return type != WeightType::kF32; }

void amx_product(WeightType type, const PanelTask& task) {
  if (type == WeightType::kInt8) return dispatch<true>(task);
  dispatch<false>(task);
}

AmxTiles::~AmxTiles() {
  if (upper_rows_ > 0) _tile_release();
}

void AmxTiles::configure(int64_t upper_rows, int64_t lower_rows) {
  if (upper_rows == upper_rows_ && lower_rows == lower_rows_) return;
  upper_rows_ = upper_rows;
  lower_rows_ = lower_rows;
  TileConfig config;
  const int64_t rows[8] = {upper_rows, upper_rows, lower_rows, lower_rows,
                           upper_rows, lower_rows, kBlockRows, kBlockRows};
  for (int tile = 0; tile < 8; tile++) {
    if (rows[tile] == 0) continue;
    config.rows[tile] = static_cast<uint8_t>(rows[tile]);
    config.column_bytes[tile] = static_cast<uint16_t>(kTileBytes);
  }
  // Not the intrinsic: GCC 12 tells the optimiser only about the first 8 of these 64 bytes.
  asm volatile("ldtilecfg %0" ::"m"(config));
}

}  // namespace quire

#else

namespace quire {

bool has_amx(WeightType) { return false; }
void amx_product(WeightType, const PanelTask&) {}
AmxTiles::~AmxTiles() = default;
void AmxTiles::configure(int64_t, int64_t) {}

}  // namespace quire

#endif
