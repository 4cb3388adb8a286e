// Every operation here is rounded separately, as the definition requires: nothing may be contracted
// into a fused multiply-add. Must come before every include.
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace quire {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kCoefficients[] = {0x1.eca6ecp-10f, 0x1.269dfp-7f,  0x1.c9444p-5f,
                                   0x1.ebd8ap-3f,   0x1.62e4c8p-1f, 0x1p+0f};
constexpr double kMaxMass = 4294967296.0;  // of the best token

uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

// 2^y scaled by 2^32 as an integer, for y = log2(e) * (score - best).
float mass_of(float difference) {
  float y = difference * kLog2E;
  y = y < -64.0f ? -64.0f : y;
  const float whole = std::floor(y);
  const float fraction = y - whole;
  float power = fraction * kCoefficients[0];
  for (int i = 1; i < 5; i++) {
    power = power + kCoefficients[i];
    power = power * fraction;
  }
  power = power + kCoefficients[5];
  const int32_t exponent = (static_cast<int32_t>(whole) + 159) << 23;
  float scale;
  std::memcpy(&scale, &exponent, sizeof(scale));
  return std::trunc(power * scale);
}

}  // namespace

float largest_of(const float* values, int64_t count) {
  constexpr int kLanes = 32;  // independent sums, so that the compiler can vectorise
  float best[kLanes];
  bool strange[kLanes] = {};
  std::fill(best, best + kLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; lane++) {
      const float value = values[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];
      strange[lane] |= value != value;
    }
  float largest = *std::max_element(best, best + kLanes);
  bool any_strange = std::any_of(strange, strange + kLanes, [](bool one) { return one; });
  for (; i < count; i++) {
    largest = values[i] > largest ? values[i] : largest;
    any_strange |= values[i] != values[i];
  }
  return any_strange ? std::numeric_limits<float>::quiet_NaN() : largest;
}

namespace {

int64_t first_of(const float* values, int64_t count, float wanted) {
  for (int64_t i = 0; i < count; i++)
    if (values[i] == wanted) return i;
  return kNoToken;
}

}  // namespace

double uniform(uint64_t seed, int64_t position) {
  const uint64_t counter = static_cast<uint64_t>(position + 1) * kGolden;
  return static_cast<double>(mix(mix(seed + kGolden) + counter) >> 11) * 0x1p-53;
}

int64_t TokenChooser::choose(const float* logits, int64_t vocab_size, const Sampler& sampler,
                             int64_t position) {
  const float largest = largest_of(logits, vocab_size);
  if (!std::isfinite(largest)) return kNoToken;
  if (sampler.greedy && sampler.temperature == 1.0f) return first_of(logits, vocab_size, largest);
  if (sampler.top_k < vocab_size)
    take_best(logits, vocab_size, sampler.top_k, candidates_);
  else
    take_all(logits, vocab_size);
  weigh(sampler.temperature, !sampler.greedy);
  if (sampler.greedy) {  // the following filters keep the best token
    const auto best = std::max_element(
        candidates_.begin(), candidates_.end(),
        [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
    return best->id;
  }
  if (sampler.min_p > 0) {
    const double floor = sampler.min_p * kMaxMass;
    for (Candidate& one : candidates_)
      if (one.mass < floor) one.mass = 0;
  }
  if (sampler.top_p < 1) {
    double total = 0;
    for (const Candidate& one : candidates_) total += one.mass;
    keep_nucleus(sampler.top_p * total);
  }
  return draw(sampler.seed, position);
}

void TokenChooser::take_all(const float* logits, int64_t vocab_size) {
  candidates_.resize(static_cast<size_t>(vocab_size));
  for (int64_t i = 0; i < vocab_size; i++)
    candidates_[static_cast<size_t>(i)] = {logits[i], 0, static_cast<int32_t>(i)};
}

void take_best(const float* logits, int64_t vocab_size, int64_t k, std::vector<Candidate>& best) {
  // A heap with the worst on top. Of equal scores the higher id is worse, so a later equal score
  // never enters.
  const auto is_better = [](const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
  };
  best.clear();
  for (int64_t i = 0; i < vocab_size; i++) {
    const bool full = static_cast<int64_t>(best.size()) == k;
    if (full && !(logits[i] > best.front().score)) continue;
    if (full) {
      std::pop_heap(best.begin(), best.end(), is_better);
      best.pop_back();
    }
    best.push_back({logits[i], 0, static_cast<int32_t>(i)});
    std::push_heap(best.begin(), best.end(), is_better);
  }
  std::sort(best.begin(), best.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

// Divides scores by the temperature and computes their masses.
void TokenChooser::weigh(float temperature, bool with_masses) {
  float best = -std::numeric_limits<float>::infinity();
  for (Candidate& one : candidates_) {
    one.score = one.score / temperature;
    best = std::max(best, one.score);
  }
  if (!with_masses) return;
  for (Candidate& one : candidates_) one.mass = mass_of(one.score - best);
}

// Keeps a candidate if the masses of all better ones sum to less than `limit`. A weighted
// quickselect that discards parts unsorted, so that a whole vocabulary is not sorted for its
// nucleus. Sums are exact.
void TokenChooser::keep_nucleus(double limit) {
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(),
                                   [](const Candidate& one) { return !(one.mass > 0); }),
                    candidates_.end());
  auto first = candidates_.begin(), last = candidates_.end();
  double before = 0;  // mass of the candidates that are certainly kept, [begin, first)
  while (last - first > 1) {
    const float middle = (first + (last - first) / 2)->score;
    const float a = first->score, b = (last - 1)->score;
    const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), middle));
    const auto better =
        std::partition(first, last, [=](const Candidate& one) { return one.score > pivot; });
    double mass_better = 0;
    for (auto one = first; one != better; one++) mass_better += one->mass;
    if (before + mass_better >= limit) {
      last = better;
      continue;
    }
    const auto equal =
        std::partition(better, last, [=](const Candidate& one) { return one.score == pivot; });
    std::sort(better, equal, [](const Candidate& x, const Candidate& y) { return x.id < y.id; });
    double sum = before + mass_better;
    auto one = better;
    for (; one != equal && sum < limit; one++) sum += one->mass;
    if (sum >= limit) {
      first = last = one;
      break;
    }
    before = sum;
    first = equal;
  }
  if (first != last) first++;  // the last one left; the mass before it is below the limit
  candidates_.erase(first, candidates_.end());
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

// The first candidate whose cumulated mass exceeds floor(uniform * total).
int64_t TokenChooser::draw(uint64_t seed, int64_t position) const {
  double total = 0;
  for (const Candidate& one : candidates_) total += one.mass;
  const double target = std::floor(uniform(seed, position) * total);
  double sum = 0;
  for (const Candidate& one : candidates_) {
    sum += one.mass;
    if (sum > target) return one.id;
  }
  return kNoToken;
}

}  // namespace quire
