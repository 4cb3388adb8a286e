// Owns what is computed from hidden states through the logits: one token for each row, or the best
// of its distribution.
// Must not know sequences or stops.
//
// Reference: SamplingPlan in quire/engine/sampling/plan.py, best_of_logits in
// quire/engine/sampling/distribution.py.
#pragma once

#include <vector>

#include "decoder.h"
#include "sampling.h"

namespace quire {

struct Choice {
  Sampler sampler;
  int64_t position;         // of the chosen token
  const int64_t* excluded;  // tokens that must not be chosen; ignored outside the vocabulary
  int64_t num_excluded;
};

class TokenChoice {
 public:
  TokenChoice(Decoder& decoder, Team& team) : decoder_(decoder), team_(team) {}

  // tokens[i]: the token chosen after hidden[i], or kNoToken.
  void choose(const float* hidden, const std::vector<Choice>& choices, int64_t* tokens);
  // ids and probabilities [count][k], best first, ties to the lower id; k is at most the vocabulary
  // size. A row whose largest logit is not finite has no distribution: its probabilities are NaN.
  void best(const float* hidden, int64_t count, int64_t k, int32_t* ids, float* probabilities);

 private:
  Decoder& decoder_;
  Team& team_;
  std::vector<uint8_t> plain_;  // rows that are chosen within the product
  Buffer logits_;
};

// Rows of one call. Mirrored in quire/engine/cpu/decode_abi.py.
struct ChoiceRows {
  int64_t num_rows;
  const uint8_t* greedy;  // [num_rows]; this and the following fields: see Sampler
  const int64_t* top_k;
  const double* temperature;
  const double* min_p;
  const double* top_p;
  const uint64_t* seeds;
  const int64_t* positions;
  int64_t* tokens;  // out
};

std::vector<Choice> choices_of(const ChoiceRows& rows);

}  // namespace quire
