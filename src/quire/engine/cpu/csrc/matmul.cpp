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

// int8 with AMX: turns the exact integer sums into floats. Vectors do it while the sums are in
// registers (Int8Scales).
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

// How a product is cut so that reused operands are still in a cache.
//
// Few rows, which are one task: the weights come from memory once, and everything else stays in L1.
// With AMX: the activations of a short part of K, used by all panels of a group, and their sums.
// Activations from L2 would compete with the weights for the few buffers through which lines reach
// L1.
//
// Many rows, vectors: a group of panels stays in L2, which gives weights as fast as they are
// multiplied. Each 16 rows pass all of them, so that y is written in pieces as wide as the group. K
// is cut only where a chunk of activations with all of K would not stay in L2 beside the group; then
// sums come and go for each part. Where panels are multiplied in pairs (Intel's processors, whose L2
// has 1.25 MiB), chunks are larger, so that weights are read and widened less often.
//
// Many rows, AMX, measured on such a machine: L2 is too slow for the weights. The inner steps of one
// panel stay in L1 and are used for all rows of a chunk, whose activations (rows x outer steps of K)
// are in L2. Where K is long the chunk has fewer rows, so that K is one outer step: if K were cut,
// activations would come from L3 again for every group of panels.
struct Blocking {
  int64_t rows, panels;
  int64_t outer, inner;  // tiles of K
};

constexpr int64_t kMaxChunkRows = 512;

constexpr int64_t kMinAmxRows = 256, kAmxPanels = 8;
constexpr int64_t kAmxChunkBytes = 1 << 20;             // half of L2
constexpr int64_t kInnerTiles = 8;                      // 16 KiB of a panel
constexpr int64_t kStreamTiles = 4, kStreamPanels = 4;  // 8 KiB of 32 rows, 16 KiB of their sums

// Together with a group: three quarters of L2.
constexpr int64_t kVectorChunkBytes = kPairs ? 768 << 10 : 512 << 10;
constexpr int64_t kGroupBytes = 256 << 10;
constexpr int64_t kMinVectorRows = kPairs ? 256 : 128, kVectorPanels = kPairs ? 4 : 8;
constexpr int64_t kPanelsAtOnce = kPairs ? 2 : 1;

// Rows of a chunk, about the same number in each and at most `most`.
int64_t chunk_rows(int64_t num_rows, int64_t most, int64_t rows_at_once) {
  const int64_t num_chunks = (num_rows + most - 1) / most;
  return round_up((num_rows + num_chunks - 1) / num_chunks, rows_at_once);
}

Blocking amx_blocking(const Activations& x, int64_t num_tiles) {
  if (x.num_rows <= kAmxRows) {
    const int64_t tiles = std::min(kStreamTiles, num_tiles);
    return {x.num_rows, kStreamPanels, tiles, tiles};
  }
  const int64_t most = std::clamp(kAmxChunkBytes / x.row_bytes, kMinAmxRows, kMaxChunkRows);
  const int64_t rows = chunk_rows(x.num_rows, most, kAmxRows);
  const int64_t outer = std::max(kAmxChunkBytes / (rows * x.row_bytes / num_tiles), kInnerTiles);
  return {rows, kAmxPanels, std::min(outer, num_tiles), kInnerTiles};
}

