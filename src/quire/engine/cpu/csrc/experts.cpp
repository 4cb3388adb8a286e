#include "experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "activation.h"

namespace quire {
namespace {

constexpr int64_t kPanelsPerItem = 4;

int64_t aligned_bytes(WeightType type, int64_t rows, int64_t depth) {
  return round_up(activation_bytes(type, rows, depth), 64);
}

}  // namespace

void ExpertsWork::reserve(const ExpertsSpec& spec, int64_t num_rows, int64_t hidden_size) {
  const int64_t num_pairs = num_rows * spec.top_k, width = spec.gate_up[0].num_columns;
  logits_.resize(static_cast<size_t>(num_rows * spec.num_experts));
  chosen_.resize(static_cast<size_t>(num_pairs));
  weights_.resize(static_cast<size_t>(num_pairs));
  rows_.resize(static_cast<size_t>(num_pairs));
  pair_of_.resize(static_cast<size_t>(num_pairs));
  inner_.resize(static_cast<size_t>(num_pairs * width));
  outer_.resize(static_cast<size_t>(num_pairs * hidden_size));
  // Every group begins a new block of rows.
  const WeightType type = spec.gate_up[0].type;
  const int64_t num_groups = std::min(num_pairs, spec.num_experts);
  const int64_t per_row = aligned_bytes(type, 1, hidden_size) + aligned_bytes(type, 1, width);
  const int64_t routed = aligned_bytes(spec.router.type, num_rows, hidden_size);
  const int64_t bytes = routed + (num_pairs + num_groups * kBlockRows) * per_row + 64;
  if (static_cast<int64_t>(buffer_.size()) < bytes) buffer_.resize(static_cast<size_t>(bytes));
  uint8_t* base = buffer_.data() + (64 - reinterpret_cast<uintptr_t>(buffer_.data()) % 64) % 64;
  routed_ = make_activations(base, spec.router.type, num_rows, hidden_size);
  inputs_ = base + routed;
}

// Experts and weights of one row, from its logits.
void ExpertsWork::route(const ExpertsSpec& spec, int64_t row) {
  const int64_t count = spec.num_experts, top_k = spec.top_k;
  float* logits = logits_.data() + row * count;
  int32_t* chosen = chosen_.data() + row * top_k;
  float* weights = weights_.data() + row * top_k;
  const float largest = *std::max_element(logits, logits + count);
  float total = 0;
  for (int64_t e = 0; e < count; e++) total += std::exp(logits[e] - largest);
  for (int64_t a = 0; a < top_k; a++) {
    int64_t best = -1;
    for (int64_t e = 0; e < count; e++) {
      const bool taken = std::find(chosen, chosen + a, static_cast<int32_t>(e)) != chosen + a;
      if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
    }
    chosen[a] = static_cast<int32_t>(best);
    weights[a] = std::exp(logits[best] - largest) / total;
  }
  if (!spec.chosen_scoring && !spec.normalize) return;
  const float sum = std::accumulate(weights, weights + top_k, 0.0f);
  for (int64_t a = 0; a < top_k; a++) weights[a] /= sum;
}

// Pairs of a row and an expert, sorted by expert and then by row.
void ExpertsWork::group(const ExpertsSpec& spec, int64_t num_rows, int64_t hidden_size) {
  groups_.clear();
  const WeightType type = spec.gate_up[0].type;
  const int64_t width = spec.gate_up[0].num_columns, num_pairs = num_rows * spec.top_k;
  std::vector<int64_t> starts(static_cast<size_t>(spec.num_experts + 1), 0);
  for (int64_t i = 0; i < num_pairs; i++) starts[static_cast<size_t>(chosen_[i] + 1)]++;
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  uint8_t* next = inputs_;
  for (int64_t e = 0; e < spec.num_experts; e++) {
    const int64_t first = starts[e], count = starts[e + 1] - first;
    if (count == 0) continue;
    Group one{e, first, count, make_activations(next, type, count, hidden_size), {}};
    next += aligned_bytes(type, count, hidden_size);
    one.inner = make_activations(next, type, count, width);
    next += aligned_bytes(type, count, width);
    groups_.push_back(one);
  }
  for (int64_t i = 0; i < num_pairs; i++) {
    const int64_t pair = starts[static_cast<size_t>(chosen_[i])]++;
    rows_[pair] = static_cast<int32_t>(i / spec.top_k);
    pair_of_[i] = static_cast<int32_t>(pair);
  }
}

void ExpertsWork::run(const ExpertsSpec& spec, Epilogue activation, Ordering ordering,
                      const float* x, int64_t num_rows, int64_t hidden_size, float* y, Team& team,
                      int thread) {
  if (thread == 0) reserve(spec, num_rows, hidden_size);
  team.barrier(thread);
  int64_t first_row, last_row;
  team.part(thread, num_rows, &first_row, &last_row);
  convert_rows(x, hidden_size, nullptr, first_row, last_row, routed_);
  team.barrier(thread);
  MatmulOutput routing{logits_.data(), spec.num_experts, spec.router_bias};
  matmul(spec.router, routed_, routing, ordering, team, thread);
  team.barrier(thread);
  for (int64_t row = first_row; row < last_row; row++) route(spec, row);
  team.barrier(thread);
  if (thread == 0) group(spec, num_rows, hidden_size);
  team.barrier(thread);

  const int64_t num_groups = static_cast<int64_t>(groups_.size());
  const int64_t width = spec.gate_up[0].num_columns;
  team.share(thread, num_groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; g++) {
      const Group& one = groups_[g];
      convert_rows(x, hidden_size, rows_.data() + one.first_pair, 0, one.num_pairs, one.input);
    }
  });
  team.barrier(thread);
  const auto product = [&](const PackedMatrix* matrices, const float* const* biases,
                           Epilogue epilogue, bool inner, std::vector<float>& out, int64_t stride) {
    const int64_t panels = num_panels(matrices[0]);
    const int64_t items = (panels + kPanelsPerItem - 1) / kPanelsPerItem;
    team.share(thread, num_groups * items, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        const Group& one = groups_[i / items];
        const int64_t panel = i % items * kPanelsPerItem;
        MatmulOutput output{out.data() + one.first_pair * stride, stride,
                            biases ? biases[one.expert] : nullptr, epilogue};
        matmul_panels(matrices[one.expert], inner ? one.inner : one.input, output, panel,
                      std::min(panel + kPanelsPerItem, panels), ordering);
      }
    });
    team.barrier(thread);
  };
  product(spec.gate_up, spec.gate_up_bias, activation, false, inner_, width);
  team.share(thread, num_groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; g++) {
      const Group& one = groups_[g];
      convert_rows(inner_.data() + one.first_pair * width, width, nullptr, 0, one.num_pairs,
                   one.inner);
    }
  });
  team.barrier(thread);
  product(spec.down, spec.down_bias, Epilogue::kStore, true, outer_, hidden_size);
  for (int64_t row = first_row; row < last_row; row++) {
    float* target = y + row * hidden_size;
    std::fill(target, target + hidden_size, 0.0f);
    for (int64_t a = 0; a < spec.top_k; a++)
      add_scaled(target, outer_.data() + pair_of_[row * spec.top_k + a] * hidden_size, hidden_size,
                 weights_[row * spec.top_k + a]);
  }
}

}  // namespace quire
