// Register blocks of R rows by V vectors of columns, one template for all types and widths. Each
// output is one chain of fused multiply-adds along K, so its bits do not depend on the number of
// rows.

#include "matmul_panel.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "simd.h"

namespace quire {
namespace {

constexpr int kStepsPerTile = 16;  // a step is 128 bytes of a panel and 4 bytes of K of each row
constexpr int kStepBytes = static_cast<int>(kPanelTileBytes) / kStepsPerTile;
constexpr int kPanelVectors = static_cast<int>(kPanelColumns) / kWidth;

inline I32 load_i32(const uint8_t* source) { return load_as<I32>(source); }

// ---- the types: Sum accumulates one vector of columns; add() adds one step of K to it, or one of
// kParts parts of a step, where the instructions take less of K at once: then only a part of the
// operands is in registers

struct FloatKernel {
  using Sum = F32;
  using Operand = F32;
  static constexpr int64_t kRowTileBytes = kTileBytes;  // of one row, for one tile of the panel
  static constexpr int kParts = 1;
  static Operand weights(const uint8_t* source, int) { return load_as<F32>(source); }
  static Operand row(const uint8_t* x, int64_t, int step, int) {
    return broadcast(load_as<float>(x + step * 4));
  }
  static Sum add(Sum sum, const Operand& w, const Operand& x) { return fma(w, x, sum); }
};

#if defined(__AVX512BF16__)
struct Bf16Kernel {
  using Sum = F32;
  struct Operand {
    __m512bh pairs;
  };
  static constexpr int64_t kRowTileBytes = kTileBytes;
  static constexpr int kParts = 1;
  static Operand weights(const uint8_t* source, int) {
    return {(__m512bh)_mm512_loadu_si512(source)};
  }
  static Operand row(const uint8_t* x, int64_t, int step, int) {
    return {(__m512bh)_mm512_set1_epi32(load_as<int32_t>(x + step * 4))};
  }
  static Sum add(Sum sum, const Operand& w, const Operand& x) {
    return _mm512_dpbf16_ps(sum, w.pairs, x.pairs);
  }
};
#else
// bf16 is the upper half of a float32: a shift and a mask turn a pair of weights into two floats.
// The activations are kept as float32, already rounded to bf16: two tiles for one of the panel.
struct Bf16Kernel {
  using Sum = F32;
  using Operand = F32;
  static constexpr int64_t kRowTileBytes = 2 * kTileBytes;
  static constexpr int kParts = 2;
  static Operand weights(const uint8_t* source, int part) {
    const I32 pairs = load_i32(source);
    if (part == 0) return reinterpret_cast<F32>(pairs << 16);
    return reinterpret_cast<F32>(pairs & broadcast(static_cast<int32_t>(0xffff0000u)));
  }
  static Operand row(const uint8_t* x, int64_t tile_stride, int step, int part) {
    return broadcast(load_as<float>(x + step / 8 * tile_stride + step % 8 * 8 + part * 4));
  }
  static Sum add(Sum sum, const Operand& w, const Operand& x) { return fma(w, x, sum); }
};
#endif

// Unsigned activations times signed weights, four along K for each column, summed exactly in int32.
struct Int8Kernel {
  using Sum = I32;
  static constexpr int64_t kRowTileBytes = kTileBytes;
#if defined(__AVX512VNNI__)
  using Operand = I32;
  static constexpr int kParts = 1;
  static Operand weights(const uint8_t* source, int) { return load_i32(source); }
  static Operand row(const uint8_t* x, int64_t, int step, int) {
    return broadcast(load_as<int32_t>(x + step * 4));
  }
  static Sum add(Sum sum, const Operand& w, const Operand& x) {
    return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
  }
#else
  // Pairs of int16: bytes 0 and 2 of each quad, then bytes 1 and 3.
  using Operand = I32;
  static constexpr int kParts = 2;
  using I16 = int16_t __attribute__((vector_size(kWidth * 4)));
  static Operand weights(const uint8_t* source, int part) {
    const I16 quads = load_as<I16>(source);
    return reinterpret_cast<I32>(part == 0 ? (quads << 8) >> 8 : quads >> 8);
  }
  static Operand row(const uint8_t* x, int64_t, int step, int part) {
    using Bytes2 = uint16_t __attribute__((vector_size(kWidth * 4)));
    const I32 quads = broadcast(load_as<int32_t>(x + step * 4));
    if (part == 0) return quads & broadcast(0x00ff00ff);
    return reinterpret_cast<I32>(reinterpret_cast<Bytes2>(quads) >> 8);
  }
  static Sum add(Sum sum, const Operand& w, const Operand& x) {
#if defined(__AVX2__)
    return sum + (I32)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined(__SSE2__)
    return sum + (I32)__builtin_ia32_pmaddwd128((__attribute__((vector_size(16))) short)w,
                                                (__attribute__((vector_size(16))) short)x);
#else
    return sum + ((w << 16) >> 16) * ((x << 16) >> 16) + (w >> 16) * (x >> 16);
#endif
  }
#endif
};

// One part of a step for R rows and V vectors, the first kPanelVectors at w, the others at `beside`.
// The fewer operands, rows or vectors of weights, are in registers; the others are read one at a time.
template <class Kernel, int R, int V>
inline void add_part(typename Kernel::Sum (&sums)[R][V], const uint8_t* w, const uint8_t* beside,
                     const uint8_t* x, int64_t x_tile_stride, int step, int part) {
  using Operand = typename Kernel::Operand;
  const auto column = [&](int v) {
    return v < kPanelVectors ? Kernel::weights(w + v * kWidth * 4, part)
                             : Kernel::weights(beside + (v - kPanelVectors) * kWidth * 4, part);
  };
  const auto row = [&](int r) { return Kernel::row(x + r * kTileBytes, x_tile_stride, step, part); };
  if constexpr (V > R) {
    Operand rows[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) rows[r] = row(r);
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) {
      const Operand one = column(v);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[r][v] = Kernel::add(sums[r][v], one, rows[r]);
    }
  } else {
    Operand columns[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) columns[v] = column(v);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Operand one = row(r);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) sums[r][v] = Kernel::add(sums[r][v], columns[v], one);
    }
  }
}

