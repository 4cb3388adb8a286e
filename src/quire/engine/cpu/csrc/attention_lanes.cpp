// Owns which lanes of a chunk's tiles each query of a block sees. Reference: attention_context.h.
#include <algorithm>
#include <limits>

#include "attention.h"

namespace quire {
namespace {

// Lanes of `tile` at positions in (lowest, highest).
uint32_t lanes_between(const int32_t* positions, const ContextTile& tile, int64_t lowest,
                       int64_t highest) {
  uint32_t seen = 0;
  for (int lane = 0; lane < kTileSlots; lane++)
    seen |= static_cast<uint32_t>(positions[lane] < highest && positions[lane] > lowest) << lane;
  return seen & tile.lanes;
}

}  // namespace

void ChunkLanes::find(const AttentionStep& step, const QueryBlock& block, int64_t chunk,
                      int64_t window) {
  const AttentionContext& context = *step.context;
  const AttentionContext::Row& row = context.row(block.row);
  const AttentionContext::Chunk& part = context.chunk(chunk);
  const int32_t* query_positions = step.rows->positions + block.first_token;
  const int64_t* query_slots = step.rows->slots + block.first_token;
  first_tile = part.first_tile;
  num_tiles = part.num_tiles;
  if (row.mask < 0) trim(context, query_positions, block.num_queries, window);
  lanes.resize(static_cast<size_t>(block.num_queries * num_tiles));
  bool seen_any = false;
  for (int64_t query = 0; query < block.num_queries; query++) {
    uint16_t* of_query = lanes.data() + query * num_tiles;
    const int64_t position = query_positions[query];
    const int64_t lowest = window > 0 ? position - window : -1;
    if (row.mask >= 0) {  // in place of the rule about higher positions; windows hide what they hide
      const uint16_t* source = context.lane_masks(
          row.mask + (block.first_query + query) * row.num_tiles + first_tile - row.first_tile);
      for (int64_t i = 0; i < num_tiles; i++) {
        const ContextTile& tile = context.tile(first_tile + i);
        uint32_t seen = source[i];
        if (tile.first_position <= lowest)
          seen &= lanes_between(step.slot_positions + tile.tile * kTileSlots, tile, lowest,
                                std::numeric_limits<int64_t>::max());
        of_query[i] = static_cast<uint16_t>(seen);
        seen_any |= seen != 0;
      }
      continue;
    }
    for (int64_t i = 0; i < num_tiles; i++) {
      const ContextTile& tile = context.tile(first_tile + i);
      uint32_t seen = 0;
      if (tile.last_position < position && tile.first_position > lowest) {
        seen = tile.lanes;
      } else if (tile.first_position <= position && tile.last_position > lowest) {
        seen = lanes_between(step.slot_positions + tile.tile * kTileSlots, tile, lowest, position);
        if (tile.tile == query_slots[query] / kTileSlots)
          seen |= tile.lanes & 1u << (query_slots[query] % kTileSlots);
      }
      of_query[i] = static_cast<uint16_t>(seen);
      seen_any |= seen != 0;
    }
  }
  if (!seen_any) num_tiles = 0;
}

// Leaves off the first and last tiles that no query can see.
void ChunkLanes::trim(const AttentionContext& context, const int32_t* positions,
                      int64_t num_queries, int64_t window) {
  const auto [lowest, highest] = std::minmax_element(positions, positions + num_queries);
  while (num_tiles > 0 && context.tile(first_tile + num_tiles - 1).first_position > *highest)
    num_tiles--;
  while (num_tiles > 0 && window > 0 &&
         context.tile(first_tile).last_position <= *lowest - window) {
    first_tile++;
    num_tiles--;
  }
}

}  // namespace quire
