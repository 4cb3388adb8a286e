// Owns the memory layout of one layer's K and V, and writing a token's K and V to its slot.
// Must not know pages or rows: a slot is a flat number, as in quire/engine/kv_cache/pool.py.
//
// Slots are stored in tiles of 16, whatever the page size is. D is the head size rounded up to 16,
// padded with zeros.
//   K  f32  [tile][kv_head][D][16]         bf16  [tile][kv_head][D / 2][16][2]
//   V  f32  [tile][kv_head][16][D]         bf16  [tile][kv_head][8][D][2]
// The scores of 16 slots are thus a sum of vectors over D, the values of 16 slots a sum of rows,
// and the bf16 forms are the right-hand sides that AMX loads for the two products.
#pragma once

#include "simd.h"

namespace quire {

constexpr int64_t kTileSlots = 16;

enum class KVType : int32_t { kF32 = 0, kBF16 = 1 };

struct KVShape {
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t padded_dim;  // D
  KVType type;

  int64_t head_elements() const { return padded_dim * kTileSlots; }  // per head and tile
  int64_t tile_elements() const { return num_kv_heads * head_elements(); }
};

inline int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Offset of (element d, lane) in a head of a tile.
template <class T>
int64_t key_offset(int64_t d, int64_t lane) {
  if constexpr (sizeof(T) == 4) return d * kTileSlots + lane;
  return d / 2 * (2 * kTileSlots) + 2 * lane + d % 2;
}
template <class T>
int64_t value_offset(int64_t d, int64_t lane, int64_t padded_dim) {
  if constexpr (sizeof(T) == 4) return lane * padded_dim + d;
  return lane / 2 * (2 * padded_dim) + 2 * d + lane % 2;
}

// Writes one head of one token to its lane.
inline void write_head(float* k, float* v, int64_t lane, int64_t head_dim, int64_t padded_dim,
                       const float* key, const float* value) {
  for (int64_t d = 0; d < head_dim; d++) k[d * kTileSlots + lane] = key[d];
  std::memcpy(v + lane * padded_dim, value, static_cast<size_t>(head_dim) * sizeof(float));
}

inline void write_head(bf16* k, bf16* v, int64_t lane, int64_t head_dim, int64_t padded_dim,
                       const float* key, const float* value) {
  bf16* of_value = v + value_offset<bf16>(0, lane, padded_dim);
  for (int64_t first = 0; first < head_dim; first += kWidth) {
    const int64_t count = head_dim - first < kWidth ? head_dim - first : kWidth;
    bf16 rounded[kWidth];
    store(rounded, load_n(key + first, count));
    for (int64_t i = 0; i < count; i += 2)  // in pairs; the last pair of an odd size is padded
      std::memcpy(k + key_offset<bf16>(first + i, lane), rounded + i, 2 * sizeof(bf16));
    store(rounded, load_n(value + first, count));
    for (int64_t i = 0; i < count; i++) of_value[2 * (first + i)] = rounded[i];
  }
}

// Writes K and V of all KV heads of one token: key and value are [num_kv_heads][head_dim].
template <class T>
void write_slot(const KVShape& shape, T* keys, T* values, int64_t slot, const float* key,
                const float* value) {
  const int64_t tile = slot / kTileSlots, lane = slot % kTileSlots;
  for (int64_t head = 0; head < shape.num_kv_heads; head++) {
    const int64_t offset = tile * shape.tile_elements() + head * shape.head_elements();
    write_head(keys + offset, values + offset, lane, shape.head_dim, shape.padded_dim,
               key + head * shape.head_dim, value + head * shape.head_dim);
  }
}

// Prefetches the lines that write_slot() writes.
template <class T>
void prefetch_slot(const KVShape& shape, const T* keys, const T* values, int64_t slot) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kTogether = sizeof(T) == 4 ? 1 : 2;  // adjacent elements of K, or slots of V
  const int64_t tile = slot / kTileSlots, lane = slot % kTileSlots;
  for (int64_t head = 0; head < shape.num_kv_heads; head++) {
    const int64_t offset = tile * shape.tile_elements() + head * shape.head_elements();
    for (int64_t d = 0; d < shape.padded_dim; d += kTogether)
      __builtin_prefetch(keys + offset + key_offset<T>(d, lane), 1);
    const T* value = values + offset + value_offset<T>(0, lane - lane % kTogether, shape.padded_dim);
    for (int64_t i = 0; i < kTogether * shape.padded_dim; i += kLine)
      __builtin_prefetch(value + i, 1);
  }
}

// Copies slot `from` of one cache to slot `to` of another (or the same), one layer.
template <class T>
void copy_slot(const KVShape& shape, const T* from_keys, const T* from_values, int64_t from,
               T* to_keys, T* to_values, int64_t to) {
  for (int64_t head = 0; head < shape.num_kv_heads; head++) {
    const int64_t source = from / kTileSlots * shape.tile_elements() + head * shape.head_elements();
    const int64_t target = to / kTileSlots * shape.tile_elements() + head * shape.head_elements();
    const int64_t a = from % kTileSlots, b = to % kTileSlots;
    for (int64_t d = 0; d < shape.head_dim; d++) {
      to_keys[target + key_offset<T>(d, b)] = from_keys[source + key_offset<T>(d, a)];
      to_values[target + value_offset<T>(d, b, shape.padded_dim)] =
          from_values[source + value_offset<T>(d, a, shape.padded_dim)];
    }
  }
}

}  // namespace quire
