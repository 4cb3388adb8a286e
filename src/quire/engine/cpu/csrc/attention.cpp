#include "attention.h"

#include <algorithm>
#include <limits>
#include <memory>

namespace quire {
namespace {

constexpr int kParts = static_cast<int>(kTileSlots) / kWidth;  // vectors that hold 16 lanes
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Register blocks: so many query rows at a time share a load of K, or of V.
#if defined(__AVX512F__)
constexpr int kScoreRows = 8, kValueRows = 4, kValueVectors = 4;
#elif defined(__AVX2__)
constexpr int kScoreRows = 2, kValueRows = 4, kValueVectors = 2;
#else
constexpr int kScoreRows = 1, kValueRows = 2, kValueVectors = 2;
#endif

constexpr int64_t kSharesPerThread = 8;
constexpr int64_t kQueryRows = 32;  // query rows (queries times heads) of an item, at most or so

// Elements 2i and 2i + 1 along the paired axis: of f32 they are `distance` apart, of bf16 they lie
// side by side.
inline void load_pair(const float* source, int64_t distance, F32& even, F32& odd) {
  even = load(source);
  odd = load(source + distance);
}
inline void load_pair(const bf16* source, int64_t, F32& even, F32& odd) {
  const I32 bits = load_as<I32>(source);
  even = reinterpret_cast<F32>(bits << 16);
  odd = reinterpret_cast<F32>(bits & static_cast<int32_t>(0xffff0000));
}
// Pairs of f32 begin at element 2i * width of a row, those of bf16 as well, but each vector of them
// is twice as wide.
template <class T>
constexpr int64_t pair_step = sizeof(T) == 4 ? 1 : 2;

// Tiles of one row lie anywhere, and are read faster than memory answers: while one is worked on, the
// one so many bytes ahead is asked for, K first, then V, then K of what the thread does next.
constexpr int64_t kFetchBytes = 4096;

int64_t tiles_ahead(int64_t head_bytes) {
  return std::max<int64_t>((kFetchBytes + head_bytes - 1) / head_bytes, 1);
}

// Lines of 64 bytes from `source` on.
inline void prefetch(const void* source, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64)
    __builtin_prefetch(static_cast<const char*>(source) + i);
}

// Scores of one tile for `Rows` query rows: q is [Rows][padded_dim], scores have stride `stride`.
template <class T, int Rows>
void score_tile(const float* q, int64_t padded_dim, const T* keys, const T* next, float* scores,
                int64_t stride) {
  F32 even_sum[Rows][kParts] = {}, odd_sum[Rows][kParts] = {};
  for (int64_t d = 0; d < padded_dim; d += 2) {
    const T* pair = keys + d * kTileSlots;
    prefetch(next + d * kTileSlots, 2 * kTileSlots * static_cast<int64_t>(sizeof(T)));
    for (int part = 0; part < kParts; part++) {
      F32 even, odd;
      load_pair(pair + part * kWidth * pair_step<T>, kTileSlots, even, odd);
      for (int row = 0; row < Rows; row++) {
        even_sum[row][part] = fma(broadcast(q[row * padded_dim + d]), even, even_sum[row][part]);
        odd_sum[row][part] = fma(broadcast(q[row * padded_dim + d + 1]), odd, odd_sum[row][part]);
      }
    }
  }
  for (int row = 0; row < Rows; row++)
    for (int part = 0; part < kParts; part++)
      store(scores + row * stride + part * kWidth, even_sum[row][part] + odd_sum[row][part]);
}

template <class T, int Rows = kScoreRows>
void score_rows(int64_t num_rows, const float* q, int64_t padded_dim, const T* keys, const T* next,
                float* scores, int64_t stride) {
  int64_t row = 0;
  for (; row + Rows <= num_rows; row += Rows)
    score_tile<T, Rows>(q + row * padded_dim, padded_dim, keys, next, scores + row * stride,
                        stride);
  if constexpr (Rows > 1)
    score_rows<T, Rows - 1>(num_rows - row, q + row * padded_dim, padded_dim, keys, next,
                            scores + row * stride, stride);
}

// One tile of V of one KV head as the products need it.
template <class T>
struct ValueTile {
  const T* values;
  const T* next;  // to be prefetched
  uint32_t lanes;
};

// out[Rows][Vectors * kWidth] += probabilities . V, slot by slot.
template <class T, int Rows, int Vectors>
void add_values(const ValueTile<T>& tile, int64_t d, int64_t padded_dim, const float* p,
                int64_t stride, float* out) {
  F32 sums[Rows][Vectors];
  for (int row = 0; row < Rows; row++)
    for (int i = 0; i < Vectors; i++) sums[row][i] = load(out + row * padded_dim + d + i * kWidth);
  const T* values = tile.values + d * pair_step<T>;
  const T* next = tile.next + d * pair_step<T>;
  for (uint32_t lanes = tile.lanes, lane = 0; lanes; lanes >>= 2, lane += 2) {
    prefetch(next + lane * padded_dim, Vectors * 64 * kWidth / 16);
    if (sizeof(T) == 4) prefetch(next + (lane + 1) * padded_dim, Vectors * 64 * kWidth / 16);
    if (!(lanes & 3)) continue;
    F32 even[Vectors], odd[Vectors];
    for (int i = 0; i < Vectors; i++)
      load_pair(values + lane * padded_dim + i * kWidth * pair_step<T>, padded_dim, even[i], odd[i]);
    if (lanes & 1)
      for (int row = 0; row < Rows; row++) {
        const F32 weight = broadcast(p[row * stride + lane]);
        for (int i = 0; i < Vectors; i++) sums[row][i] = fma(weight, even[i], sums[row][i]);
      }
    if (lanes & 2)
      for (int row = 0; row < Rows; row++) {
        const F32 weight = broadcast(p[row * stride + lane + 1]);
        for (int i = 0; i < Vectors; i++) sums[row][i] = fma(weight, odd[i], sums[row][i]);
      }
  }
  for (int row = 0; row < Rows; row++)
    for (int i = 0; i < Vectors; i++) store(out + row * padded_dim + d + i * kWidth, sums[row][i]);
}

template <class T, int Rows, int Vectors = kValueVectors>
void add_value_columns(const ValueTile<T>& tile, int64_t d, int64_t padded_dim, const float* probs,
                       int64_t stride, float* out) {
  for (; d + Vectors * kWidth <= padded_dim; d += Vectors * kWidth)
    add_values<T, Rows, Vectors>(tile, d, padded_dim, probs, stride, out);
  if constexpr (Vectors > 1)
    add_value_columns<T, Rows, Vectors / 2>(tile, d, padded_dim, probs, stride, out);
}

template <class T, int Rows = kValueRows>
void add_value_rows(int64_t num_rows, const ValueTile<T>& tile, int64_t padded_dim,
                    const float* probs, int64_t stride, float* out) {
  int64_t row = 0;
  for (; row + Rows <= num_rows; row += Rows)
    add_value_columns<T, Rows>(tile, 0, padded_dim, probs + row * stride, stride,
                               out + row * padded_dim);
  if constexpr (Rows > 1)
    add_value_rows<T, Rows - 1>(num_rows - row, tile, padded_dim, probs + row * stride, stride,
                                out + row * padded_dim);
}

// Soft-cap and mask of one row's scores, in place; returns the largest of them.
float mask_scores(float* scores, int64_t num_tiles, const uint16_t* lanes, float softcap) {
  F32 largest = broadcast(kNothing);
  for (int64_t tile = 0; tile < num_tiles; tile++)
    for (int part = 0; part < kParts; part++) {
      float* at = scores + tile * kTileSlots + part * kWidth;
      F32 score = load(at);
      if (softcap > 0) score = softcap * tanh(score / softcap);
      score = select(static_cast<uint32_t>(lanes[tile]) >> (part * kWidth), score,
                     broadcast(kNothing));
      store(at, score);
      largest = max(score, largest);
    }
  return reduce_max(largest);
}

// Scores become exp(score - maximum), in place; returns their sum. `in_order`: slot after slot, so
// that the lanes that slots happen to lie in do not matter.
float exponentials(float* scores, int64_t num_tiles, float maximum, bool in_order) {
  F32 sum = {};
  for (int64_t i = 0; i < num_tiles * kTileSlots; i += kWidth) {
    const F32 p = exp(load(scores + i) - maximum);
    store(scores + i, p);
    sum += p;
  }
  if (!in_order) return reduce_add(sum);
  float total = 0;
  for (int64_t i = 0; i < num_tiles * kTileSlots; i++) total += scores[i];
  return total;
}

void scale_row(float* row, int64_t size, float factor) {
  for (int64_t i = 0; i < size; i += kWidth) store(row + i, load(row + i) * factor);
}

// Memory of one thread, grown as needed.
struct Scratch {
  std::vector<float> q, scores, out, maxima, sums;
  std::vector<const void*> heads;  // one KV head of one tile: see find_heads
  ChunkLanes chunk;
};

// Fills scratch.heads in the order in which they are read: K of the chunk's tiles, the KV heads of each
// side by side, then V, then `ahead` pointers to what comes next and is prefetched: K of the row's next
// chunk, or of the block that follows on this thread (or null).
template <class T>
void find_heads(const AttentionStep& step, const LayerCache& cache, const QueryBlock& block,
                const QueryBlock* following, int64_t ahead, Scratch& scratch) {
  const KVShape& shape = step.shape;
  const AttentionContext& context = *step.context;
  const ChunkLanes& chunk = scratch.chunk;
  const auto add = [&](void* memory, const QueryBlock& of, int64_t first, int64_t last,
                       int64_t limit) {
    for (int64_t i = first; i < last; i++) {
      const T* tile = static_cast<const T*>(memory) + context.tile(i).tile * shape.tile_elements();
      for (int64_t head = 0; head < of.num_kv_heads && limit > 0; head++, limit--)
        scratch.heads.push_back(tile + (of.kv_head + head) * shape.head_elements());
    }
    return limit;
  };
  const AttentionContext::Row& row = context.row(block.row);
  const int64_t first = chunk.first_tile, last = first + chunk.num_tiles;
  const int64_t count = chunk.num_tiles * block.num_kv_heads;
  scratch.heads.clear();
  add(cache.keys, block, first, last, count);
  add(cache.values, block, first, last, count);
  ahead = add(cache.keys, block, last, row.first_tile + row.num_tiles, ahead);
  if (following) {
    const AttentionContext::Row& next = context.row(following->row);
    ahead = add(cache.keys, *following, next.first_tile, next.first_tile + next.num_tiles, ahead);
  }
  for (; ahead > 0; ahead--) scratch.heads.push_back(scratch.heads.back());
}

// Query rows of a block: KV head by KV head, of each the queries, of each the heads that share it.
struct BlockRows {
  const QueryBlock& block;
  int64_t heads;  // query heads of a KV head

