// Owns the attention mass of the rows that ask for it: the softmax probability that the tokens of a
// row give to each slot, summed over tokens and averaged over heads, per layer. Computed from the
// same queries and cache as attention, but separately: attention.cpp does not know about it.
// Must not know page tables: the caller passes which slots a token may see.
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
  const uint8_t* allowed;    // [num_tokens][num_slots] which token sees which slot, without windows
  float* mass;               // [num_layers][mass_stride]; added to in the first num_slots of each layer
};

struct ScoredRows {
  const ScoredRow* rows;
  int64_t num_rows;
  int64_t mass_stride;
};

class ScoreWork {
 public:
  // Finds the tiles of the rows and allocates one layer's sums.
  void plan(const ScoredRows& rows, const KVShape& shape);
  // Called by every thread of the team, with the same arguments; complete on return. q: as in
  // AttentionWork.
  void add(int64_t layer_index, const AttentionStep& step, const LayerAttention& layer,
           const LayerCache& cache, const float* q, int64_t q_stride, Team& team, int thread);

 private:
  struct Run {  // adjacent slots of a row that are in one tile
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
  std::vector<Item> items_;             // those of a row are adjacent
  std::vector<float> sums_;
};

}  // namespace quire
