// Owns attention of long rows with products of bf16: 32 queries of one head against 32 slots at a
// time. Queries and probabilities are rounded to bf16, sums are kept in float32.
// Reference: attention.h. Never called where the instruction set has no such products.
#include <algorithm>
#include <limits>

#include "attention.h"
#include "bf16_blocks.h"

namespace quire {

#if !defined(__AVX512BF16__)

bool has_matrix_attention() { return false; }
void attend_matrix(const AttentionStep&, const LayerAttention&, const LayerCache&,
                   const QueryBlock&, const float*, int64_t, float*, int64_t) {}

#else

namespace {

constexpr int64_t kQueries = kMatrixQueries;
static_assert(kQueries == kBlock);
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// 2^x in the lanes of `lanes`, zero in the others. Relative error below 4e-6, far below that of
// rounding to bf16.
inline __m512 power_of_two(__mmask16 lanes, __m512 x) {
  const __m512 rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(1.3534167e-2f);
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(5.2011464e-2f));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(2.4144275e-1f));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(6.9300383e-1f));
  p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(1.0000026f));
  return _mm512_maskz_scalef_ps(lanes, p, x);  // scales by 2^floor(x)
}

struct Scratch {
  std::vector<bf16> q, probs, values;
  std::vector<float> scores, out;
  ChunkLanes chunk;
};

// 64-byte aligned start within a vector that has 64 spare bytes.
template <class T>
T* aligned(std::vector<T>& memory, size_t size) {
  if (memory.size() < size + 64) memory.resize(size + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<T*>((address + 63) / 64 * 64);
}

// V of a chunk, the two tiles of each step of K adjacent: [steps][16][dim][2]. Lanes that no query
// may see become zero, whatever their content.
void gather_values(const AttentionStep& step, const ChunkLanes& chunk, const bf16* values,
                   int64_t num_tiles, bf16* out) {
  const KVShape& shape = step.shape;
  const size_t bytes = static_cast<size_t>(shape.head_elements()) * sizeof(bf16);
  for (int64_t i = 0; i < num_tiles; i++) {
    bf16* target = out + i * shape.head_elements();
    if (i >= chunk.num_tiles) {
      std::memset(target, 0, bytes);
      continue;
    }
    const ContextTile& tile = step.context->tile(chunk.first_tile + i);
    const bf16* source = values + tile.tile * shape.tile_elements();
    if (tile.lanes == 0xffff) {
      std::memcpy(target, source, bytes);
      continue;
    }
    for (int64_t pair = 0; pair < kTileSlots / 2; pair++) {
      const uint32_t both = tile.lanes >> (2 * pair) & 3;
      const __m512i keep = _mm512_set1_epi32(static_cast<int32_t>(
          ((both & 1) ? 0x0000ffffu : 0u) | ((both & 2) ? 0xffff0000u : 0u)));
      for (int64_t d = 0; d < shape.padded_dim; d += 16) {
        const int64_t at = pair * 2 * shape.padded_dim + 2 * d;
        _mm512_storeu_si512(target + at, _mm512_and_si512(keep, _mm512_loadu_si512(source + at)));
      }
    }
  }
}

// Turns products of q and K into scores, where that takes more than a positive factor.
void finish_scores(float* scores, int64_t num_tiles, const LayerAttention& layer) {
  for (float* at = scores; at < scores + num_tiles * kTileSlots; at += kTileSlots) {
    __m512 score = _mm512_mul_ps(_mm512_loadu_ps(at), _mm512_set1_ps(layer.scale));
    if (layer.softcap > 0) score = layer.softcap * tanh(score / layer.softcap);
    _mm512_storeu_ps(at, score);
  }
}

// Turns products of one query into probabilities [stride] in bf16; keeps the running maximum and
// sum. Returns the factor for the sums so far.
float soften(float* scores, bf16* probs, int64_t num_tiles, int64_t padded_tiles,
             const uint16_t* lanes, const LayerAttention& layer, float& maximum, float& sum) {
  constexpr float kLog2E = 1.44269504f;
  float scale = layer.scale;
  if (layer.softcap > 0 || !(scale > 0)) {  // else the largest product is the largest score
    finish_scores(scores, num_tiles, layer);
    scale = 1.0f;
  }
  __m512 largest = _mm512_set1_ps(kNothing);
  for (int64_t i = 0; i < num_tiles; i++)
    largest = _mm512_mask_max_ps(largest, lanes[i], largest,
                                 _mm512_loadu_ps(scores + i * kTileSlots));
  const float next = std::max(maximum, scale * _mm512_reduce_max_ps(largest));
  const __m512 exponents = _mm512_set1_ps(scale * kLog2E);  // exponent of 2 per unit of product
  const __m512 exponent_of_next = _mm512_set1_ps(next * kLog2E);
  __m512 total = _mm512_setzero_ps();
  for (int64_t i = 0; i < num_tiles; i++) {
    const __m512 score = _mm512_loadu_ps(scores + i * kTileSlots);
    const __m512 p = power_of_two(lanes[i], _mm512_fmsub_ps(score, exponents, exponent_of_next));
    total = _mm512_add_ps(total, p);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(probs + i * kTileSlots),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p)));
  }
  for (int64_t i = num_tiles; i < padded_tiles; i++)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(probs + i * kTileSlots), _mm256_setzero_si256());
  const bool as_before = maximum == next || maximum == kNothing;  // unchanged, or nothing was summed
  const float factor = as_before ? 1.0f : std::exp(maximum - next);
  maximum = next;
  sum = sum * factor + _mm512_reduce_add_ps(total);
  return factor;
}

