#include "matmul.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "matmul_panel.h"
#include "simd.h"

namespace quire {
namespace {

// How far ahead a panel that comes from memory is prefetched: the time of a memory access at the rate
// of one core. Panels follow one another, so running past the end of one reaches into the next.
constexpr int64_t kPrefetchBytes = 6144;
constexpr int64_t kSharesPerThread = 4;
constexpr int64_t kFinishAhead = 4;  // rows of y

// int8: the exact integer sums become floats. x = (u - 128) * row scale, W = q * column scale.
void dequantize(const PackedMatrix& w, int64_t panel, const float* row_scales, int64_t num_rows,
                float* sums) {
  const float* scales = w.scales + panel * kPanelColumns;
  const int32_t* offsets = w.sums + panel * kPanelColumns;
  for (int64_t row = 0; row < num_rows; row++, sums += kPanelColumns) {
    for (int64_t j = 0; j < kPanelColumns; j += kWidth) {
      const I32 exact = load_as<I32>(sums + j) - load_as<I32>(offsets + j);
      const F32 value = __builtin_convertvector(exact, F32) * load(scales + j);
      store(sums + j, value * row_scales[row]);
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

// How a product of many rows is cut so that what is used again is still in a cache. Measured with AMX,
// where it matters most: the activations of a chunk (rows x outer steps of K) stay in L2 together with
// the sums of a group of panels; the inner steps of one panel stay in L1.
struct Blocking {
  int64_t rows, panels;
  int64_t outer, inner;  // tiles of K
};

constexpr int64_t kChunkRows = 512;
constexpr int64_t kChunkBytes = 512 << 10;
constexpr int64_t kGroupPanels = 8;
constexpr int64_t kInnerTiles = 8;  // 16 KiB of a panel

Blocking choose_blocking(const PackedMatrix& w, const Activations& x, int64_t rows_at_once) {
  const int64_t num_tiles = padded_depth(w.type, w.depth) * weight_bytes(w.type) / kTileBytes;
  if (x.num_rows <= rows_at_once) return {x.num_rows, 1, num_tiles, num_tiles};
  const int64_t rows = std::min(kChunkRows, round_up(x.num_rows, rows_at_once));
  const int64_t outer = std::max(kChunkBytes / (rows * x.row_bytes / num_tiles), kInnerTiles);
  return {rows, kGroupPanels, std::min(outer, num_tiles), kInnerTiles};
}

// The sums of one thread between the parts of a product, kept for the next one.
float* sums_buffer(int64_t num_floats) {
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<float, Free> buffer;
  thread_local int64_t capacity = 0;
  if (num_floats > capacity) {
    const auto num_bytes = static_cast<size_t>(round_up(num_floats * 4, 4096));
    buffer.reset(static_cast<float*>(std::aligned_alloc(4096, num_bytes)));
    capacity = num_floats;
  }
  return buffer.get();
}

// One product on one thread.
class Product {
 public:
  Product(const PackedMatrix& w, const Activations& x, const MatmulOutput& y)
      : w_(w),
        x_(x),
        y_(y),
        use_amx_(has_amx(w.type)),
        rows_at_once_(use_amx_ ? kAmxRows : kVectorRows),
        num_tiles_(padded_depth(w.type, w.depth) * weight_bytes(w.type) / kTileBytes),
        blocking_(choose_blocking(w, x, rows_at_once_)),
        sums_(sums_buffer(blocking_.rows * blocking_.panels * kPanelColumns)) {}

  int64_t num_chunks() const { return (x_.num_rows + blocking_.rows - 1) / blocking_.rows; }
  int64_t group_panels() const { return blocking_.panels; }

  // One chunk of rows times panels [first, last).
  void chunk(int64_t index, int64_t first, int64_t last) {
    const int64_t row = index * blocking_.rows;
    for (int64_t panel = first; panel < last; panel += blocking_.panels)
      group(row, std::min(row + blocking_.rows, x_.num_rows), panel,
            std::min(panel + blocking_.panels, last));
  }

 private:
  // The panels of one group for one chunk of rows.
  void group(int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel) {
    const int64_t num_rows = last_row - first_row;
    for (int64_t outer = 0; outer < num_tiles_; outer += blocking_.outer) {
      const int64_t last_tile = std::min(outer + blocking_.outer, num_tiles_);
      float* sums = sums_;
      for (int64_t panel = first_panel; panel < last_panel; panel++) {
        for (int64_t tile = outer; tile < last_tile; tile += blocking_.inner)
          rows(first_row, last_row, panel, tile, std::min(tile + blocking_.inner, last_tile), sums);
        sums += num_rows * kPanelColumns;
      }
    }
    finish(first_row, num_rows, first_panel, last_panel);
  }

  // One part of a panel, which now is or comes into L1, for all rows of a chunk.
  void rows(int64_t first_row, int64_t last_row, int64_t panel, int64_t tile, int64_t last_tile,
            float* sums) {
    PanelTask task = {};
    task.panel = w_.panels + panel * w_.panel_bytes + tile * kPanelTileBytes;
    task.num_tiles = last_tile - tile;
    task.accumulate = tile > 0;
    const int64_t num_blocks = (last_row - first_row + rows_at_once_ - 1) / rows_at_once_;
    const int64_t lines_per_tile = kPanelTileBytes / 64;
    task.lines = (lines_per_tile + num_blocks - 1) / num_blocks;
    task.fetch = num_blocks == 1 ? Fetch::kNear : Fetch::kFar;
    task.next = task.panel + (num_blocks == 1 ? kPrefetchBytes : w_.panel_bytes);
    for (int64_t row = first_row; row < last_row; row += rows_at_once_) {
      const int64_t num_rows = std::min(rows_at_once_, last_row - row);
      task.upper_rows = std::min(kBlockRows, num_rows);
      task.lower_rows = num_rows - task.upper_rows;
      task.upper = block(row, task.upper_rows, tile);
      task.lower = block(row + kBlockRows, task.lower_rows, tile);
      task.sums = sums + (row - first_row) * kPanelColumns;
      multiply(task);
      task.next += task.lines * 64;
    }
  }

  const uint8_t* block(int64_t row, int64_t num_rows, int64_t tile) const {
    if (num_rows == 0) return nullptr;
    return x_.blocks + row * x_.row_bytes + tile * num_rows * (x_.row_bytes / num_tiles_);
  }

  void multiply(const PanelTask& task) {
    if (!use_amx_) return vector_product(w_.type, task);
    tiles_.configure(task.upper_rows, task.lower_rows);
    amx_product(w_.type, task);
  }

  // Row by row, so that what one row gets from the group is written together; y is rarely in a cache,
  // hence the prefetch.
  void finish(int64_t first_row, int64_t num_rows, int64_t first_panel, int64_t last_panel) {
    const int64_t sums_stride = num_rows * kPanelColumns;
    if (w_.type == WeightType::kInt8)
      for (int64_t panel = first_panel; panel < last_panel; panel++)
        dequantize(w_, panel, x_.scales + first_row, num_rows,
                   sums_ + (panel - first_panel) * sums_stride);
    const int64_t first_column = first_panel * columns_per_panel(w_.layout);
    const int64_t num_columns = (last_panel - first_panel) * columns_per_panel(w_.layout);
    for (int64_t row = 0; row < num_rows; row++) {
      float* target = y_.rows + (first_row + row) * y_.stride;
      if (row + kFinishAhead < num_rows)
        for (int64_t j = 0; j < num_columns; j += 16)
          __builtin_prefetch(target + kFinishAhead * y_.stride + first_column + j, 1);
      for (int64_t panel = first_panel; panel < last_panel; panel++)
        finish_row(w_, y_, panel,
                   sums_ + (panel - first_panel) * sums_stride + row * kPanelColumns, target);
    }
  }

  const PackedMatrix& w_;
  const Activations& x_;
  const MatmulOutput& y_;
  const bool use_amx_;
  const int64_t rows_at_once_;
  const int64_t num_tiles_;
  const Blocking blocking_;
  float* sums_;
  AmxTiles tiles_;
};

}  // namespace

void gate_row(Epilogue epilogue, const float* packed, int64_t num_columns, float limit, float* y) {
  constexpr int64_t kHalf = kPanelColumns / 2;
  for (int64_t first = 0; first < num_columns; first += kHalf, packed += kPanelColumns) {
    const int64_t num = std::min(kHalf, num_columns - first);
    for (int64_t j = 0; j < num; j += kWidth)
      store_n(y + first + j, gated(epilogue, load(packed + j), load(packed + kHalf + j), limit),
              num - j);
  }
}

void matmul_panels(const PackedMatrix& w, const Activations& x, const MatmulOutput& y,
                   int64_t first_panel, int64_t last_panel, Ordering) {
  if (x.num_rows == 0) return;
  Product product(w, x, y);
  for (int64_t chunk = 0; chunk < product.num_chunks(); chunk++)
    product.chunk(chunk, first_panel, last_panel);
}

void matmul(const PackedMatrix& w, const Activations& x, const MatmulOutput& y, Ordering,
            Team& team, int thread) {
  if (x.num_rows == 0) return;
  Product product(w, x, y);
  // Shares are groups of panels, smaller where that would leave a thread without work.
  const int64_t panels = num_panels(w);
  const int64_t fair = std::max<int64_t>(panels / (kSharesPerThread * team.size()), 1);
  const int64_t step = std::min(product.group_panels(), fair);
  const int64_t groups = (panels + step - 1) / step;
  team.share(thread, product.num_chunks() * groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t share = first; share < last; share++) {
      const int64_t panel = share % groups * step;
      product.chunk(share / groups, panel, std::min(panel + step, panels));
    }
  });
}

}  // namespace quire
