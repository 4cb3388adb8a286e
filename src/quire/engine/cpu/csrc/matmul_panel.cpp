// Register blocks of R rows by V vectors of columns, one template for all types and widths. Each
// output is one chain of fused multiply-adds along K, so its bits do not depend on the number of
// rows.

#include "matmul_panel.h"

#include <algorithm>
#include <cstring>

#include "simd.h"

namespace quire {
namespace {

constexpr int kStepsPerTile = 16;  // a step is 128 bytes of a panel and 4 bytes of K of each row
constexpr int kStepBytes = static_cast<int>(kPanelTileBytes) / kStepsPerTile;
constexpr int kPanelVectors = static_cast<int>(kPanelColumns) / kWidth;

inline I32 load_i32(const uint8_t* source) { return load_as<I32>(source); }

// ---- the types: Sum accumulates one vector of columns; add() adds one step of K to it

struct FloatKernel {
  using Sum = F32;
  struct Weights {
    F32 value;
  };
  struct Row {
    F32 value;
  };
  static constexpr int64_t kRowTileBytes = kTileBytes;  // of one row, for one tile of the panel
  static constexpr bool kWidens = false;                // whether each pass over the weights does
  static Weights weights(const uint8_t* source) { return {load_as<F32>(source)}; }
  static Row row(const uint8_t* x, int64_t, int step) {
    return {broadcast(load_as<float>(x + step * 4))};
  }
  static Sum add(Sum sum, const Weights& w, const Row& x) { return fma(w.value, x.value, sum); }
};

#if defined(__AVX512BF16__)
struct Bf16Kernel {
  using Sum = F32;
  struct Weights {
    __m512bh pairs;
  };
  using Row = Weights;
  static constexpr int64_t kRowTileBytes = kTileBytes;
  static constexpr bool kWidens = false;
  static Weights weights(const uint8_t* source) { return {(__m512bh)_mm512_loadu_si512(source)}; }
  static Row row(const uint8_t* x, int64_t, int step) {
    return {(__m512bh)_mm512_set1_epi32(load_as<int32_t>(x + step * 4))};
  }
  static Sum add(Sum sum, const Weights& w, const Row& x) {
    return _mm512_dpbf16_ps(sum, w.pairs, x.pairs);
  }
};
#else
// bf16 is the upper half of a float32: a shift and a mask turn a pair of weights into two floats.
// The activations are kept as float32, already rounded to bf16: two tiles for one of the panel.
struct Bf16Kernel {
  using Sum = F32;
  struct Weights {
    F32 even, odd;
  };
  using Row = Weights;
  static constexpr int64_t kRowTileBytes = 2 * kTileBytes;
  static constexpr bool kWidens = true;
  static Weights weights(const uint8_t* source) {
    const I32 pairs = load_i32(source);
    const I32 upper = broadcast(static_cast<int32_t>(0xffff0000u));
    return {reinterpret_cast<F32>(pairs << 16), reinterpret_cast<F32>(pairs & upper)};
  }
  static Row row(const uint8_t* x, int64_t tile_stride, int step) {
    const uint8_t* pair = x + step / 8 * tile_stride + step % 8 * 8;
    return {broadcast(load_as<float>(pair)), broadcast(load_as<float>(pair + 4))};
  }
  static Sum add(Sum sum, const Weights& w, const Row& x) {
    return fma(w.odd, x.odd, fma(w.even, x.even, sum));
  }
};
#endif

// Unsigned activations times signed weights, four along K for each column, summed exactly in int32.
struct Int8Kernel {
  using Sum = I32;
  static constexpr int64_t kRowTileBytes = kTileBytes;
  static constexpr bool kWidens = false;
  static int32_t quad(const uint8_t* x, int step) { return load_as<int32_t>(x + step * 4); }
#if defined(__AVX512VNNI__)
  struct Weights {
    I32 quads;
  };
  using Row = Weights;
  static Weights weights(const uint8_t* source) { return {load_i32(source)}; }
  static Row row(const uint8_t* x, int64_t, int step) { return {broadcast(quad(x, step))}; }
  static Sum add(Sum sum, const Weights& w, const Row& x) {
    return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x.quads, (__m512i)w.quads);
  }
#else
  struct Weights {
    I32 even, odd;  // int16 pairs: bytes 0 and 2, bytes 1 and 3
  };
  using Row = Weights;
  using I16 = int16_t __attribute__((vector_size(kWidth * 4)));
  static Weights weights(const uint8_t* source) {
    const I16 quads = load_as<I16>(source);
    return {reinterpret_cast<I32>((quads << 8) >> 8), reinterpret_cast<I32>(quads >> 8)};
  }
  static Row row(const uint8_t* x, int64_t, int step) {
    const int32_t value = quad(x, step);
    return {broadcast(value & 0x00ff00ff), broadcast((value >> 8) & 0x00ff00ff)};
  }
  static I32 multiply_pairs(I32 a, I32 b) {
#if defined(__AVX2__)
    return (I32)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (I32)__builtin_ia32_pmaddwd128((__attribute__((vector_size(16))) short)a,
                                          (__attribute__((vector_size(16))) short)b);
#else
    return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
  }
  static Sum add(Sum sum, const Weights& w, const Row& x) {
    return sum + multiply_pairs(w.even, x.even) + multiply_pairs(w.odd, x.odd);
  }
#endif
};

// Rows [first_row, first_row + R), vectors of columns [first_vector, first_vector + V).
template <class Kernel, int R, int V>
void register_block(const PanelTask& task, int64_t first_row, int first_vector) {
  using Sum = typename Kernel::Sum;
  auto* target = static_cast<uint8_t*>(task.sums) + first_row * kPanelColumns * 4 +
                 first_vector * kWidth * 4;
  const auto place = [&](int r, int v) { return target + r * kPanelColumns * 4 + v * kWidth * 4; };
  // Stays in registers, for which every loop over it must be unrolled before the compiler looks for
  // what fits there. Otherwise it begins and ends in memory, which takes 6 cycles for each vector.
  Sum sums[R][V];
  const bool accumulate = task.accumulate;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) sums[r][v] = accumulate ? load_as<Sum>(place(r, v)) : Sum{};
  const int64_t x_tile_stride = task.upper_rows * kTileBytes;
  const int64_t x_step = task.upper_rows * Kernel::kRowTileBytes;
  const uint8_t* w = task.panel + first_vector * kWidth * 4;
  const uint8_t* x = task.upper + first_row * kTileBytes;
  const int64_t lines = first_row == 0 && first_vector == 0 ? task.lines : 0;
  for (int64_t tile = 0; tile < task.num_tiles; tile++, w += kPanelTileBytes, x += x_step) {
    const uint8_t* next = task.fetch == Fetch::kNear ? tile_ahead(task, tile)
                                                     : task.next + tile * kPanelTileBytes;
    for (int64_t line = 0; line < lines; line++) __builtin_prefetch(next + line * 64);
#pragma GCC unroll 4
    for (int step = 0; step < kStepsPerTile; step++) {
      typename Kernel::Weights weights[V];
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) weights[v] = Kernel::weights(w + step * kStepBytes + v * kWidth * 4);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const typename Kernel::Row row = Kernel::row(x + r * kTileBytes, x_tile_stride, step);
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) sums[r][v] = Kernel::add(sums[r][v], weights[v], row);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) std::memcpy(place(r, v), &sums[r][v], sizeof(Sum));
}

