#include "matmul.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "epilogue.h"
#include "matmul_panel.h"

namespace quire {
namespace {

constexpr int64_t kSharesPerThread = 4;
constexpr int64_t kFinishAhead = 4;  // rows of y

// int8: turns the exact integer sums into floats. x = (u - 128) * row scale, W = q * column scale.
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

// How a product is cut so that reused operands are still in a cache. Measured with AMX, where it
// matters most.
//
// Many rows: the activations of a chunk (rows x outer steps of K) stay in L2, the inner steps of
// one panel in L1. Where K is long the chunk has fewer rows, so that K is one outer step: if K were
// cut, activations would come from L3 again for every group of panels. Few rows: the weights come
// from memory once, and everything else stays in L1: the activations of a short part of K, used by
// all panels of a group, and their sums. Activations from L2 would compete with the weights for the
// few buffers through which lines reach L1.
struct Blocking {
  int64_t rows, panels;
  int64_t outer, inner;  // tiles of K
};

constexpr int64_t kMinChunkRows = 256, kMaxChunkRows = 512;
constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kGroupPanels = 8;
#if defined(__AMX_TILE__)
constexpr int64_t kInnerTiles = 8;  // 16 KiB of a panel
#else
constexpr int64_t kInnerTiles = 16;  // sums come and go half as often, which vectors feel more
#endif
constexpr int64_t kStreamTiles = 4, kStreamPanels = 4;  // 8 KiB of 32 rows, 16 KiB of their sums

Blocking choose_blocking(const PackedMatrix& w, const Activations& x, int64_t rows_at_once) {
  const int64_t num_tiles = padded_depth(w.type, w.depth) * weight_bytes(w.type) / kTileBytes;
  if (x.num_rows <= rows_at_once) {
    if (!has_amx(w.type)) return {x.num_rows, 1, num_tiles, num_tiles};
    const int64_t tiles = std::min(kStreamTiles, num_tiles);
    return {x.num_rows, kStreamPanels, tiles, tiles};
  }
  const int64_t most = std::clamp(kChunkBytes / x.row_bytes, kMinChunkRows, kMaxChunkRows);
  const int64_t num_chunks = (x.num_rows + most - 1) / most;
  const int64_t rows = round_up((x.num_rows + num_chunks - 1) / num_chunks, rows_at_once);
  const int64_t outer = std::max(kChunkBytes / (rows * x.row_bytes / num_tiles), kInnerTiles);
  return {rows, kGroupPanels, std::min(outer, num_tiles), kInnerTiles};
}

constexpr int64_t kWidenedFloats = kWidensBf16 ? kInnerTiles * kPanelTileBytes / 2 : 0;

// The sums of one thread between the parts of a product; the buffer is kept for the next product.
float* sums_buffer(int64_t num_floats) {
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<float, Free> buffer;
  thread_local int64_t capacity = 0;
  if (num_floats > capacity) {
    const auto num_bytes = static_cast<size_t>(round_up(num_floats * 4, 4096));
    capacity = 0;
    buffer.reset(static_cast<float*>(std::aligned_alloc(4096, num_bytes)));
    if (!buffer) throw std::bad_alloc();
    capacity = num_floats;
  }
  return buffer.get();
}

// One product on one thread. `Results` is one of epilogue.h.
template <class Results>
class Product {
 public:
  Product(const PackedMatrix& w, const Activations& x, const Results& results)
      : w_(w),
        x_(x),
        results_(results),
        use_amx_(has_amx(w.type)),
        rows_at_once_(use_amx_ ? kAmxRows : kVectorRows),
        num_tiles_(padded_depth(w.type, w.depth) * weight_bytes(w.type) / kTileBytes),
        blocking_(choose_blocking(w, x, rows_at_once_)),
        sums_(sums_buffer(blocking_.rows * blocking_.panels * kPanelColumns + kWidenedFloats)),
        widened_(sums_ + blocking_.rows * blocking_.panels * kPanelColumns) {}

