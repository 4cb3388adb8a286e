#include "adapters.h"

#include <algorithm>

#include "activation.h"

namespace quire {
namespace {

// Tokens per thread and turn: a whole block of rows, several in a long prefill.
constexpr int64_t kPartTokens = 4 * kBlockRows;

int64_t aligned_bytes(WeightType type, int64_t num_rows, int64_t depth) {
  return round_up(activation_bytes(type, num_rows, depth), 64);
}

}  // namespace

void AdapterWork::plan(const int32_t* adapters, int64_t num_tokens) {
  parts_.clear();
  if (adapters == nullptr) return;
  tokens_.clear();
  for (int64_t t = 0; t < num_tokens; t++)
    if (adapters[t] >= 0) tokens_.push_back(t);
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [&](int64_t a, int64_t b) { return adapters[a] < adapters[b]; });
  const auto count = static_cast<int64_t>(tokens_.size());
  for (int64_t first = 0; first < count;) {
    const int32_t adapter = adapters[tokens_[static_cast<size_t>(first)]];
    int64_t last = first;
    while (last < count && last - first < kPartTokens &&
           adapters[tokens_[static_cast<size_t>(last)]] == adapter)
      last++;
    parts_.push_back({adapter, first, last - first, {}, {}});
    first = last;
  }
}

bool AdapterWork::touches(const AdapterPair* pairs) const {
  return pairs != nullptr && std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) {
           return pairs[part.adapter].down.panels != nullptr;
         });
}

// Allocates the converted rows of every part, for the inputs of both products.
void AdapterWork::reserve(const AdapterPair* pairs) {
  int64_t num_bytes = 64;
  for (const Part& part : parts_) {
    const AdapterPair& pair = pairs[part.adapter];
    if (pair.down.panels == nullptr) continue;
    num_bytes += aligned_bytes(pair.down.type, part.num_tokens, pair.down.depth) +
                 aligned_bytes(pair.up.type, part.num_tokens, pair.up.depth);
  }
  if (num_bytes > static_cast<int64_t>(buffer_.size())) buffer_.resize(static_cast<size_t>(num_bytes));
  uint8_t* next = buffer_.data() + (64 - reinterpret_cast<uintptr_t>(buffer_.data()) % 64) % 64;
  for (Part& part : parts_) {
    const AdapterPair& pair = pairs[part.adapter];
    if (pair.down.panels == nullptr) continue;
    part.input = make_activations(next, pair.down.type, part.num_tokens, pair.down.depth);
    next += aligned_bytes(pair.down.type, part.num_tokens, pair.down.depth);
    part.thin = make_activations(next, pair.up.type, part.num_tokens, pair.up.depth);
    next += aligned_bytes(pair.up.type, part.num_tokens, pair.up.depth);
  }
}

// down x of one part, converted for the second product.
void AdapterWork::narrow(const AdapterPair& pair, const Part& part, Ordering ordering) {
  static thread_local std::vector<float> thin;
  const int64_t rank = pair.down.num_columns;
  thin.resize(static_cast<size_t>(part.num_tokens * rank));
  matmul_panels(pair.down, part.input, {thin.data(), rank, nullptr}, 0, num_panels(pair.down),
                ordering);
  convert_rows(thin.data(), rank, nullptr, 0, part.num_tokens, part.thin);
}

// y += scale * up (down x), panel by panel of the projection's columns.
void AdapterWork::widen(const AdapterPair* pairs, float* y, int64_t stride, float scale,
                        Ordering ordering, Team& team, int thread) {
  static thread_local std::vector<float> wide;
  int64_t most = 0;
  for (const Part& part : parts_) most = std::max(most, num_panels(pairs[part.adapter].up));
  const auto num_parts = static_cast<int64_t>(parts_.size());
  team.share(thread, num_parts * most, 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const Part& part = parts_[static_cast<size_t>(i / most)];
      PackedMatrix panel = pairs[part.adapter].up;
      const int64_t column = i % most * kPanelColumns;
      if (panel.panels == nullptr || column >= panel.num_columns) continue;
      panel.panels += i % most * panel.panel_bytes;
      panel.num_columns = std::min(kPanelColumns, panel.num_columns - column);
      wide.resize(static_cast<size_t>(part.num_tokens * kPanelColumns));
      matmul_panels(panel, part.thin, {wide.data(), kPanelColumns, nullptr}, 0, 1, ordering);
      for (int64_t r = 0; r < part.num_tokens; r++)
        add_scaled(y + tokens_[static_cast<size_t>(part.first + r)] * stride + column,
                   wide.data() + r * kPanelColumns, panel.num_columns, scale);
    }
  });
  team.barrier(thread);
}

}  // namespace quire
