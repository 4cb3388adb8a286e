// Owns the best column of each row of a product, which is all that greedy decoding needs of the
// logits.
// Must not know the product.
//
// Reference: sampling.h, greedy: the largest value, ties to the lower column.
#pragma once

#include <cstdint>
#include <vector>

#include "packed_matrix.h"

namespace quire {

// The best values that one thread has seen, per lane: lane j stands for column j of all panels.
struct BestOfRows {
  const uint8_t* wanted = nullptr;  // [num_rows]: 0 where the row's columns are stored instead
  std::vector<float> values;        // [num_rows][32]; a NaN stays
  std::vector<int32_t> panels;      // [num_rows][32]

  void reset(const uint8_t* wanted, int64_t num_rows);
};

// The best column of a row over all threads; kNoColumn if a value is NaN or no value is finite.
constexpr int64_t kNoColumn = -1;
int64_t best_column(const std::vector<BestOfRows>& of_threads, int64_t row);

}  // namespace quire