  int64_t num_chunks() const { return (x_.num_rows + blocking_.rows - 1) / blocking_.rows; }
  int64_t group_panels() const { return blocking_.panels; }

  // One chunk of rows times panels [first, last). `next`: the panel that this thread reads
  // afterwards.
  void chunk(int64_t index, int64_t first, int64_t last, int64_t next) {
    const int64_t row = index * blocking_.rows;
    const int64_t last_row = std::min(row + blocking_.rows, x_.num_rows);
    for (int64_t panel = first; panel < last; panel += blocking_.panels) {
      const int64_t end = std::min(panel + blocking_.panels, last);
      group(row, last_row, panel, end, end < last ? end : next);
    }
  }

 private:
  // The panels of one group, for one chunk of rows.
  void group(int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
             int64_t next_panel) {
    const int64_t num_rows = last_row - first_row;
    for (int64_t outer = 0; outer < num_tiles_; outer += blocking_.outer) {
      const int64_t last_tile = std::min(outer + blocking_.outer, num_tiles_);
      float* sums = sums_;
      for (int64_t panel = first_panel; panel < last_panel; panel++) {
        // The part that is read after this one.
        after_ = panel + 1 < last_panel ? part(panel + 1, outer) : part(first_panel, last_tile);
        if (panel + 1 == last_panel && last_tile == num_tiles_) after_ = part(next_panel, 0);
        for (int64_t tile = outer; tile < last_tile; tile += blocking_.inner)
          rows(first_row, last_row, panel, outer, tile,
               std::min(tile + blocking_.inner, last_tile), sums);
        sums += num_rows * kPanelColumns;
      }
    }
    if (num_rows <= rows_at_once_)
      finish(first_row, num_rows, first_panel, last_panel, sums_);
  }

  const uint8_t* part(int64_t panel, int64_t tile) const {
    return w_.panels + panel * w_.panel_bytes + tile * kPanelTileBytes;
  }

  // One part of a panel, which is in L1 or on its way, for all rows of a chunk. `first_tile`: of
  // the outer step.
  void rows(int64_t first_row, int64_t last_row, int64_t panel, int64_t first_tile, int64_t tile,
            int64_t last_tile, float* sums) {
    PanelTask task = {};
    task.panel = part(panel, tile);
    task.num_tiles = last_tile - tile;
    task.accumulate = tile > 0;
    const int64_t num_blocks = (last_row - first_row + rows_at_once_ - 1) / rows_at_once_;
    const int64_t lines_per_tile = kPanelTileBytes / 64;
    task.lines = (lines_per_tile + num_blocks - 1) / num_blocks;
    task.fetch = num_blocks == 1 ? Fetch::kNear : Fetch::kFar;
    task.next = num_blocks == 1 ? after_ : after_ + (tile - first_tile) * kPanelTileBytes;
    // A panel with one part needs no sums kept between parts: the same buffer, in L1, serves all
    // rows.
    const bool at_once = num_blocks > 1 && task.num_tiles == num_tiles_;
    WeightType type = w_.type;
    if (kWidensBf16 && type == WeightType::kBF16 && num_blocks > 1) {
      widen_tiles(task.panel, task.num_tiles, widened_);
      type = WeightType::kF32;
      task.panel = reinterpret_cast<const uint8_t*>(widened_);
      task.num_tiles *= 2;
      task.lines = 0;  // the following data is read once, in order, when it is widened
    }
    for (int64_t row = first_row; row < last_row; row += rows_at_once_) {
      const int64_t num_rows = std::min(rows_at_once_, last_row - row);
      task.upper_rows = std::min(kBlockRows, num_rows);
      task.lower_rows = num_rows - task.upper_rows;
      task.upper = block(row, task.upper_rows, tile);
      task.lower = block(row + kBlockRows, task.lower_rows, tile);
      float* of_rows = at_once ? sums_ : sums + (row - first_row) * kPanelColumns;
      task.sums = of_rows;
      multiply(type, task);
      if (num_blocks == 1) continue;
      task.next += task.lines * 64;
      if (last_tile == num_tiles_) finish(row, num_rows, panel, panel + 1, of_rows);
    }
  }

