// Owns the product of a block of 32 rows with bf16 matrices whose rows come in pairs, as attention
// takes it twice: in AMX tiles, or in vector registers where the processor has VDPBF16PS alone.
// Must not know queries, K or V. For instruction sets with AVX512_BF16 only.
#pragma once

#include "simd.h"

namespace quire {

constexpr int64_t kBlock = 32;     // rows and columns of a block
constexpr int64_t kBlockStep = 32;  // elements of K that one step multiplies

// out [32][32] f32 (`stride` in floats) = left . right, or += with `accumulate`. left: bf16,
// [32][num_steps * 32]; right: the 16 pairs of rows of step s, [16 pairs][16 columns][2], begin at
// right_a(s) for columns 0 to 15 and at right_b(s) for the others, one pair every
// `right_stride_bytes`. Of `out`, rows from `num_rows` on are undefined.
#if defined(__AMX_BF16__)

// Tiles 0-3 are sums [16][16] f32, 4-5 the left side [16][32] bf16, 6-7 the right side [16][16][2].
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Holds this thread's tile registers while it lives.
class BlockRegisters {
 public:
  BlockRegisters() {
    const TileConfig config;
    // Not the intrinsic: GCC 12 tells the optimiser only about the first 8 of these 64 bytes.
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~BlockRegisters() { _tile_release(); }
  BlockRegisters(const BlockRegisters&) = delete;
  BlockRegisters& operator=(const BlockRegisters&) = delete;
};

template <class RightA, class RightB>
inline void multiply_block(const bf16* left, int64_t left_stride, int64_t /*num_rows*/,
                           RightA right_a, RightB right_b, int64_t right_stride_bytes,
                           int64_t num_steps, float* out, int64_t stride, bool accumulate) {
  const size_t row_bytes = static_cast<size_t>(stride) * sizeof(float);
  const size_t left_bytes = static_cast<size_t>(left_stride) * sizeof(bf16);
  if (accumulate) {
    _tile_loadd(0, out, row_bytes);
    _tile_loadd(1, out + 16, row_bytes);
    _tile_loadd(2, out + 16 * stride, row_bytes);
    _tile_loadd(3, out + 16 * stride + 16, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < num_steps; step++) {
    _tile_loadd(4, left + step * kBlockStep, left_bytes);
    _tile_loadd(5, left + 16 * left_stride + step * kBlockStep, left_bytes);
    _tile_loadd(6, right_a(step), right_stride_bytes);
    _tile_loadd(7, right_b(step), right_stride_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, row_bytes);
  _tile_stored(1, out + 16, row_bytes);
  _tile_stored(2, out + 16 * stride, row_bytes);
  _tile_stored(3, out + 16 * stride + 16, row_bytes);
}

#elif defined(__AVX512BF16__)

struct BlockRegisters {  // vectors need no set-up
  BlockRegisters() {}
};

constexpr int kSumRows = 8;  // their 16 sums, two vectors of the right side and one row are in registers

template <class RightA, class RightB>
inline void multiply_rows(const bf16* left, int64_t left_stride, RightA right_a, RightB right_b,
                          int64_t right_stride_bytes, int64_t num_steps, float* out, int64_t stride,
                          bool accumulate) {
  F32 sums[kSumRows][2];
#pragma GCC unroll 16
  for (int row = 0; row < kSumRows; row++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
      sums[row][half] = accumulate ? load(out + row * stride + half * kWidth) : F32{};
  for (int64_t step = 0; step < num_steps; step++) {
    const auto* a = reinterpret_cast<const uint8_t*>(right_a(step));
    const auto* b = reinterpret_cast<const uint8_t*>(right_b(step));
    const bf16* of_step = left + step * kBlockStep;
    for (int64_t pair = 0; pair < kBlockStep / 2; pair++) {
      const auto columns_a = (__m512bh)_mm512_loadu_si512(a + pair * right_stride_bytes);
      const auto columns_b = (__m512bh)_mm512_loadu_si512(b + pair * right_stride_bytes);
#pragma GCC unroll 16
      for (int row = 0; row < kSumRows; row++) {
        const auto x =
            (__m512bh)_mm512_set1_epi32(load_as<int32_t>(of_step + row * left_stride + 2 * pair));
        sums[row][0] = _mm512_dpbf16_ps(sums[row][0], columns_a, x);
        sums[row][1] = _mm512_dpbf16_ps(sums[row][1], columns_b, x);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kSumRows; row++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) store(out + row * stride + half * kWidth, sums[row][half]);
}

template <class RightA, class RightB>
inline void multiply_block(const bf16* left, int64_t left_stride, int64_t num_rows, RightA right_a,
                           RightB right_b, int64_t right_stride_bytes, int64_t num_steps,
                           float* out, int64_t stride, bool accumulate) {
  for (int64_t row = 0; row < num_rows; row += kSumRows)
    multiply_rows(left + row * left_stride, left_stride, right_a, right_b, right_stride_bytes,
                  num_steps, out + row * stride, stride, accumulate);
}

#endif

}  // namespace quire
