// Vector kernels of attention: register blocks of query rows over tiles of K and V, and the softmax
// between them.
#include <algorithm>
#include <limits>

#include "activation.h"
#include "attention.h"
#include "attention_softmax.h"

namespace quire {
namespace {

constexpr int kParts = static_cast<int>(kTileSlots) / kWidth;  // vectors that hold 16 lanes
constexpr uint32_t kAllLanes = (1u << kTileSlots) - 1;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Register blocks: this many query rows share one load of K, or of V.
#if defined(__AVX512F__)
constexpr int kScoreRows = 8, kValueRows = 4, kValueVectors = 4;
constexpr int kTwoTileRows = 6;  // of scores, with two tiles of K at once
#elif defined(__AVX2__)
constexpr int kScoreRows = 2, kValueRows = 4, kValueVectors = 2;
constexpr int kTwoTileRows = 0;
#else
constexpr int kScoreRows = 1, kValueRows = 2, kValueVectors = 2;
constexpr int kTwoTileRows = 0;
#endif

// The tiles of a row are scattered in memory and consumed faster than memory latency allows. While
// one is processed, the tile this many bytes ahead is prefetched: first K, then V, then K of the
// thread's next work.
constexpr int64_t kFetchBytes = 4096;

int64_t tiles_ahead(int64_t head_bytes) {
  return std::max<int64_t>((kFetchBytes + head_bytes - 1) / head_bytes, 1);
}

// Prefetches 64-byte lines from `source` on into L2, which allows more outstanding lines than L1
// and is close enough.
inline void fetch_lines(const void* source, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64)
    __builtin_prefetch(static_cast<const char*>(source) + i, 0, 2);
}

// Elements 2i and 2i + 1 along the paired axis: in f32 they are `distance` apart, in bf16 adjacent.
inline void load_pair(const float* source, int64_t distance, F32& even, F32& odd) {
  even = load(source);
  odd = load(source + distance);
}
inline void load_pair(const bf16* source, int64_t, F32& even, F32& odd) {
  const I32 bits = load_as<I32>(source);
  even = reinterpret_cast<F32>(bits << 16);
  odd = reinterpret_cast<F32>(bits & static_cast<int32_t>(0xffff0000));
}
// Pairs of f32 begin at element 2i * width of a row. So do those of bf16, but each of their vectors
// is twice as wide.
template <class T>
constexpr int64_t pair_step = sizeof(T) == 4 ? 1 : 2;
template <class T>
constexpr int64_t kPairBytes = 2 * kTileSlots * static_cast<int64_t>(sizeof(T));  // of K of one tile

// Scores of one tile for `Rows` query rows: q is [Rows][padded_dim], scores have stride `stride`.
// `next`: the tile that is prefetched, or null.
template <class T, int Rows>
void score_tile(const float* q, int64_t padded_dim, const T* keys, const T* next, float* scores,
                int64_t stride) {
  // All loops over the sums are unrolled early, so that these live in registers only (decision 139).
  F32 even_sum[Rows][kParts], odd_sum[Rows][kParts];
#pragma GCC unroll 16
  for (int row = 0; row < Rows; row++)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; part++) even_sum[row][part] = odd_sum[row][part] = F32{};
  for (int64_t d = 0; d < padded_dim; d += 2) {
    const T* pair = keys + d * kTileSlots;
    if (next) fetch_lines(next + d * kTileSlots, kPairBytes<T>);
#pragma GCC unroll 4
    for (int part = 0; part < kParts; part++) {
      F32 even, odd;
      load_pair(pair + part * kWidth * pair_step<T>, kTileSlots, even, odd);
#pragma GCC unroll 16
      for (int row = 0; row < Rows; row++) {
        even_sum[row][part] = fma(broadcast(q[row * padded_dim + d]), even, even_sum[row][part]);
        odd_sum[row][part] = fma(broadcast(q[row * padded_dim + d + 1]), odd, odd_sum[row][part]);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; row++)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; part++)
      store(scores + row * stride + part * kWidth, even_sum[row][part] + odd_sum[row][part]);
}

template <class T, int Rows = kScoreRows>
void score_rows(int64_t num_rows, const float* q, int64_t padded_dim, const T* keys, const T* next,
                float* scores, int64_t stride) {
  int64_t row = 0;
  for (; row + Rows <= num_rows; row += Rows, next = nullptr)
    score_tile<T, Rows>(q + row * padded_dim, padded_dim, keys, next, scores + row * stride,
                        stride);
  if constexpr (Rows > 1)
    score_rows<T, Rows - 1>(num_rows - row, q + row * padded_dim, padded_dim, keys, next,
                            scores + row * stride, stride);
}

// The same of two tiles, whose scores are adjacent, where a tile is one vector wide: a broadcast query
// serves both.
template <class T, int Rows>
void score_two(const float* q, int64_t padded_dim, const T* const* keys, const T* const* next,
                float* scores, int64_t stride) {
  F32 even_sum[Rows][2], odd_sum[Rows][2];
#pragma GCC unroll 16
  for (int row = 0; row < Rows; row++)
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) even_sum[row][i] = odd_sum[row][i] = F32{};
  for (int64_t d = 0; d < padded_dim; d += 2) {
    F32 even[2], odd[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      load_pair(keys[i] + d * kTileSlots, kTileSlots, even[i], odd[i]);
      if (next) fetch_lines(next[i] + d * kTileSlots, kPairBytes<T>);
    }
#pragma GCC unroll 16
    for (int row = 0; row < Rows; row++) {
      const F32 a = broadcast(q[row * padded_dim + d]), b = broadcast(q[row * padded_dim + d + 1]);
#pragma GCC unroll 2
      for (int i = 0; i < 2; i++) {
        even_sum[row][i] = fma(a, even[i], even_sum[row][i]);
        odd_sum[row][i] = fma(b, odd[i], odd_sum[row][i]);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; row++)
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
      store(scores + row * stride + i * kWidth, even_sum[row][i] + odd_sum[row][i]);
}

template <class T, int Rows = kTwoTileRows>
void score_rows_of_two(int64_t num_rows, const float* q, int64_t padded_dim, const T* const* keys,
                     const T* const* next, float* scores, int64_t stride) {
  int64_t row = 0;
  for (; row + Rows <= num_rows; row += Rows, next = nullptr)
    score_two<T, Rows>(q + row * padded_dim, padded_dim, keys, next, scores + row * stride, stride);
  if constexpr (Rows > 1)
    score_rows_of_two<T, Rows - 1>(num_rows - row, q + row * padded_dim, padded_dim, keys, next,
                                 scores + row * stride, stride);
}

// One tile of V of one KV head, laid out for the products.
template <class T>
struct ValueTile {
  const T* values;
  const T* next;  // to be prefetched, or null
  uint32_t lanes;
};

// Adds one slot: the probability of each row, at p + row * stride, times its vectors of V.
template <int Rows, int Vectors>
inline void add_lane(const float* p, int64_t stride, const F32 (&values)[Vectors],
                     F32 (&sums)[Rows][Vectors]) {
#pragma GCC unroll 16
  for (int row = 0; row < Rows; row++) {
    const F32 weight = broadcast(p[row * stride]);
#pragma GCC unroll 16
    for (int i = 0; i < Vectors; i++) sums[row][i] = fma(weight, values[i], sums[row][i]);
  }
}

// out[Rows][Vectors * kWidth] += probabilities . V, slot by slot. `whole`: all lanes of the tile
// are seen, as in most tiles; the sums then have no branches between them and stay in registers.
template <class T, int Rows, int Vectors, bool whole>
void add_values(const ValueTile<T>& tile, int64_t d, int64_t padded_dim, const float* p,
                int64_t stride, float* out) {
  F32 sums[Rows][Vectors];  // in registers: see score_tile
#pragma GCC unroll 16
  for (int row = 0; row < Rows; row++)
#pragma GCC unroll 16
    for (int i = 0; i < Vectors; i++) sums[row][i] = load(out + row * padded_dim + d + i * kWidth);
  const T* values = tile.values + d * pair_step<T>;
  const T* next = tile.next ? tile.next + d * pair_step<T> : nullptr;
  for (uint32_t lanes = tile.lanes, lane = 0; lanes; lanes >>= 2, lane += 2) {
    if (whole && next) {
      fetch_lines(next + lane * padded_dim, Vectors * 64 * kWidth / 16);
      if (sizeof(T) == 4) fetch_lines(next + (lane + 1) * padded_dim, Vectors * 64 * kWidth / 16);
    }
    if (!whole && !(lanes & 3)) continue;
    F32 even[Vectors], odd[Vectors];
#pragma GCC unroll 16
    for (int i = 0; i < Vectors; i++)
      load_pair(values + lane * padded_dim + i * kWidth * pair_step<T>, padded_dim, even[i], odd[i]);
    if (whole || (lanes & 1)) add_lane(p + lane, stride, even, sums);
    if (whole || (lanes & 2)) add_lane(p + lane + 1, stride, odd, sums);
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; row++)
#pragma GCC unroll 16
    for (int i = 0; i < Vectors; i++) store(out + row * padded_dim + d + i * kWidth, sums[row][i]);
}

template <class T, int Rows, bool whole, int Vectors = kValueVectors>
void add_value_columns(const ValueTile<T>& tile, int64_t d, int64_t padded_dim, const float* probs,
                       int64_t stride, float* out) {
  for (; d + Vectors * kWidth <= padded_dim; d += Vectors * kWidth)
    add_values<T, Rows, Vectors, whole>(tile, d, padded_dim, probs, stride, out);
  if constexpr (Vectors > 1)
    add_value_columns<T, Rows, whole, Vectors / 2>(tile, d, padded_dim, probs, stride, out);
}

template <class T, bool whole, int Rows = kValueRows>
void add_value_rows(int64_t num_rows, ValueTile<T> tile, int64_t padded_dim, const float* probs,
                    int64_t stride, float* out) {
  int64_t row = 0;
  for (; row + Rows <= num_rows; row += Rows, tile.next = nullptr)
    add_value_columns<T, Rows, whole>(tile, 0, padded_dim, probs + row * stride, stride,
                                      out + row * padded_dim);
  if constexpr (Rows > 1)
    add_value_rows<T, whole, Rows - 1>(num_rows - row, tile, padded_dim, probs + row * stride,
                                       stride, out + row * padded_dim);
}

template <class T>
void add_tile(int64_t num_rows, const ValueTile<T>& tile, int64_t padded_dim, const float* probs,
              int64_t stride, float* out) {
  if (tile.lanes == kAllLanes)
    return add_value_rows<T, true>(num_rows, tile, padded_dim, probs, stride, out);
  fetch_lines(tile.next, padded_dim * kTileSlots * static_cast<int64_t>(sizeof(T)));
  add_value_rows<T, false>(num_rows, tile, padded_dim, probs, stride, out);
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

// Turns scores into exp(score - maximum), in place; returns their sum. `in_order`: slot after slot,
// so that the sum does not depend on the lanes of the slots.
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

// Memory of one thread, grown as needed.
struct Scratch {
  std::vector<float> q, scores, total, part;
  std::vector<const void*> heads;  // one KV head of one tile: see find_heads
  ChunkLanes chunk;
};

// Fills scratch.heads in reading order: K of the chunk's tiles, the KV heads of each tile adjacent,
// then V, then `ahead` pointers to prefetch: K of the row's next chunk, or of this thread's next
// block (or null).
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

// Queries times the scale, padded with zeros.
void load_queries(const AttentionStep& step, float scale, const BlockRows& rows, const float* q,
                  int64_t q_stride, std::vector<float>& out) {
  const int64_t dim = step.shape.padded_dim, size = step.shape.head_dim;
  out.assign(static_cast<size_t>(rows.count() * dim), 0.0f);
  for (int64_t row = 0; row < rows.count(); row++) {
    const float* source =
        q + (rows.block.first_token + rows.query(row)) * q_stride + rows.head(row) * size;
    float* target = out.data() + row * dim;
    for (int64_t d = 0; d < size; d += kWidth)
      store_n(target + d, load_n(source + d, size - d) * scale, size - d);
  }
}

// Prefetches the queries of a block.
void fetch_queries(const AttentionStep& step, const QueryBlock& block, const float* q,
                   int64_t q_stride) {
  const int64_t width = step.num_heads / step.shape.num_kv_heads * step.shape.head_dim;
  const float* first = q + block.first_token * q_stride + block.kv_head * width;
  for (int64_t query = 0; query < block.num_queries; query++)
    fetch_lines(first + query * q_stride,
                block.num_kv_heads * width * static_cast<int64_t>(sizeof(float)));
}

// Turns a chunk's scores into its share of the softmax and rescales the previous sums.
void soften_rows(const LayerAttention& layer, const BlockRows& rows, bool in_order, Scratch& scratch,
                 const SoftmaxRows& state) {
  const int64_t num_tiles = scratch.chunk.num_tiles, stride = num_tiles * kTileSlots;
  for (int64_t row = 0; row < rows.count(); row++) {
    float* scores = scratch.scores.data() + row * stride;
    const uint16_t* lanes = scratch.chunk.lanes.data() + rows.query(row) * num_tiles;
    const float maximum = state.maxima[row];
    const float largest = mask_scores(scores, num_tiles, lanes, layer.softcap);
    const float next = std::max(maximum, largest);
    if (std::all_of(lanes, lanes + num_tiles, [](uint16_t seen) { return seen == 0; })) {
      std::fill(scores, scores + stride, 0.0f);
      continue;
    }
    const float total = exponentials(scores, num_tiles, next, in_order);
    if (next != maximum) {
      if (maximum != kNothing) {  // else all sums so far are zero
        const float factor = std::exp(maximum - next);
        state.sums[row] *= factor;
        scale_row(state.out + row * state.dim, state.dim, factor);
      }
      state.maxima[row] = next;
    }
    state.sums[row] += total;
  }
}

// Adds chunks [first, last) of the block's row to `state`; scratch.q holds the queries.
template <class T>
void add_chunks(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                const BlockRows& rows, int64_t first, int64_t last, const QueryBlock* following,
                Scratch& scratch, const SoftmaxRows& state) {
  const bool in_order = step.ordering == Ordering::kBatchInvariant && step.page_size % kTileSlots;
  const int64_t ahead =
      tiles_ahead(step.shape.head_elements() * static_cast<int64_t>(sizeof(T)));
  const int64_t num_rows = rows.per_kv_head(), dim = state.dim;
  ChunkLanes& chunk = scratch.chunk;
  for (int64_t index = first; index < last; index++) {
    chunk.find(step, rows.block, index, layer.window);
    const int64_t num_tiles = chunk.num_tiles, stride = num_tiles * kTileSlots;
    if (num_tiles == 0) continue;
    scratch.scores.resize(static_cast<size_t>(rows.count() * stride));
    find_heads<T>(step, cache, rows.block, following, ahead, scratch);
    const auto* at = reinterpret_cast<const T* const*>(scratch.heads.data());
    int64_t tile = 0;
    // Blocks of many rows are of one KV head, so its tiles are adjacent.
    if constexpr (kTwoTileRows > 0)
      for (const bool by_two = num_rows >= kTwoTileRows && num_rows == rows.count();
           by_two && tile + 2 <= num_tiles; tile += 2, at += 2)
        score_rows_of_two<T>(num_rows, scratch.q.data(), dim, at, at + ahead,
                           scratch.scores.data() + tile * kTileSlots, stride);
    for (; tile < num_tiles; tile++)
      for (int64_t row = 0; row < rows.count(); row += num_rows, at++)
        score_rows<T>(num_rows, scratch.q.data() + row * dim, dim, at[0], at[ahead],
                      scratch.scores.data() + row * stride + tile * kTileSlots, stride);
    soften_rows(layer, rows, in_order, scratch, state);
    for (tile = 0; tile < num_tiles; tile++)
      for (int64_t row = 0; row < rows.count(); row += num_rows, at++)
        add_tile<T>(num_rows,
                    {at[0], at[ahead], step.context->tile(chunk.first_tile + tile).lanes}, dim,
                    scratch.scores.data() + row * stride + tile * kTileSlots, stride,
                    state.out + row * dim);
  }
}

template <class T>
void attend_rows(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                 const QueryBlock& block, const QueryBlock* following, const float* q,
                 int64_t q_stride, float* partial, float* out, int64_t out_stride) {
  static thread_local Scratch scratch;
  const BlockRows rows{block, step.num_heads / step.shape.num_kv_heads};
  const int64_t dim = step.shape.padded_dim;
  load_queries(step, layer.scale, rows, q, q_stride, scratch.q);
  if (following) fetch_queries(step, *following, q, q_stride);
  if (partial) {
    const SoftmaxRows state = softmax_rows(partial, rows.count(), dim);
    begin_softmax(rows, state, block.first_chunk == step.context->row(block.row).first_chunk
                                   ? layer.sinks : nullptr);
    return add_chunks<T>(step, layer, cache, rows, block.first_chunk, block.last_chunk, following,
                         scratch, state);
  }
  scratch.total.resize(static_cast<size_t>(softmax_floats(rows.count(), dim)));
  scratch.part.resize(scratch.total.size());
  const SoftmaxRows total = softmax_rows(scratch.total.data(), rows.count(), dim);
  const SoftmaxRows part = softmax_rows(scratch.part.data(), rows.count(), dim);
  begin_softmax(rows, total, layer.sinks);
  for (int64_t first = block.first_chunk; first < block.last_chunk;) {
    const int64_t last = end_of_part(*step.context, first, block.last_chunk);
    const bool begins = first == block.first_chunk;
    if (!begins) begin_softmax(rows, part, nullptr);
    add_chunks<T>(step, layer, cache, rows, first, last, last < block.last_chunk ? &block : following,
                  scratch, begins ? total : part);
    if (!begins) merge_softmax(rows.count(), total, part);
    first = last;
  }
  end_softmax(step, rows, total, out, out_stride);
}

}  // namespace

void attend_block(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                  const QueryBlock& block, const QueryBlock* following, const float* q,
                  int64_t q_stride, float* partial, float* out, int64_t out_stride) {
  const auto attend =
      step.shape.type == KVType::kBF16 ? attend_rows<bf16> : attend_rows<float>;
  attend(step, layer, cache, block, following, q, q_stride, partial, out, out_stride);
}

}  // namespace quire
