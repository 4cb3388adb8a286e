// Owns the translation between slots of a cache and tokens in canonical form, in which engines
// exchange K and V: [K, V][token][KV head][head size], without padding, bit for bit.
// Must not know layers or who exchanges; slots are flat, in any order.
//
// Reference: quire/engine/kv_cache/token_form.py.
#pragma once

#include <algorithm>

#include "kv_cache.h"

namespace quire {

// Tokens whose slots are neighbours in one tile.
struct SlotRun {
  int64_t token;  // of the first one
  int64_t tile;
  int64_t lane;
  int64_t count;
};

// The run that begins with slots[i].
inline SlotRun run_at(const int64_t* slots, int64_t i, int64_t count) {
  const int64_t lane = slots[i] % kTileSlots;
  const int64_t most = std::min(count - i, kTileSlots - lane);
  int64_t length = 1;
  while (length < most && slots[i + length] == slots[i] + length) length++;
  return {i, slots[i] / kTileSlots, lane, length};
}

// Fills `tokens`, [2][count][num_kv_heads][head_dim], from one layer's slots.
template <class T>
void read_tokens(const KVShape& shape, const T* keys, const T* values, const int64_t* slots,
                 int64_t count, T* tokens);

// The reverse. Elements that are padding stay as they are.
template <class T>
void write_tokens(const KVShape& shape, T* keys, T* values, const int64_t* slots, int64_t count,
                  const T* tokens);

extern template void read_tokens(const KVShape&, const float*, const float*, const int64_t*,
                                 int64_t, float*);
extern template void read_tokens(const KVShape&, const bf16*, const bf16*, const int64_t*, int64_t,
                                 bf16*);
extern template void write_tokens(const KVShape&, float*, float*, const int64_t*, int64_t,
                                  const float*);
extern template void write_tokens(const KVShape&, bf16*, bf16*, const int64_t*, int64_t,
                                  const bf16*);

}  // namespace quire