// `tile_bytes`: of a tile of a panel as it is multiplied.
Blocking vector_blocking(const Activations& x, int64_t num_tiles, int64_t tile_bytes) {
  if (x.num_rows <= kVectorRows) return {x.num_rows, 1, num_tiles, num_tiles};
  const int64_t fitting = kVectorChunkBytes / x.row_bytes;
  const int64_t most = std::clamp(fitting, kMinVectorRows, kMaxChunkRows);
  const int64_t rows = chunk_rows(x.num_rows, most, kVectorRows);
  int64_t tiles = num_tiles;
  if (rows > fitting) {
    const int64_t most_tiles = kGroupBytes / (kVectorPanels * tile_bytes);
    const int64_t num_parts = (num_tiles + most_tiles - 1) / most_tiles;
    tiles = (num_tiles + num_parts - 1) / num_parts;
  }
  const int64_t panels = std::clamp(kGroupBytes / (tiles * tile_bytes), kPanelsAtOnce, kVectorPanels);
  return {rows, panels, tiles, tiles};
}

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
        is_few_(x.num_rows <= rows_at_once_),
        widens_(kWidensBf16 && w.type == WeightType::kBF16 && !is_few_),
        num_tiles_(padded_depth(w.type, w.depth) * weight_bytes(w.type) / kTileBytes),
        blocking_(use_amx_ ? amx_blocking(x, num_tiles_)
                           : vector_blocking(x, num_tiles_, tile_bytes())),
        sums_(sums_buffer(num_sums() + num_widened())),
        widened_(sums_ + num_sums()) {}

  int64_t num_chunks() const { return (x_.num_rows + blocking_.rows - 1) / blocking_.rows; }
  int64_t group_panels() const { return blocking_.panels; }

  // One chunk of rows times panels [first, last). `next`: the panel that this thread reads
  // afterwards.
  void chunk(int64_t index, int64_t first, int64_t last, int64_t next) {
    const int64_t row = index * blocking_.rows;
    const int64_t last_row = std::min(row + blocking_.rows, x_.num_rows);
    for (int64_t panel = first; panel < last; panel += blocking_.panels) {
      const int64_t end = std::min(panel + blocking_.panels, last);
      group({row, last_row, panel, end, sums_}, end < last ? end : next);
    }
  }

 private:
  int64_t tile_bytes() const { return widens_ ? 2 * kPanelTileBytes : kPanelTileBytes; }
  int64_t num_sums() const { return blocking_.rows * blocking_.panels * kPanelColumns; }
  int64_t num_widened() const {
    return widens_ ? blocking_.panels * blocking_.outer * tile_bytes() / 4 : 0;
  }

  // The panels of one group, for one chunk of rows.
  void group(const SumsOfBlock& all, int64_t next_panel) {
    for (int64_t tile = 0; tile < num_tiles_; tile += blocking_.outer) {
      const int64_t last_tile = std::min(tile + blocking_.outer, num_tiles_);
      // The part that is read after this one.
      after_ = last_tile < num_tiles_ ? part(all.first_panel, last_tile) : part(next_panel, 0);
      if (use_amx_ && !is_few_)
        rows_of_panels(all, tile, last_tile);
      else
        panels_of_rows(all, tile, last_tile);
    }
  }

  // One part of K: each block of rows times all panels of the group.
  void panels_of_rows(const SumsOfBlock& all, int64_t tile, int64_t last_tile) {
    if (widens_) widen(all, tile, last_tile);
    const bool is_whole = blocking_.outer == num_tiles_;
    const int64_t lines = widens_ ? 0 : lines_for_block(all);  // widening reads in order
    SumsOfBlock block = all;
    for (int64_t row = all.first_row, done = 0; row < all.last_row; row = block.last_row) {
      block.first_row = row;
      block.last_row = std::min(row + rows_at_once_, all.last_row);
      for (int64_t panel = all.first_panel, num = 0; panel < all.last_panel; panel += num) {
        num = panels_at_once(panel, all);
        PanelTask task = task_of(block, panel, tile, last_tile);
        const int64_t place = panel - all.first_panel;
        task.fetch = is_few_ ? Fetch::kNear : Fetch::kFar;
        task.lines = lines;
        task.next = after_ + place * w_.panel_bytes + done * 64;
        if (is_few_ || kInParts) task.next = panel + 1 < all.last_panel ? part(panel + 1, tile) : after_;
        if (widens_) task.panel = widened_of(place);
        if (num > 1) {
          task.beside = widens_ ? widened_of(place + 1) : part(panel + 1, tile);
          task.sums_beside = block.of(block.first_row, panel + 1);
        }
        const Int8Scales scales = scales_of(block, panel);
        if (w_.type == WeightType::kInt8 && !use_amx_ && last_tile == num_tiles_) task.scales = &scales;
        multiply(task);
      }
      done += lines;
      if (last_tile == num_tiles_) finish(block);
      // Where K is in one piece, the same sums, in L1, serve all rows.
      if (!is_whole) block.sums = block.of(block.last_row, block.last_panel - 1);
    }
  }

  int64_t panels_at_once(int64_t panel, const SumsOfBlock& all) const {
    return is_few_ || use_amx_ ? 1 : std::min(kPanelsAtOnce, all.last_panel - panel);
  }

  // One part of K: each short part of each panel, which is in L1 or on its way, times all rows.
  void rows_of_panels(const SumsOfBlock& all, int64_t first_tile, int64_t outer_tile) {
    const int64_t lines = lines_for_block(all);
    for (int64_t panel = all.first_panel; panel < all.last_panel; panel++) {
      const uint8_t* after = panel + 1 < all.last_panel ? part(panel + 1, first_tile) : after_;
      for (int64_t tile = first_tile; tile < outer_tile; tile += blocking_.inner) {
        const int64_t last_tile = std::min(tile + blocking_.inner, outer_tile);
        // A panel with one part needs no sums kept between parts.
        const bool is_whole = last_tile - tile == num_tiles_;
        SumsOfBlock block = {0, 0, panel, panel + 1, is_whole ? all.sums : all.of(all.first_row, panel)};
        const uint8_t* next = after + (tile - first_tile) * kPanelTileBytes;
        for (int64_t row = all.first_row; row < all.last_row; row = block.last_row) {
          block.first_row = row;
          block.last_row = std::min(row + rows_at_once_, all.last_row);
          PanelTask task = task_of(block, panel, tile, last_tile);
          task.fetch = Fetch::kFar;
          task.lines = lines;
          task.next = next;
          multiply(task);
          next += lines * 64;
          if (last_tile == num_tiles_) finish(block);
          if (!is_whole) block.sums = block.of(block.last_row, panel);
        }
      }
    }
  }

  // How many lines of each following tile are prefetched while a block of rows is multiplied, so
  // that all of them are when the last block is.
  int64_t lines_for_block(const SumsOfBlock& all) const {
    const int64_t num_blocks = (all.last_row - all.first_row + rows_at_once_ - 1) / rows_at_once_;
    return (kPanelTileBytes / 64 + num_blocks - 1) / num_blocks;
  }

  PanelTask task_of(const SumsOfBlock& block, int64_t panel, int64_t tile, int64_t last_tile) const {
    const int64_t num_rows = block.last_row - block.first_row;
    PanelTask task = {};
    task.panel = part(panel, tile);
    task.num_tiles = (last_tile - tile) * (tile_bytes() / kPanelTileBytes);
    task.accumulate = tile > 0;
    task.upper_rows = std::min(kBlockRows, num_rows);
    task.lower_rows = num_rows - task.upper_rows;
    task.upper = rows_at(block.first_row, task.upper_rows, tile);
    task.lower = rows_at(block.first_row + kBlockRows, task.lower_rows, tile);
    task.sums = block.of(block.first_row, panel);
    return task;
  }

  Int8Scales scales_of(const SumsOfBlock& block, int64_t panel) const {
    if (w_.type != WeightType::kInt8) return {};
    return {x_.scales + block.first_row, w_.scales + panel * kPanelColumns,
            w_.sums + panel * kPanelColumns};
  }

  const uint8_t* part(int64_t panel, int64_t tile) const {
    return w_.panels + panel * w_.panel_bytes + tile * kPanelTileBytes;
  }

  const uint8_t* rows_at(int64_t row, int64_t num_rows, int64_t tile) const {
    if (num_rows == 0) return nullptr;
    return x_.blocks + row * x_.row_bytes + tile * num_rows * (x_.row_bytes / num_tiles_);
  }

  uint8_t* widened_of(int64_t place) const {
    return reinterpret_cast<uint8_t*>(widened_) + place * blocking_.outer * tile_bytes();
  }

  void widen(const SumsOfBlock& all, int64_t tile, int64_t last_tile) {
    for (int64_t panel = all.first_panel; panel < all.last_panel; panel++) {
      auto* widened = reinterpret_cast<float*>(widened_of(panel - all.first_panel));
      widen_tiles(part(panel, tile), last_tile - tile, widened);
    }
  }

  void multiply(const PanelTask& task) {
    if (!use_amx_) return vector_product(widens_ ? WeightType::kF32 : w_.type, task);
    tiles_.configure(task.upper_rows, task.lower_rows);
    amx_product(w_.type, task);
  }

  // Takes complete sums, as soon as they are, while they are in L1.
  void finish(const SumsOfBlock& block) {
    if (w_.type == WeightType::kInt8 && use_amx_)
      for (int64_t panel = block.first_panel; panel < block.last_panel; panel++)
        dequantize(w_, panel, x_.scales + block.first_row, block.last_row - block.first_row,
                   block.of(block.first_row, panel));
    results_.take(block);
  }

  const PackedMatrix& w_;
  const Activations& x_;
  const Results& results_;
  const bool use_amx_;
  const int64_t rows_at_once_;
  const bool is_few_;  // one task for each panel
  const bool widens_;
  const int64_t num_tiles_;
  const Blocking blocking_;
  float* sums_;
  float* widened_;  // one part of the panels of a group
  const uint8_t* after_ = nullptr;
  AmxTiles tiles_;
};

