// Owns the products of adapters (LoRA): y[t] += scale * up (down x[t]), for each token with the
// matrices of its adapter.
// Must not know which projection it is.
//
// Reference: LinearDelta in quire/engine/adapters/bank.py. The tokens of one adapter are gathered
// and go through two packed products; a token's bits do not depend on the other gathered tokens.
#pragma once

#include <vector>

#include "matmul.h"

namespace quire {

// One adapter at one projection. Its scaling is included in `up`, whose columns have the
// projection's packed order. An adapter that does not modify the projection has null panels.
struct AdapterPair {
  PackedMatrix down;  // [rank][depth]
  PackedMatrix up;    // [columns][rank]
};

class AdapterWork {
 public:
  // Groups the tokens of a step by adapter, -1 for none; null: no token has one. Called by one
  // thread before the team runs.
  void plan(const int32_t* adapters, int64_t num_tokens);

  // Whether any token of the step has an adapter that modifies the projection; pairs: null, or by
  // adapter.
  bool touches(const AdapterPair* pairs) const;

  // Adds to y. `source(token, row)` writes the projection's float input. Called by every thread; x
  // must be complete before, y is complete after.
  template <class Source>
  void add(const AdapterPair* pairs, const Source& source, float* y, int64_t stride, float scale,
           Ordering ordering, Team& team, int thread) {
    if (!touches(pairs)) return;
    if (thread == 0) reserve(pairs);
    team.barrier(thread);
    static thread_local std::vector<float> row;
    team.share(thread, static_cast<int64_t>(parts_.size()), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        const Part& part = parts_[static_cast<size_t>(i)];
        const AdapterPair& pair = pairs[part.adapter];
        if (pair.down.panels == nullptr) continue;
        row.resize(static_cast<size_t>(pair.down.depth));
        for (int64_t r = 0; r < part.num_tokens; r++) {
          source(tokens_[static_cast<size_t>(part.first + r)], row.data());
          convert_row(row.data(), r, part.input);
        }
        narrow(pair, part, ordering);
      }
    });
    team.barrier(thread);
    widen(pairs, y, stride, scale, ordering, team, thread);
  }

 private:
  // Some tokens of one adapter: tokens_[first, first + num_tokens).
  struct Part {
    int32_t adapter;
    int64_t first, num_tokens;
    Activations input, thin;
  };

  void reserve(const AdapterPair* pairs);
  void narrow(const AdapterPair& pair, const Part& part, Ordering ordering);
  void widen(const AdapterPair* pairs, float* y, int64_t stride, float scale, Ordering ordering,
             Team& team, int thread);

  std::vector<int64_t> tokens_;
  std::vector<Part> parts_;
  std::vector<uint8_t> buffer_;
};

}  // namespace quire