// One query head of a block: its queries, and the softmax so far.
struct HeadState {
  int64_t head;
  bf16* queries;  // [32][dim]
  float* out;     // [32][dim]
  float maxima[kQueries], sums[kQueries];
};

void begin_head(const AttentionStep& step, const LayerAttention& layer, const QueryBlock& block,
                const float* q, int64_t q_stride, HeadState& state) {
  const int64_t dim = step.shape.padded_dim, size = step.shape.head_dim;
  std::fill(state.maxima, state.maxima + kQueries, layer.sinks ? layer.sinks[state.head] : kNothing);
  std::fill(state.sums, state.sums + kQueries, layer.sinks ? 1.0f : 0.0f);
  std::memset(state.out, 0, static_cast<size_t>(kQueries * dim) * sizeof(float));
  for (int64_t query = 0; query < kQueries; query++) {
    const float* source = q + (block.first_token + query) * q_stride + state.head * size;
    const int64_t count = query < block.num_queries ? size : 0;
    for (int64_t d = 0; d < dim; d += kWidth) {
      const int64_t left = std::clamp<int64_t>(count - d, 0, kWidth);
      store(state.queries + query * dim + d, load_n(left > 0 ? source + d : q, left));
    }
  }
}

// Turns a chunk's scores into probabilities in bf16, [32][stride], and rescales the previous sums.
void soften_head(const QueryBlock& block, const ChunkLanes& chunk, const LayerAttention& layer,
                 int64_t dim, int64_t num_tiles, float* scores, bf16* probs, HeadState& state) {
  const int64_t stride = num_tiles * kTileSlots;
  for (int64_t query = 0; query < kQueries; query++) {
    bf16* of_query = probs + query * stride;
    const uint16_t* lanes = chunk.lanes.data() + query * chunk.num_tiles;
    const bool sees = query < block.num_queries &&
                      std::any_of(lanes, lanes + chunk.num_tiles, [](uint16_t l) { return l; });
    if (!sees) {
      std::memset(of_query, 0, static_cast<size_t>(stride) * sizeof(bf16));
      continue;
    }
    const float factor = soften(scores + query * stride, of_query, chunk.num_tiles, num_tiles,
                                lanes, layer, state.maxima[query], state.sums[query]);
    if (factor == 1.0f) continue;
    for (int64_t d = 0; d < dim; d += 16)
      store(state.out + query * dim + d, load(state.out + query * dim + d) * factor);
  }
}