// One share of a product: a chunk of rows times panels [first, last).
struct Share {
  int64_t chunk, first, last;
};

// How a product is divided: groups of panels; of the last chunk of rows, the end in panels that are
// multiplied at once, so that threads end together. Groups are smaller where threads would otherwise
// have no work.
class Shares {
 public:
  Shares(int64_t num_chunks, int64_t panels, int64_t group_panels, int64_t num_threads)
      : panels_(panels),
        last_chunk_(num_chunks - 1),
        step_(without_rest(std::clamp(num_chunks * panels / (kSharesPerThread * num_threads),
                                      int64_t{1}, group_panels))),
        of_chunk_((panels + step_ - 1) / step_),
        end_step_(std::min(step_, kPanelsAtOnce)),
        groups_(std::max<int64_t>(panels / step_ - num_threads, 0)) {}

  int64_t count() const {
    const int64_t rest = panels_ - groups_ * step_;
    return last_chunk_ * of_chunk_ + groups_ + (rest + end_step_ - 1) / end_step_;
  }

  Share at(int64_t index) const {
    if (index < last_chunk_ * of_chunk_) {
      const int64_t first = index % of_chunk_ * step_;
      return {index / of_chunk_, first, std::min(first + step_, panels_)};
    }
    const int64_t group = index - last_chunk_ * of_chunk_;
    if (group < groups_) return {last_chunk_, group * step_, (group + 1) * step_};
    const int64_t panel = groups_ * step_ + (group - groups_) * end_step_;
    return {last_chunk_, panel, std::min(panel + end_step_, panels_)};
  }

 private:
  static int64_t without_rest(int64_t panels) {
    return panels < kPanelsAtOnce ? panels : panels - panels % kPanelsAtOnce;
  }

  const int64_t panels_, last_chunk_;
  const int64_t step_;      // panels of a group
  const int64_t of_chunk_;  // shares of a chunk before the last one
  const int64_t end_step_;  // panels of a share of the end
  const int64_t groups_;    // of the last chunk, before its end
};

// The whole product, in shares.
template <class Results>
void multiply_shares(const PackedMatrix& w, const Activations& x, const Results& results,
                     Team& team, int thread) {
  if (x.num_rows == 0) return;
  Product<Results> product(w, x, results);
  const Shares shares(product.num_chunks(), num_panels(w), product.group_panels(), team.size());
  const int64_t count = shares.count();
  team.share_ahead(thread, count, [&](int64_t index, int64_t next) {
    const Share share = shares.at(index);
    product.chunk(share.chunk, share.first, share.last,
                  next < count ? shares.at(next).first : share.first);
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
