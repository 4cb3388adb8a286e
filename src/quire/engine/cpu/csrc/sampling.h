// Owns the choice of one token from a row of logits, for the samplers that every backend implements
// itself: greedy, or top-k, temperature, min-p and top-p in this order, then a draw.
// Must not know sequences or stops.
//
// Reference: docs/reference/sampling.md, quire/engine/sampling/mass.py and random.py. Probabilities
// are integer masses, so the token is the same as in PyTorch, bit for bit, in any batch.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// No effect: a top_k of at least the vocabulary size, a temperature or top_p of 1, a min_p of 0.
struct Sampler {
  bool greedy;
  int64_t top_k;
  float temperature;
  double min_p;
  double top_p;
  uint64_t seed;
};

constexpr int64_t kNoToken = -1;

struct Candidate {
  float score;
  float mass;
  int32_t id;
};

// The largest of a row; NaN if any value is NaN.
float largest_of(const float* values, int64_t count);
// The k best of a row without NaN, ties to the lower id, sorted by id.
void take_best(const float* logits, int64_t vocab_size, int64_t k, std::vector<Candidate>& best);

// A number in [0, 1) determined by the seed and the position of the drawn token.
double uniform(uint64_t seed, int64_t position);

// Per-thread memory.
class TokenChooser {
 public:
  // The token, or kNoToken where none can be chosen: a logit is NaN, or all tokens are excluded.
  int64_t choose(const float* logits, int64_t vocab_size, const Sampler& sampler,
                 int64_t position);

 private:
  void take_all(const float* logits, int64_t vocab_size);
  void weigh(float temperature, bool with_masses);
  void keep_nucleus(double limit);
  int64_t draw(uint64_t seed, int64_t position) const;

  std::vector<Candidate> candidates_;  // sorted by id when one is drawn
};

}  // namespace quire
