// Owns the choice of one token from a row of logits, for the samplers that every backend can do by
// itself: greedy, or top-k, temperature, min-p and top-p in this order, then a draw.
// Must not know sequences or stops.
//
// Reference: docs/reference/sampling.md, quire/engine/sampling/mass.py and random.py. Probabilities
// are integer masses, so the token is the same as in PyTorch, bit for bit, whatever is batched.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// A top_k of at least the vocabulary, a temperature or top_p of 1 and a min_p of 0 change nothing.
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

// The largest of a row; NaN if one of them is not a number.
float largest_of(const float* values, int64_t count);
// The k best of a row without NaN, ties to the lower id, in the order of ids.
void take_best(const float* logits, int64_t vocab_size, int64_t k, std::vector<Candidate>& best);

// A number in [0, 1) that belongs to a seed and the position of the token that is drawn.
double uniform(uint64_t seed, int64_t position);

// Memory of one thread.
class TokenChooser {
 public:
  // The token, or kNoToken where none can be chosen: a logit is not a number, or all are excluded.
  int64_t choose(const float* logits, int64_t vocab_size, const Sampler& sampler,
                 int64_t position);

 private:
  void take_all(const float* logits, int64_t vocab_size);
  void weigh(float temperature, bool with_masses);
  void keep_nucleus(double limit);
  int64_t draw(uint64_t seed, int64_t position) const;

  std::vector<Candidate> candidates_;  // in the order of ids when they are drawn from
};

}  // namespace quire
