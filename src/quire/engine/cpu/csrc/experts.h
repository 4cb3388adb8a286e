// Owns a mixture of experts: routing, and products grouped by expert.
// Must not know layers or norms: its input rows are normed, and the caller adds its output.
//
// Reference: quire/engine/layers/experts.py. Ties between logits go to the lower expert.
#pragma once

#include <vector>

#include "matmul.h"
#include "model_spec.h"
#include "team.h"

namespace quire {

class ExpertsWork {
 public:
  // Called by every thread of the team between two barriers; y is complete after the second one. x
  // and y are [num_rows][hidden_size].
  void run(const ExpertsSpec& spec, Epilogue activation, Ordering ordering, const float* x,
           int64_t num_rows, int64_t hidden_size, float* y, Team& team, int thread);

 private:
  struct Group {  // the rows of one expert
    int64_t expert;
    int64_t first_pair, num_pairs;
    Activations input, inner;
  };

  void reserve(const ExpertsSpec& spec, int64_t num_rows, int64_t hidden_size);
  void route(const ExpertsSpec& spec, int64_t row);
  void group(const ExpertsSpec& spec, int64_t num_rows, int64_t hidden_size);

  std::vector<float> logits_;        // [rows][experts]
  std::vector<int32_t> chosen_;      // [rows][top_k]
  std::vector<float> weights_;       // [rows][top_k]
  std::vector<Group> groups_;
  std::vector<int32_t> rows_;        // [pairs], sorted by expert: the row of each pair
  std::vector<int32_t> pair_of_;     // [rows][top_k]: the pair of each choice
  std::vector<float> inner_;         // [pairs][intermediate]
  std::vector<float> outer_;         // [pairs][hidden]
  std::vector<uint8_t> buffer_;
  Activations routed_{};             // x for the router
  uint8_t* inputs_ = nullptr;
};

}  // namespace quire
