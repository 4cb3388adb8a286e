#include "scores.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int64_t kQueries = 8;  // tokens that share a pass over the keys

// The slots of a row, rounded up to whole vectors of any width.
int64_t padded(int64_t num_slots) { return (num_slots + kTileSlots - 1) / kTileSlots * kTileSlots; }

constexpr int kParts = static_cast<int>(kTileSlots) / kWidth;  // vectors that hold 16 lanes
constexpr int kRows = 4;  // queries times heads that share a load of K

// Per-thread memory that grows as needed.
struct Scratch {
  std::vector<float> keys, scores;
  std::vector<int32_t> seen;  // 0, or all bits set
};

// K of one head in one tile, as float32 [head_dim][16].
template <class T>
void unpack_keys(const T* keys, int64_t head_dim, float* out) {
  for (int64_t d = 0; d < head_dim; d++)
    for (int64_t lane = 0; lane < kTileSlots; lane++) {
      const T key = keys[key_offset<T>(d, lane)];
      if constexpr (sizeof(T) == 4)
        out[d * kTileSlots + lane] = key;
      else
        out[d * kTileSlots + lane] = to_f32(key);
    }
}

// Products of some queries with the 16 slots of a tile: out is [Rows][16].
template <int Rows>
void score_lanes(const float* const* queries, const float* keys, int64_t head_dim, float* out) {
  F32 sums[Rows][kParts] = {};
  for (int64_t d = 0; d < head_dim; d++)
    for (int part = 0; part < kParts; part++) {
      const F32 key = load(keys + d * kTileSlots + part * kWidth);
      for (int row = 0; row < Rows; row++)
        sums[row][part] = fma(broadcast(queries[row][d]), key, sums[row][part]);
    }
  for (int row = 0; row < Rows; row++)
    for (int part = 0; part < kParts; part++)
      store(out + row * kTileSlots + part * kWidth, sums[row][part]);
}

// Which slots a token sees in a layer with this window, as lane masks of the floats' width.
void find_seen(const ScoredRow& row, int64_t token, int32_t position, int64_t window,
               int32_t* seen) {
  const uint8_t* allowed = row.allowed + token * row.num_slots;
  const int32_t lowest = window > 0 ? static_cast<int32_t>(position - window) : -1;
  for (int64_t i = 0; i < row.num_slots; i++)
    seen[i] = -static_cast<int32_t>((allowed[i] != 0) & (row.positions[i] > lowest));
}

// Adds the softmax of one query's products to `sums`, over the slots that it sees. All arrays have
// `stride` elements, whole vectors; the padding is marked as not seen.
void add_probabilities(float* scores, const int32_t* seen, int64_t stride,
                       const LayerAttention& layer, const float* sink, float* sums) {
  F32 largest = broadcast(kNothing);
  for (int64_t i = 0; i < stride; i += kWidth) {
    F32 score = load(scores + i) * layer.scale;
    if (layer.softcap > 0) score = layer.softcap * tanh(score / layer.softcap);
    score = load_as<I32>(seen + i) != 0 ? score : broadcast(kNothing);
    store(scores + i, score);
    largest = max(score, largest);
  }
  const float maximum = std::max(reduce_max(largest), sink ? *sink : kNothing);
  if (maximum == kNothing) return;  // sees nothing
  F32 total = {};
  for (int64_t i = 0; i < stride; i += kWidth) {
    const F32 p = exp(load(scores + i) - maximum);
    store(scores + i, p);
    total += p;
  }
  const float share = 1.0f / (reduce_add(total) + (sink ? std::exp(*sink - maximum) : 0.0f));
  for (int64_t i = 0; i < stride; i += kWidth)
    store(sums + i, fma(load(scores + i), broadcast(share), load(sums + i)));
}

}  // namespace

void ScoreWork::plan(const ScoredRows& rows, const KVShape& shape) {
  rows_ = rows;
  runs_.assign(static_cast<size_t>(rows.num_rows), {});
  items_.clear();
  int64_t num_sums = 0;
  for (int64_t r = 0; r < rows.num_rows; r++) {
    const ScoredRow& row = rows.rows[r];
    std::vector<Run>& runs = runs_[static_cast<size_t>(r)];
    for (int64_t i = 0; i < row.num_slots; i++) {
      const int64_t tile = row.slots[i] / kTileSlots;
      if (runs.empty() || runs.back().tile != tile) runs.push_back({tile, i, 0});
      runs.back().count++;
    }
    for (int64_t head = 0; head < shape.num_kv_heads; head++, num_sums += padded(row.num_slots))
      items_.push_back({r, head, num_sums});
  }
  sums_.resize(static_cast<size_t>(num_sums));
}

