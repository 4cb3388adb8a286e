// Owns the attention mass of rows that ask for it: how much of the softmax's probability the tokens
// of a row give to each slot, summed over tokens and averaged over heads, layer by layer. Computed
// from the same queries and cache as attention, beside it: attention.cpp knows nothing of it.
// Must not know page tables: which slots a token may see is handed in.
//
// Reference: quire/engine/attention/scored_rows.py (add_mass), in float32.
#pragma once

#include <vector>

#include "attention.h"

namespace quire {

// One row of the step. Mirrored in quire/engine/cpu/model_abi.py.
struct ScoredRow {
  int64_t first_token;       // of the step
  int64_t num_tokens;
  int64_t num_slots;
  const int64_t* slots;      // [num_slots]
  const int32_t* positions;  // [num_slots]
  const uint8_t* allowed;    // [num_tokens][num_slots] who sees what, windows aside
  float* mass;               // [num_layers][mass_stride], the first num_slots of each are added to
};

struct ScoredRows {
  const ScoredRow* rows;
  int64_t num_rows;
  int64_t mass_stride;
};

class ScoreWork {
 public:
  // Finds the tiles of the rows and takes memory for one layer's sums.
  void plan(const ScoredRows& rows, const KVShape& shape);
  // Every thread of the team calls it, with the same arguments; complete when it returns.
  // q: as in AttentionWork.
  void add(int64_t layer_index, const AttentionStep& step, const LayerAttention& layer,
           const LayerCache& cache, const float* q, int64_t q_stride, Team& team, int thread);

 private:
  struct Run {  // neighbours among a row's slots that lie in one tile
    int64_t tile, first, count;
  };
  struct Item {  // one KV head of one row; its sums begin at `sums`
    int64_t row, kv_head, sums;
  };
  template <class T>
  void add_item(const Item& item, const AttentionStep& step, const LayerAttention& layer,
                const LayerCache& cache, const float* q, int64_t q_stride);

  ScoredRows rows_{};
  std::vector<std::vector<Run>> runs_;  // by row
  std::vector<Item> items_;             // those of a row lie side by side
  std::vector<float> sums_;
};

}  // namespace quire