// Turns exact sums into floats on their way to memory.
template <int R, int V, class Place>
inline void store_scaled(const I32 (&sums)[R][V], const Int8Scales& scales, int64_t first_row,
                         int first_vector, Place place) {
#pragma GCC unroll 16
  for (int v = 0; v < V; v++) {
    const int64_t j = (first_vector + v) * kWidth;
    const F32 of_column = load(scales.columns + j);
    const I32 offset = load_as<I32>(scales.offsets + j);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const F32 value = __builtin_convertvector(sums[r][v] - offset, F32) * of_column;
      store(reinterpret_cast<float*>(place(r, v)), value * scales.rows[first_row + r]);
    }
  }
}

// Rows [first_row, first_row + R), vectors of columns [first_vector, first_vector + V); those from
// kPanelVectors on are of the panel beside it.
template <class Kernel, int R, int V>
void register_block(const PanelTask& task, int64_t first_row, int first_vector) {
  using Sum = typename Kernel::Sum;
  constexpr bool kPair = V > kPanelVectors;
  const int64_t offset = first_row * kPanelColumns * 4 + first_vector * kWidth * 4;
  auto* target = static_cast<uint8_t*>(task.sums) + offset;
  auto* target_beside = kPair ? static_cast<uint8_t*>(task.sums_beside) + offset : nullptr;
  const auto place = [&](int r, int v) {
    return r * kPanelColumns * 4 + (v < kPanelVectors ? target + v * kWidth * 4
                                                      : target_beside + (v - kPanelVectors) * kWidth * 4);
  };
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
  const int64_t to_beside = kPair ? task.beside - task.panel : 0;
  const uint8_t* x = task.upper + first_row * kTileBytes;
  const bool in_order = kInParts && task.fetch == Fetch::kInOrder;
  const int64_t lines = in_order || (first_row == 0 && first_vector == 0) ? task.lines : 0;
  // A tile that comes from memory is prefetched step by step. If all its lines were at once, they would
  // wait for the buffers of L1, and the multiply-adds behind them too.
  const bool is_near = !kPair && task.fetch == Fetch::kNear && lines > 0;
  const int64_t lines_at_once = is_near ? 0 : lines;
  for (int64_t tile = 0; tile < task.num_tiles; tile++, w += kPanelTileBytes, x += x_step) {
    const uint8_t* next = in_order                      ? task.next + tile * lines * 64
                          : task.fetch == Fetch::kNear ? tile_ahead(task, tile)
                                                       : task.next + tile * kPanelTileBytes;
    for (int64_t line = 0; line < lines_at_once; line++) {
      __builtin_prefetch(next + line * 64);
      if (kPair) __builtin_prefetch(next + to_beside + line * 64);
    }
    // The rows of the next tile, for which the processor sees no pattern.
    if constexpr (kPair)
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) __builtin_prefetch(x + x_step + r * kTileBytes);
#pragma GCC unroll 4
    for (int step = 0; step < kStepsPerTile; step++) {
      if (is_near)
        for (int line = 0; line < kStepBytes; line += 64)
          __builtin_prefetch(next + step * kStepBytes + line);
#pragma GCC unroll 2
      for (int part = 0; part < Kernel::kParts; part++) {
        // Otherwise what both parts read stays in registers that the sums need.
        if constexpr (Kernel::kParts > 1) asm volatile("" ::: "memory");
        const uint8_t* of_step = w + step * kStepBytes;
        add_part<Kernel>(sums, of_step, of_step + to_beside, x, x_tile_stride, step, part);
      }
    }
  }
  if constexpr (std::is_same_v<Kernel, Int8Kernel>)
    if (task.scales != nullptr) return store_scaled(sums, *task.scales, first_row, first_vector, place);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) std::memcpy(place(r, v), &sums[r][v], sizeof(Sum));
}