void end_head(const AttentionStep& step, const QueryBlock& block, const HeadState& state, float* out,
              int64_t out_stride) {
  const int64_t dim = step.shape.padded_dim, size = step.shape.head_dim;
  for (int64_t query = 0; query < block.num_queries; query++) {
    float* target = out + (block.first_token + query) * out_stride + state.head * size;
    const float sum = state.sums[query];
    const float factor = sum > 0 ? 1.0f / sum : (sum == 0 ? 0.0f : sum);
    for (int64_t d = 0; d < size; d += kWidth)
      store_n(target + d, load(state.out + query * dim + d) * factor, size - d);
  }
}

// All query heads of one KV head, chunk by chunk: visibility and V of a chunk are gathered once.
void attend_heads(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                  const QueryBlock& block, std::vector<HeadState>& states, Scratch& scratch) {
  const KVShape& shape = step.shape;
  const int64_t dim = shape.padded_dim;
  const AttentionContext::Row& row = step.context->row(block.row);
  const bf16* keys = static_cast<const bf16*>(cache.keys) + block.kv_head * shape.head_elements();
  const bf16* values =
      static_cast<const bf16*>(cache.values) + block.kv_head * shape.head_elements();
  ChunkLanes& chunk = scratch.chunk;
  for (int64_t index = row.first_chunk; index < row.last_chunk; index++) {
    chunk.find(step, block, index, layer.window);
    if (chunk.num_tiles == 0) continue;
    const int64_t num_tiles = round_up(chunk.num_tiles, 2), stride = num_tiles * kTileSlots;
    float* scores = aligned(scratch.scores, static_cast<size_t>(kQueries * stride));
    bf16* probs = aligned(scratch.probs, static_cast<size_t>(kQueries * stride));
    bf16* chunk_values = aligned(scratch.values, static_cast<size_t>(stride * dim));
    gather_values(step, chunk, values, num_tiles, chunk_values);
    const auto key_tile = [&](int64_t i) {
      const int64_t last = std::min(i, chunk.num_tiles - 1);
      return keys + step.context->tile(chunk.first_tile + last).tile * shape.tile_elements();
    };
    for (HeadState& state : states) {
      for (int64_t i = 0; i < num_tiles; i += 2) {
        const bf16 *a = key_tile(i), *b = key_tile(i + 1);
        multiply_block(
            state.queries, dim, block.num_queries, [=](int64_t s) { return a + s * 512; },
            [=](int64_t s) { return b + s * 512; }, 64, dim / 32, scores + i * kTileSlots, stride,
            false);
      }
      soften_head(block, chunk, layer, dim, num_tiles, scores, probs, state);
      for (int64_t d = 0; d < dim; d += 32) {
        const bf16* right = chunk_values + 2 * d;
        const int64_t step_elements = 2 * shape.head_elements();
        multiply_block(
            probs, stride, block.num_queries, [=](int64_t s) { return right + s * step_elements; },
            [=](int64_t s) { return right + s * step_elements + 32; },
            dim * static_cast<int64_t>(2 * sizeof(bf16)), num_tiles / 2, state.out + d, dim, true);
      }
    }
  }
}

}  // namespace

bool has_matrix_attention() { return true; }

void attend_matrix(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                   const QueryBlock& block, const float* q, int64_t q_stride, float* out,
                   int64_t out_stride) {
  static thread_local Scratch scratch;
  static thread_local std::vector<HeadState> states;
  const int64_t heads = step.num_heads / step.shape.num_kv_heads;
  const int64_t size = kQueries * step.shape.padded_dim;
  states.resize(static_cast<size_t>(heads));
  bf16* queries = aligned(scratch.q, static_cast<size_t>(heads * size));
  float* sums = aligned(scratch.out, static_cast<size_t>(heads * size));
  for (int64_t i = 0; i < heads; i++) {
    HeadState& state = states[static_cast<size_t>(i)];
    state.head = block.kv_head * heads + i;
    state.queries = queries + i * size;
    state.out = sums + i * size;
    begin_head(step, layer, block, q, q_stride, state);
  }
  {
    const BlockRegisters registers;
    attend_heads(step, layer, cache, block, states, scratch);
  }
  for (const HeadState& state : states) end_head(step, block, state, out, out_stride);
}

#endif

}  // namespace quire
