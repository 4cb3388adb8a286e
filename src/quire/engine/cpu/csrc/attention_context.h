// Owns which slots the rows of a step may see: page tables and visibility words turned into lists
// of (tile, lanes), once for all layers of a step.
// Must not know K, V, heads or layers.
//
// Reference: quire/engine/attention/visible_slots.py and the rule in attention/backend.py: a new
// token at position p sees the visible slots of its row's table at positions < p, the new tokens of
// its row at positions < p, and itself; slots that the row writes are seen once, as new tokens. An
// explicit mask replaces the rule about positions, but never shows a slot whose bit is not set.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_cache.h"

namespace quire {

// Resident tables as in quire/engine/kv_cache/page_tables.py: row r of the arrays.
struct PageTablesView {
  const int32_t* blocks;     // [rows][width]
  const uint64_t* visible;   // [rows][width]
  const int64_t* num_pages;  // [rows]
  int64_t width;
};

// Explicit mask of one row: bool [num_new][num_columns], columns: all table slots, then the new ones.
struct RowMask {
  int64_t row;
  int64_t num_columns;
  const uint8_t* shown;
};

// A step's rows. Row r owns tokens row_starts[r] to row_starts[r + 1] - 1.
struct StepRows {
  int64_t num_rows;
  int64_t num_tokens;
  const int64_t* row_starts;
  const int64_t* tables;       // [num_rows] row of the page tables, -1 for none
  const int32_t* positions;    // [num_tokens]
  const int64_t* slots;        // [num_tokens] flat slot to which each token's K and V are written
  const RowMask* masks;
  int64_t num_masks;
};

// Sixteen slots of one tile that a row may see.
struct ContextTile {
  int64_t tile;
  uint32_t lanes;            // bit i: slot tile * 16 + i
  int32_t first_position;    // lowest and highest position of these lanes
  int32_t last_position;
};

// The tiles of one row, cut into chunks of 256 slots of the page table, visible or not, so that the
// boundaries of sums do not depend on blocks, on chunked prefill or on the batch.
class AttentionContext {
 public:
  static constexpr int64_t kChunkSlots = 256;
  static constexpr int64_t kMaxChunkTiles = kChunkSlots;  // worst case: one visible slot per tile

  struct Row {
    int64_t first_chunk, last_chunk;  // chunks [first, last)
    int64_t first_tile, num_tiles;
    int64_t mask;  // offset of its lane masks [num_new][num_tiles], -1 without an explicit mask
  };
  struct Chunk {
    int64_t first_tile, num_tiles;
    int64_t place;  // it covers slots [place * 256, place * 256 + 256) of the table
  };

  // `positions` of all slots of the pool, including those of this step's tokens.
  void build(const StepRows& rows, const PageTablesView& tables, int64_t page_size,
             const int32_t* positions);

  const Row& row(int64_t index) const { return rows_[static_cast<size_t>(index)]; }
  const Chunk& chunk(int64_t index) const { return chunks_[static_cast<size_t>(index)]; }
  const ContextTile& tile(int64_t index) const { return tiles_[static_cast<size_t>(index)]; }
  const uint16_t* lane_masks(int64_t offset) const { return lane_masks_.data() + offset; }

 private:
  void add_row(const StepRows& rows, int64_t row, const PageTablesView& tables, int64_t page_size,
               const RowMask* mask);
  void add_lanes(int64_t first_slot, uint64_t word, int64_t table_slot);
  void add_mask(Row& row, const StepRows& rows, int64_t index, const RowMask& mask);
  void measure(const int32_t* positions);

  std::vector<Row> rows_;
  std::vector<Chunk> chunks_;
  std::vector<ContextTile> tiles_;
  std::vector<uint16_t> lane_masks_;
  std::vector<uint64_t> own_;       // by page: slots that the current row writes
  std::vector<uint64_t> unplaced_;  // those of them that have no tile yet
  std::vector<int64_t> columns_;    // by lane of the row's tiles: its column in an explicit mask
  bool keeps_columns_ = false;
  int64_t chunk_of_row_ = -1;      // index of the last chunk, in units of 256 slots of the table
};

}  // namespace quire