// The shapes of register blocks that fit the register file: at most kMaxRows rows; up to kMaxWideRows
// rows the whole panel at once, with more rows parts of kNarrow vectors. kEvenPasses: rows that do not
// fit are split evenly. AVX2 fills its registers instead: of 16 rows, passes of 6, 6 and 4 are faster
// than passes of 5, 5 and 6.
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

// The most rows of one pass over a panel. With AVX2, bf16 is widened in each pass, for which one
// register less is left, and int8 takes two instructions for each sum, so that reading more often
// costs nothing.
template <class Kernel>
constexpr int rows_of_pass() {
  if (kInParts && std::is_same_v<Kernel, Bf16Kernel>) return 2;
  if (kInParts && std::is_same_v<Kernel, Int8Kernel>) return kMaxWideRows;
  return kMaxRows;
}

template <class Kernel, int R>
void rows_of_panel(const PanelTask& task, int64_t first_row) {
  constexpr int V = R <= kMaxWideRows ? kPanelVectors : kNarrow;
  for (int vector = 0; vector < kPanelVectors; vector += V) {
    if constexpr (!kInParts) {
      register_block<Kernel, R, V>(task, first_row, vector);
    } else {
      // The blocks of a part prefetch the following one in ascending order, each as much as it
      // multiplies.
      constexpr int64_t kLines = kPanelTileBytes / 64;  // of a tile
      PanelTask block = task;
      if (task.fetch == Fetch::kInOrder && task.lines > 0) {
        const int64_t all = task.upper_rows * kPanelVectors;
        const int64_t done = first_row * kPanelVectors + R * vector;
        const int64_t first_line = kLines * done / all;
        block.lines = kLines * (done + R * V) / all - first_line;
        block.next = task.next + first_line * task.num_tiles * 64;
      }
      register_block<Kernel, R, V>(block, first_row, vector);
    }
  }
}