  int64_t per_kv_head() const { return block.num_queries * heads; }
  int64_t count() const { return block.num_kv_heads * per_kv_head(); }
  int64_t query(int64_t row) const { return row % per_kv_head() / heads; }
  int64_t head(int64_t row) const {
    return (block.kv_head + row / per_kv_head()) * heads + row % heads;
  }
};

// Queries times the scale, padded, and the state of an empty softmax.
void begin_rows(const AttentionStep& step, const LayerAttention& layer, const BlockRows& rows,
                const float* q, int64_t q_stride, Scratch& scratch) {
  const int64_t dim = step.shape.padded_dim, size = step.shape.head_dim, count = rows.count();
  scratch.q.assign(static_cast<size_t>(count * dim), 0.0f);
  scratch.out.assign(static_cast<size_t>(count * dim), 0.0f);
  scratch.maxima.assign(static_cast<size_t>(count), kNothing);
  scratch.sums.assign(static_cast<size_t>(count), 0.0f);
  for (int64_t row = 0; row < count; row++) {
    const float* source =
        q + (rows.block.first_token + rows.query(row)) * q_stride + rows.head(row) * size;
    float* target = scratch.q.data() + row * dim;
    for (int64_t d = 0; d < size; d += kWidth)
      store_n(target + d, load_n(source + d, size - d) * layer.scale, size - d);
    if (layer.sinks) {
      scratch.maxima[static_cast<size_t>(row)] = layer.sinks[rows.head(row)];
      scratch.sums[static_cast<size_t>(row)] = 1.0f;
    }
  }
}

// Scores of a chunk become its part of the softmax; what was summed before is scaled to it.
void soften_rows(const LayerAttention& layer, const BlockRows& rows, int64_t dim, bool in_order,
                 Scratch& scratch) {
  const int64_t num_tiles = scratch.chunk.num_tiles, stride = num_tiles * kTileSlots;
  for (int64_t row = 0; row < rows.count(); row++) {
    float* scores = scratch.scores.data() + row * stride;
    float& maximum = scratch.maxima[static_cast<size_t>(row)];
    const uint16_t* lanes = scratch.chunk.lanes.data() + rows.query(row) * num_tiles;
    const float largest = mask_scores(scores, num_tiles, lanes, layer.softcap);
    const float next = std::max(maximum, largest);
    if (std::all_of(lanes, lanes + num_tiles, [](uint16_t seen) { return seen == 0; })) {
      std::fill(scores, scores + stride, 0.0f);
      continue;
    }
    const float total = exponentials(scores, num_tiles, next, in_order);
    if (next != maximum) {
      const float factor = std::exp(maximum - next);
      scratch.sums[static_cast<size_t>(row)] *= factor;
      scale_row(scratch.out.data() + row * dim, dim, factor);
      maximum = next;
    }
    scratch.sums[static_cast<size_t>(row)] += total;
  }
}

template <class T>
void attend_block(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                  const QueryBlock& block, const QueryBlock* following, const float* q,
                  int64_t q_stride, float* out, int64_t out_stride) {
  static thread_local Scratch scratch;
  const KVShape& shape = step.shape;
  const int64_t dim = shape.padded_dim;
  const BlockRows rows{block, step.num_heads / shape.num_kv_heads};
  const int64_t num_rows = rows.per_kv_head();
  begin_rows(step, layer, rows, q, q_stride, scratch);
  const bool in_order = step.ordering == Ordering::kBatchInvariant && step.page_size % kTileSlots;
  const AttentionContext::Row& row_context = step.context->row(block.row);
  const int64_t ahead = tiles_ahead(shape.head_elements() * static_cast<int64_t>(sizeof(T)));
  ChunkLanes& chunk = scratch.chunk;
  for (int64_t index = row_context.first_chunk; index < row_context.last_chunk; index++) {
    chunk.find(step, block, index, layer.window);
    const int64_t num_tiles = chunk.num_tiles, stride = num_tiles * kTileSlots;
    if (num_tiles == 0) continue;
    scratch.scores.resize(static_cast<size_t>(rows.count() * stride));
    find_heads<T>(step, cache, block, following, ahead, scratch);
    const auto* at = reinterpret_cast<const T* const*>(scratch.heads.data());
    for (int64_t tile = 0; tile < num_tiles; tile++)
      for (int64_t first = 0; first < rows.count(); first += num_rows, at++)
        score_rows<T>(num_rows, scratch.q.data() + first * dim, dim, at[0], at[ahead],
                      scratch.scores.data() + first * stride + tile * kTileSlots, stride);
    soften_rows(layer, rows, dim, in_order, scratch);
    for (int64_t tile = 0; tile < num_tiles; tile++)
      for (int64_t first = 0; first < rows.count(); first += num_rows, at++)
        add_value_rows<T>(num_rows,
                          {at[0], at[ahead], step.context->tile(chunk.first_tile + tile).lanes},
                          dim, scratch.scores.data() + first * stride + tile * kTileSlots, stride,
                          scratch.out.data() + first * dim);
  }
  for (int64_t row = 0; row < rows.count(); row++) {
    float* target = out + (block.first_token + rows.query(row)) * out_stride +
                    rows.head(row) * shape.head_dim;
    const float sum = scratch.sums[static_cast<size_t>(row)];
    const float factor = sum > 0 ? 1.0f / sum : (sum == 0 ? 0.0f : sum);
    for (int64_t d = 0; d < shape.head_dim; d += kWidth)
      store_n(target + d, load(scratch.out.data() + row * dim + d) * factor, shape.head_dim - d);
  }
}

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

void AttentionWork::plan(const AttentionStep& step, int num_threads) {
  items_.clear();
  const StepRows& rows = *step.rows;
  const int64_t heads = step.num_heads / step.shape.num_kv_heads;
  const int64_t vector_queries = std::max<int64_t>(1, kQueryRows / heads);
  const bool matrix_fits = has_matrix_attention() && step.shape.type == KVType::kBF16 &&
                           step.shape.padded_dim % 32 == 0 && step.ordering == Ordering::kFastest;
  // The KV heads of a tile lie side by side, so memory is read faster when one thread takes them all;
  // but every thread should have its share.
  const int64_t most = rows.num_rows * step.shape.num_kv_heads / (kSharesPerThread * num_threads);
  const int64_t together = std::clamp<int64_t>(most, 1, step.shape.num_kv_heads);
  for (int64_t row = 0; row < rows.num_rows; row++) {
    const int64_t num_new = rows.row_starts[row + 1] - rows.row_starts[row];
    const bool matrix = matrix_fits && num_new >= kMatrixQueries / 2;
    const int64_t size = matrix ? kMatrixQueries : vector_queries;
    const int64_t num_heads = num_new == 1 ? together : 1;
    for (int64_t first = 0; first < num_new; first += size)
      for (int64_t head = 0; head < step.shape.num_kv_heads; head += num_heads)
        items_.push_back({row, first, std::min(size, num_new - first), head,
                          std::min(num_heads, step.shape.num_kv_heads - head), matrix});
  }
  // The last queries of a row see most: they go first, so that threads end together.
  std::reverse(items_.begin(), items_.end());
}

void AttentionWork::attend(const AttentionStep& step, const LayerAttention& layer,
                           const LayerCache& cache, const float* q, int64_t q_stride, float* out,
                           int64_t out_stride, Team& team, int thread) const {
  const auto num_items = static_cast<int64_t>(items_.size());
  // Several at a time, so that what follows is known; few enough that the threads end together.
  const int64_t grain = std::clamp<int64_t>(num_items / (kSharesPerThread * team.size()), 1, 4);
  const auto block_of = [&](int64_t i) {
    const Item& item = items_[static_cast<size_t>(i)];
    return QueryBlock{item.row, step.rows->row_starts[item.row] + item.first_query,
                      item.first_query, item.num_queries, item.kv_head,
                      item.num_kv_heads};
  };
  team.share(thread, num_items, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const QueryBlock block = block_of(i), next = block_of(std::min(i + 1, last - 1));
      const QueryBlock* following = i + 1 < last ? &next : nullptr;
      if (items_[static_cast<size_t>(i)].matrix)
        attend_matrix(step, layer, cache, block, q, q_stride, out, out_stride);
      else if (step.shape.type == KVType::kBF16)
        attend_block<bf16>(step, layer, cache, block, following, q, q_stride, out, out_stride);
      else
        attend_block<float>(step, layer, cache, block, following, q, q_stride, out, out_stride);
    }
  });
}

}  // namespace quire
