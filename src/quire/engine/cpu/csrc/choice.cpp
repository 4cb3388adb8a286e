#include "choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"

namespace quire {
namespace {

void exclude(const Choice& choice, int64_t vocab_size, float* logits) {
  for (int64_t i = 0; i < choice.num_excluded; i++)
    if (choice.excluded[i] >= 0 && choice.excluded[i] < vocab_size)
      logits[choice.excluded[i]] = -std::numeric_limits<float>::infinity();
}

// The sum of exp(value - largest).
float sum_of_exponentials(const float* values, int64_t count, float largest) {
  F32 total = broadcast(0.0f);
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) total += exp(load(values + i) - largest);
  float sum = reduce_add(total);
  for (; i < count; i++) sum += std::exp(values[i] - largest);
  return sum;
}

void best_of_row(const float* logits, int64_t vocab_size, int64_t k, std::vector<Candidate>& best,
                 int32_t* ids, float* probabilities) {
  const float largest = largest_of(logits, vocab_size);
  if (!std::isfinite(largest)) {
    for (int64_t i = 0; i < k; i++) ids[i] = static_cast<int32_t>(i);
    std::fill(probabilities, probabilities + k, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  take_best(logits, vocab_size, k, best);
  std::stable_sort(best.begin(), best.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  const float sum = sum_of_exponentials(logits, vocab_size, largest);
  for (const Candidate& one : best) {
    *ids++ = one.id;
    *probabilities++ = std::exp(one.score - largest) / sum;
  }
}

}  // namespace

void TokenChoice::choose(const float* hidden, const std::vector<Choice>& choices, int64_t* tokens) {
  const int64_t vocab_size = decoder_.spec().vocab_size, count = static_cast<int64_t>(choices.size());
  float* logits = logits_.floats(count * vocab_size);
  plain_.resize(choices.size());
  // Rows whose largest logit decides, without tokens to exclude.
  std::transform(choices.begin(), choices.end(), plain_.begin(), [&](const Choice& one) {
    return decoder_.can_choose() && one.sampler.greedy && one.sampler.temperature == 1.0f &&
           one.num_excluded == 0;
  });
  if (decoder_.can_choose())
    decoder_.best_tokens(hidden, count, plain_.data(), logits, tokens);
  else
    decoder_.logits(hidden, count, logits);
  if (std::all_of(plain_.begin(), plain_.end(), [](uint8_t plain) { return plain != 0; })) return;
  team_.run([&](int thread) {
    team_.share(thread, count, 1, [&](int64_t first, int64_t last) {
      static thread_local TokenChooser chooser;
      for (int64_t i = first; i < last; i++) {
        if (plain_[static_cast<size_t>(i)]) continue;
        const Choice& one = choices[static_cast<size_t>(i)];
        exclude(one, vocab_size, logits + i * vocab_size);
        tokens[i] = chooser.choose(logits + i * vocab_size, vocab_size, one.sampler, one.position);
      }
    });
  });
}

void TokenChoice::best(const float* hidden, int64_t count, int64_t k, int32_t* ids,
                       float* probabilities) {
  const int64_t vocab_size = decoder_.spec().vocab_size;
  float* logits = logits_.floats(count * vocab_size);
  decoder_.logits(hidden, count, logits);
  team_.run([&](int thread) {
    team_.share(thread, count, 1, [&](int64_t first, int64_t last) {
      static thread_local std::vector<Candidate> best;
      for (int64_t i = first; i < last; i++)
        best_of_row(logits + i * vocab_size, vocab_size, k, best, ids + i * k,
                    probabilities + i * k);
    });
  });
}

std::vector<Choice> choices_of(const ChoiceRows& rows) {
  std::vector<Choice> choices;
  choices.reserve(static_cast<size_t>(rows.num_rows));
  for (int64_t i = 0; i < rows.num_rows; i++)
    choices.push_back({{rows.greedy[i] != 0, rows.top_k[i],
                        static_cast<float>(rows.temperature[i]), rows.min_p[i], rows.top_p[i],
                        rows.seeds[i]},
                       rows.positions[i], nullptr, 0});
  return choices;
}

}  // namespace quire
