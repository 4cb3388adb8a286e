#include "attention_context.h"

#include <algorithm>
#include <limits>

namespace quire {

void AttentionContext::build(const StepRows& rows, const PageTablesView& tables, int64_t page_size,
                             const int32_t* positions) {
  rows_.clear();
  chunks_.clear();
  tiles_.clear();
  lane_masks_.clear();
  int64_t last_slot = 0;
  for (int64_t t = 0; t < rows.num_tokens; t++) last_slot = std::max(last_slot, rows.slots[t]);
  const size_t num_pages = static_cast<size_t>(last_slot / page_size + 1);
  if (own_.size() < num_pages) {
    own_.resize(num_pages, 0);
    unplaced_.resize(num_pages, 0);
  }
  for (int64_t row = 0; row < rows.num_rows; row++) {
    const RowMask* mask = nullptr;
    for (int64_t i = 0; i < rows.num_masks; i++)
      if (rows.masks[i].row == row) mask = rows.masks + i;
    add_row(rows, row, tables, page_size, mask);
  }
  measure(positions);
}

void AttentionContext::add_row(const StepRows& rows, int64_t index, const PageTablesView& tables,
                               int64_t page_size, const RowMask* mask) {
  const int64_t first = rows.row_starts[index], last = rows.row_starts[index + 1];
  for (int64_t t = first; t < last; t++) {
    const size_t page = static_cast<size_t>(rows.slots[t] / page_size);
    own_[page] |= uint64_t{1} << (rows.slots[t] % page_size);
    unplaced_[page] = own_[page];
  }
  rows_.push_back({static_cast<int64_t>(chunks_.size()), 0, static_cast<int64_t>(tiles_.size()), 0,
                   -1});
  chunk_of_row_ = -1;
  keeps_columns_ = mask != nullptr;
  columns_.clear();
  Row& row = rows_.back();
  const int64_t table = rows.tables[index];
  const int64_t num_pages = table < 0 ? 0 : tables.num_pages[table];
  for (int64_t entry = 0; entry < num_pages; entry++) {
    const int64_t block = tables.blocks[table * tables.width + entry];
    uint64_t word = tables.visible[table * tables.width + entry];
    if (static_cast<size_t>(block) < own_.size() && own_[static_cast<size_t>(block)]) {
      const size_t page = static_cast<size_t>(block);
      word = (word & ~own_[page]) | unplaced_[page];
      unplaced_[page] = 0;
    }
    add_lanes(block * page_size, word, entry * page_size);
  }
  for (int64_t t = first; t < last; t++) {  // slots that are in no page of the table
    const size_t page = static_cast<size_t>(rows.slots[t] / page_size);
    const uint64_t bit = uint64_t{1} << (rows.slots[t] % page_size);
    if (unplaced_[page] & bit)
      add_lanes(rows.slots[t], 1, num_pages * page_size + t - first);
    own_[page] &= ~bit;
    unplaced_[page] &= ~bit;
  }
  row.last_chunk = static_cast<int64_t>(chunks_.size());
  row.num_tiles = static_cast<int64_t>(tiles_.size()) - row.first_tile;
  if (mask) add_mask(row, rows, index, *mask);
}

// The bits of `word` are slots from `first_slot` on, which are at `table_slot` of the row's table.
void AttentionContext::add_lanes(int64_t first_slot, uint64_t word, int64_t table_slot) {
  if (word == 0) return;
  if (table_slot / kChunkSlots != chunk_of_row_) {
    chunk_of_row_ = table_slot / kChunkSlots;
    chunks_.push_back({static_cast<int64_t>(tiles_.size()), 0, chunk_of_row_});
  }
  Chunk& chunk = chunks_.back();
  for (int64_t slot = first_slot, column = table_slot; word;) {
    const int64_t lane = slot % kTileSlots, count = kTileSlots - lane;
    const uint32_t lanes = static_cast<uint32_t>((word & ((uint64_t{1} << count) - 1)) << lane);
    if (lanes) {
      // Adjacent small pages share a tile, as long as lanes follow the table's order.
      ContextTile* before = chunk.num_tiles ? &tiles_.back() : nullptr;
      if (before && before->tile == slot / kTileSlots && (lanes & (0u - lanes)) > before->lanes) {
        before->lanes |= lanes;
      } else {
        tiles_.push_back({slot / kTileSlots, lanes, 0, 0});
        chunk.num_tiles++;
        if (keeps_columns_) columns_.resize(columns_.size() + kTileSlots);
      }
      for (int64_t i = lane; keeps_columns_ && i < kTileSlots; i++)
        if (lanes >> i & 1) columns_[columns_.size() - kTileSlots + i] = column + i - lane;
    }
    word >>= count;
    slot += count;
    column += count;
  }
}

// Lane masks of a row with an explicit mask, from the mask columns of its lanes.
void AttentionContext::add_mask(Row& row, const StepRows& rows, int64_t index,
                                const RowMask& mask) {
  const int64_t first = rows.row_starts[index], num_new = rows.row_starts[index + 1] - first;
  const int64_t first_new = mask.num_columns - num_new;
  // slots that the row writes use their columns of new tokens
  for (int64_t t = 0; t < num_new; t++) {
    const int64_t slot = rows.slots[first + t], lane = slot % kTileSlots;
    for (int64_t i = 0; i < row.num_tiles; i++) {
      const ContextTile& tile = tiles_[static_cast<size_t>(row.first_tile + i)];
      if (tile.tile != slot / kTileSlots || !(tile.lanes >> lane & 1)) continue;
      columns_[static_cast<size_t>(i * kTileSlots + lane)] = first_new + t;
    }
  }
  row.mask = static_cast<int64_t>(lane_masks_.size());
  lane_masks_.resize(lane_masks_.size() + static_cast<size_t>(num_new * row.num_tiles));
  uint16_t* lane_masks = lane_masks_.data() + row.mask;
  for (int64_t t = 0; t < num_new; t++) {
    const uint8_t* shown = mask.shown + t * mask.num_columns;
    for (int64_t i = 0; i < row.num_tiles; i++) {
      const uint32_t lanes = tiles_[static_cast<size_t>(row.first_tile + i)].lanes;
      uint32_t seen = 0;
      for (int64_t lane = 0; lane < kTileSlots; lane++)
        if ((lanes >> lane & 1) && shown[columns_[static_cast<size_t>(i * kTileSlots + lane)]])
          seen |= 1u << lane;
      lane_masks[t * row.num_tiles + i] = static_cast<uint16_t>(seen);
    }
  }
}

void AttentionContext::measure(const int32_t* positions) {
  for (ContextTile& tile : tiles_) {
    int32_t lowest = std::numeric_limits<int32_t>::max(), highest = -1;
    const int32_t* of_tile = positions + tile.tile * kTileSlots;
    for (int lane = 0; lane < kTileSlots; lane++) {
      if (!(tile.lanes >> lane & 1)) continue;
      lowest = std::min(lowest, of_tile[lane]);
      highest = std::max(highest, of_tile[lane]);
    }
    tile.first_position = lowest;
    tile.last_position = highest;
  }
}

}  // namespace quire
