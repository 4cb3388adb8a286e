// Owns which lanes of a chunk's tiles each query of a block sees.
// Reference: attention_context.h.
#include <algorithm>
#include <limits>

#include "attention.h"

namespace quire {
namespace {

// Bit i: lane i of a comparison's result, which is all ones or zero.
uint32_t lanes_of(I32 condition) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(condition));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(condition)));
#else
  uint32_t lanes = 0;
  for (int i = 0; i < kWidth; i++) lanes |= static_cast<uint32_t>(condition[i] & 1) << i;
  return lanes;
#endif
}

// Lanes of `tile` at positions in (lowest, highest).
uint32_t lanes_between(const int32_t* positions, const ContextTile& tile, int64_t lowest,
                       int64_t highest) {
  constexpr int64_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const I32 below = broadcast(static_cast<int32_t>(std::max(lowest, kLeast)));
  const I32 above = broadcast(static_cast<int32_t>(std::min(highest, kMost)));
  uint32_t seen = 0;
  for (int lane = 0; lane < kTileSlots; lane += kWidth) {
    const I32 position = load_as<I32>(positions + lane);
    seen |= lanes_of((position > below) & (position < above)) << lane;
  }
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
    if (row.mask >= 0) {  // replaces the causal rule; windows still apply
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

// Drops the first and last tiles if no query can see them.
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
