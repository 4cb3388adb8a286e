#include "scores.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int64_t kQueries = 8;  // tokens that share a pass over the keys

// Memory of one thread, grown as needed.
struct Scratch {
  std::vector<float> keys, scores;
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

// Products of one query with the 16 slots of a tile.
void score_lanes(const float* q, const float* keys, int64_t head_dim, float* out) {
  float sums[kTileSlots] = {};
  for (int64_t d = 0; d < head_dim; d++)
    for (int64_t lane = 0; lane < kTileSlots; lane++) sums[lane] += q[d] * keys[d * kTileSlots + lane];
  std::copy(sums, sums + kTileSlots, out);
}

// Adds the softmax of one query's products to `sums`, over the slots that it sees.
void add_probabilities(float* scores, const ScoredRow& row, int64_t token, int32_t position,
                       const LayerAttention& layer, const float* sink, float* sums) {
  const uint8_t* allowed = row.allowed + token * row.num_slots;
  const int64_t lowest = layer.window > 0 ? position - layer.window : -1;
  float maximum = sink ? *sink : kNothing;
  for (int64_t i = 0; i < row.num_slots; i++) {
    float score = scores[i] * layer.scale;
    if (layer.softcap > 0) score = layer.softcap * std::tanh(score / layer.softcap);
    scores[i] = allowed[i] && row.positions[i] > lowest ? score : kNothing;
    maximum = std::max(maximum, scores[i]);
  }
  if (maximum == kNothing) return;  // it sees nothing
  float total = sink ? std::exp(*sink - maximum) : 0.0f;
  for (int64_t i = 0; i < row.num_slots; i++) {
    scores[i] = scores[i] == kNothing ? 0.0f : std::exp(scores[i] - maximum);
    total += scores[i];
  }
  for (int64_t i = 0; i < row.num_slots; i++) sums[i] += scores[i] / total;
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
    for (int64_t head = 0; head < shape.num_kv_heads; head++, num_sums += row.num_slots)
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
  const int64_t first_head = item.kv_head * heads;
  const int64_t stride = row.num_slots;
  const T* keys = static_cast<const T*>(cache.keys) + item.kv_head * shape.head_elements();
  float* sums = sums_.data() + item.sums;
  std::fill(sums, sums + row.num_slots, 0.0f);
  scratch.keys.resize(static_cast<size_t>(shape.head_dim * kTileSlots));
  scratch.scores.resize(static_cast<size_t>(kQueries * heads * stride));
  for (int64_t first = 0; first < row.num_tokens; first += kQueries) {
    const int64_t count = std::min(kQueries, row.num_tokens - first);
    const auto query = [&](int64_t i) {
      return q + (row.first_token + first + i / heads) * q_stride +
             (first_head + i % heads) * shape.head_dim;
    };
    for (const Run& run : runs_[static_cast<size_t>(item.row)]) {
      unpack_keys(keys + run.tile * shape.tile_elements(), shape.head_dim, scratch.keys.data());
      for (int64_t i = 0; i < count * heads; i++) {
        float lanes[kTileSlots];
        score_lanes(query(i), scratch.keys.data(), shape.head_dim, lanes);
        float* scores = scratch.scores.data() + i * stride + run.first;
        for (int64_t j = 0; j < run.count; j++)
          scores[j] = lanes[row.slots[run.first + j] % kTileSlots];
      }
    }
    for (int64_t i = 0; i < count * heads; i++) {
      const int64_t token = first + i / heads;
      add_probabilities(scratch.scores.data() + i * stride, row, token,
                        step.rows->positions[row.first_token + token], layer,
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
    int64_t first, last;
    team.part(thread, row.num_slots, &first, &last);
    for (int64_t i = first; i < last; i++) {
      float total = 0;
      for (int64_t head = 0; head < num_kv_heads; head++) total += sums[head * row.num_slots + i];
      mass[i] += total * share;
    }
  }
  team.barrier(thread);
}

}  // namespace quire