// The shapes of register blocks that fit the register file: at most kMaxRows rows; with few rows
// the whole panel at once, with more rows parts of kNarrow vectors. kEvenPasses: rows that do not fit
// are split evenly. AVX2 fills its registers instead: of 16 rows, passes of 6, 6 and 4 are faster than
// passes of 5, 5 and 6. Two passes that widen weights are even: of 8 rows in bf16, 4 and 4 are faster
// than 6 and 2.
#if defined(__AVX512F__)
constexpr int kMaxRows = 12, kMaxWideRows = 12, kNarrow = 2;
constexpr bool kEvenPasses = true;
#elif defined(__AVX2__)
constexpr int kMaxRows = 6, kMaxWideRows = 3, kNarrow = 2;
constexpr bool kEvenPasses = false;
#elif defined(__aarch64__)
constexpr int kMaxRows = 6, kMaxWideRows = 3, kNarrow = 4;
constexpr bool kEvenPasses = true;
#else
constexpr int kMaxRows = 4, kMaxWideRows = 1, kNarrow = 2;
constexpr bool kEvenPasses = true;
#endif

template <class Kernel, int R>
void rows_of_panel(const PanelTask& task, int64_t first_row) {
  constexpr int V = R <= kMaxWideRows ? kPanelVectors : kNarrow;
  for (int vector = 0; vector < kPanelVectors; vector += V)
    register_block<Kernel, R, V>(task, first_row, vector);
}

// Calls rows_of_panel with the constant R equal to `rows`.
template <class Kernel, int R = kMaxRows>
void dispatch_rows(const PanelTask& task, int64_t first_row, int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return dispatch_rows<Kernel, R - 1>(task, first_row, rows);
  }
  rows_of_panel<Kernel, R>(task, first_row);
}

template <class Kernel>
void product(const PanelTask& task) {
  const int64_t num_passes = (task.upper_rows + kMaxRows - 1) / kMaxRows;
  const auto start = [&](int64_t pass) {
    return kEvenPasses || (Kernel::kWidens && num_passes == 2) ? task.upper_rows * pass / num_passes
                       : std::min(pass * kMaxRows, task.upper_rows);
  };
  for (int64_t pass = 0; pass < num_passes; pass++)
    dispatch_rows<Kernel>(task, start(pass), start(pass + 1) - start(pass));
}

// Whether instructions prefetch panels. Not on AMD's processors: their own prefetchers find a panel
// sooner, and instructions hold the few buffers through which lines reach L1 (on Zen 4, products from
// memory took 1.2 to 1.5 times as long with them). Intel's processors gain by them.
bool prefetches() {
#if defined(__x86_64__) || defined(__i386__)
  static const bool is_amd = [] {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") != 0;
  }();
  return !is_amd;
#else
  return true;
#endif
}

}  // namespace

void widen_tiles(const uint8_t* panel, int64_t num_tiles, float* widened) {
  const I32 upper = broadcast(static_cast<int32_t>(0xffff0000u));
  const int64_t num_steps = num_tiles * kStepsPerTile;
  for (int64_t step = 0; step < num_steps; step++, panel += kStepBytes, widened += 2 * kPanelColumns)
    for (int v = 0; v < kPanelVectors; v++) {
      const I32 pairs = load_i32(panel + v * kWidth * 4);
      store(widened + v * kWidth, reinterpret_cast<F32>(pairs << 16));
      store(widened + kPanelColumns + v * kWidth, reinterpret_cast<F32>(pairs & upper));
    }
}

void vector_product(WeightType type, const PanelTask& given) {
  PanelTask task = given;
  if (!prefetches()) task.lines = 0;
  if (type == WeightType::kF32) return product<FloatKernel>(task);
  if (type == WeightType::kBF16) return product<Bf16Kernel>(task);
  product<Int8Kernel>(task);
}

}  // namespace quire