// The rows of one pass over two panels: 24 sums, 4 vectors of weights and an activation.
constexpr int kPairRows = 6;

// Two panels at once, with the constant R equal to `rows`.
template <class Kernel, int R = kPairRows>
void rows_of_pair(const PanelTask& task, int64_t first_row, int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return rows_of_pair<Kernel, R - 1>(task, first_row, rows);
  }
  register_block<Kernel, R, 2 * kPanelVectors>(task, first_row, 0);
}

// Calls rows_of_panel with the constant R equal to `rows`.
template <class Kernel, int R = rows_of_pass<Kernel>()>
void dispatch_rows(const PanelTask& task, int64_t first_row, int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return dispatch_rows<Kernel, R - 1>(task, first_row, rows);
  }
  rows_of_panel<Kernel, R>(task, first_row);
}

template <class Kernel>
void all_passes(const PanelTask& task) {
  if constexpr (kPairs)
    if (task.beside != nullptr) {
      const int64_t num_passes = (task.upper_rows + kPairRows - 1) / kPairRows;
      const auto start = [&](int64_t pass) { return task.upper_rows * pass / num_passes; };
      for (int64_t pass = 0; pass < num_passes; pass++)
        rows_of_pair<Kernel>(task, start(pass), start(pass + 1) - start(pass));
      return;
    }
  constexpr int64_t kMost = rows_of_pass<Kernel>();
  const int64_t num_passes = (task.upper_rows + kMost - 1) / kMost;
  const auto start = [&](int64_t pass) {
    return kEvenPasses || kMost < kMaxRows ? task.upper_rows * pass / num_passes
                                           : std::min(pass * kMost, task.upper_rows);
  };
  for (int64_t pass = 0; pass < num_passes; pass++)
    dispatch_rows<Kernel>(task, start(pass), start(pass + 1) - start(pass));
}

// Whether instructions prefetch panels. Not on AMD's processors: their own prefetchers find a panel
// sooner, and instructions hold the few buffers through which lines reach L1 (on Zen 4, products from
// memory took 1.2 to 1.5 times as long with them). Intel's processors gain by them. Parts of
// tasks (kInParts) gain by them on AMD's too: in ascending order they start its own prefetchers.
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

// Tiles of a part: 8 KiB of the panel, and as many of the following part, beside the rows.
constexpr int64_t kPartTiles = 4;

template <class Kernel>
void product(const PanelTask& task) {
  // One block reads the whole panel in order, as the processor prefetches it.
  constexpr int64_t kOneBlock = std::min(rows_of_pass<Kernel>(), kMaxWideRows);
  if (!kInParts || task.upper_rows <= kOneBlock) {
    PanelTask whole = task;
    if (!prefetches()) whole.lines = 0;
    return all_passes<Kernel>(whole);
  }
  for (int64_t tile = 0; tile < task.num_tiles; tile += kPartTiles) {
    const int64_t end = tile + kPartTiles;
    PanelTask part = task;
    part.panel += tile * kPanelTileBytes;
    part.upper += tile * task.upper_rows * Kernel::kRowTileBytes;
    part.num_tiles = std::min(kPartTiles, task.num_tiles - tile);
    part.accumulate = task.accumulate || tile > 0;
    part.fetch = Fetch::kInOrder;
    if (end < task.num_tiles) {
      part.next = part.panel + kPartTiles * kPanelTileBytes;
      part.scales = nullptr;
    }
    all_passes<Kernel>(part);
  }
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

void vector_product(WeightType type, const PanelTask& task) {
  if (type == WeightType::kF32) return product<FloatKernel>(task);
  if (type == WeightType::kBF16) return product<Bf16Kernel>(task);
  product<Int8Kernel>(task);
}

}  // namespace quire