template <class T>
void ScoreWork::add_item(const Item& item, const AttentionStep& step, const LayerAttention& layer,
                         const LayerCache& cache, const float* q, int64_t q_stride) {
  static thread_local Scratch scratch;
  const ScoredRow& row = rows_.rows[item.row];
  const KVShape& shape = step.shape;
  const int64_t heads = step.num_heads / shape.num_kv_heads;
  const int64_t first_head = item.kv_head * heads, stride = padded(row.num_slots);
  const T* keys = static_cast<const T*>(cache.keys) + item.kv_head * shape.head_elements();
  float* sums = sums_.data() + item.sums;
  std::fill(sums, sums + stride, 0.0f);
  scratch.keys.resize(static_cast<size_t>(shape.head_dim * kTileSlots));
  scratch.scores.assign(static_cast<size_t>(kQueries * heads * stride), 0.0f);
  scratch.seen.assign(static_cast<size_t>(stride), 0);
  const float* queries[kRows];
  float lanes[kRows * kTileSlots];
  for (int64_t first = 0; first < row.num_tokens; first += kQueries) {
    const int64_t num_rows = std::min(kQueries, row.num_tokens - first) * heads;
    for (const Run& run : runs_[static_cast<size_t>(item.row)]) {
      unpack_keys(keys + run.tile * shape.tile_elements(), shape.head_dim, scratch.keys.data());
      for (int64_t i = 0; i < num_rows; i += kRows) {
        const int64_t count = std::min<int64_t>(kRows, num_rows - i);
        for (int64_t r = 0; r < kRows; r++) {  // surplus rows repeat the last one
          const int64_t one = i + std::min(r, count - 1);
          queries[r] = q + (row.first_token + first + one / heads) * q_stride +
                       (first_head + one % heads) * shape.head_dim;
        }
        score_lanes<kRows>(queries, scratch.keys.data(), shape.head_dim, lanes);
        for (int64_t r = 0; r < count; r++) {
          float* scores = scratch.scores.data() + (i + r) * stride + run.first;
          for (int64_t j = 0; j < run.count; j++)
            scores[j] = lanes[r * kTileSlots + row.slots[run.first + j] % kTileSlots];
        }
      }
    }
    for (int64_t i = 0; i < num_rows; i++) {
      const int64_t token = first + i / heads;
      if (i % heads == 0)
        find_seen(row, token, step.rows->positions[row.first_token + token], layer.window,
                  scratch.seen.data());
      add_probabilities(scratch.scores.data() + i * stride, scratch.seen.data(), stride, layer,
                        layer.sinks ? layer.sinks + first_head + i % heads : nullptr, sums);
    }
  }
}

void ScoreWork::add(int64_t layer_index, const AttentionStep& step, const LayerAttention& layer,
                    const LayerCache& cache, const float* q, int64_t q_stride, Team& team,
                    int thread) {
  team.share(thread, static_cast<int64_t>(items_.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const Item& item = items_[static_cast<size_t>(i)];
      if (step.shape.type == KVType::kBF16)
        add_item<bf16>(item, step, layer, cache, q, q_stride);
      else
        add_item<float>(item, step, layer, cache, q, q_stride);
    }
  });
  team.barrier(thread);
  const int64_t num_kv_heads = step.shape.num_kv_heads;
  for (int64_t r = 0; r < rows_.num_rows; r++) {
    const ScoredRow& row = rows_.rows[r];
    const float* sums = sums_.data() + items_[static_cast<size_t>(r * num_kv_heads)].sums;
    float* mass = row.mass + layer_index * rows_.mass_stride;
    const float share = 1.0f / static_cast<float>(step.num_heads);
    const int64_t stride = padded(row.num_slots);
    int64_t first, last;
    team.part(thread, row.num_slots, &first, &last);
    for (int64_t i = first; i < last; i++) {
      float total = 0;
      for (int64_t head = 0; head < num_kv_heads; head++) total += sums[head * stride + i];
      mass[i] += total * share;
    }
  }
  team.barrier(thread);
}

}  // namespace quire