  const uint8_t* block(int64_t row, int64_t num_rows, int64_t tile) const {
    if (num_rows == 0) return nullptr;
    return x_.blocks + row * x_.row_bytes + tile * num_rows * (x_.row_bytes / num_tiles_);
  }

  void multiply(WeightType type, const PanelTask& task) {
    if (!use_amx_) return vector_product(type, task);
    tiles_.configure(task.upper_rows, task.lower_rows);
    amx_product(w_.type, task);
  }

  // Takes the complete sums of some rows and panels. With many rows: as soon as a panel is done
  // with a block of them, while they are in L1. With few rows: for a whole group, so that a row's
  // results are written together. y is rarely in a cache, hence the prefetch.
  void finish(int64_t first_row, int64_t num_rows, int64_t first_panel, int64_t last_panel,
              float* sums) {
    const int64_t stride = num_rows * kPanelColumns;
    if (w_.type == WeightType::kInt8)
      for (int64_t panel = first_panel; panel < last_panel; panel++)
        dequantize(w_, panel, x_.scales + first_row, num_rows,
                   sums + (panel - first_panel) * stride);
    for (int64_t row = 0; row < num_rows; row++) {
      if (row + kFinishAhead < num_rows)
        results_.fetch(first_row + row + kFinishAhead, first_panel, last_panel);
      for (int64_t panel = first_panel; panel < last_panel; panel++)
        results_.take(first_row + row, panel,
                      sums + (panel - first_panel) * stride + row * kPanelColumns);
    }
  }

  const PackedMatrix& w_;
  const Activations& x_;
  const Results& results_;
  const bool use_amx_;
  const int64_t rows_at_once_;
  const int64_t num_tiles_;
  const Blocking blocking_;
  float* sums_;
  float* widened_;  // one part of a panel
  const uint8_t* after_ = nullptr;
  AmxTiles tiles_;
};

// The whole product, in shares: groups of panels, then single panels so that threads end together;
// smaller groups where threads would otherwise have no work.
template <class Results>
void multiply_shares(const PackedMatrix& w, const Activations& x, const Results& results,
                     Team& team, int thread) {
  if (x.num_rows == 0) return;
  Product<Results> product(w, x, results);
  const int64_t panels = num_panels(w);
  const int64_t fair = std::max<int64_t>(panels / (kSharesPerThread * team.size()), 1);
  const int64_t step = std::min(product.group_panels(), fair);
  const int64_t groups = std::max<int64_t>(panels / step - team.size(), 0);
  const int64_t shares = groups + panels - groups * step;
  const auto first_panel = [&](int64_t share) {
    const int64_t place = share % shares;
    return place < groups ? place * step : place + groups * (step - 1);
  };
  const int64_t count = product.num_chunks() * shares;
  team.share_ahead(thread, count, [&](int64_t share, int64_t next) {
    const int64_t panel = first_panel(share), num_panels = share % shares < groups ? step : 1;
    product.chunk(share / shares, panel, panel + num_panels,
                  next < count ? first_panel(next) : panel);
  });
}

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
  const StoredRows results(w, y);
  Product<StoredRows> product(w, x, results);
  for (int64_t chunk = 0; chunk < product.num_chunks(); chunk++)
    product.chunk(chunk, first_panel, last_panel, last_panel);
}

void matmul(const PackedMatrix& w, const Activations& x, const MatmulOutput& y, Ordering,
            Team& team, int thread) {
  multiply_shares(w, x, StoredRows(w, y), team, thread);
}

void matmul_converted(const PackedMatrix& w, const Activations& x, const MatmulOutput& y,
                      const Activations& next, Ordering, Team& team, int thread) {
  multiply_shares(w, x, ConvertedRows(w, y, next), team, thread);
}

void matmul_best(const PackedMatrix& w, const Activations& x, const MatmulOutput& y,
                 BestOfRows& best, Ordering, Team& team, int thread) {
  multiply_shares(w, x, BestColumns(w, y, best), team, thread);
}

}  // namespace quire
