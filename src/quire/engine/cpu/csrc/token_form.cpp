#include "token_form.h"

namespace quire {
namespace {

// K of one head of a tile is a matrix of words: 32 bits for each element of a slot in float32, for
// each pair of elements in bfloat16. Both sides have head_dim elements, which an odd size leaves
// without its last pair.
template <class T>
constexpr int64_t kPerWord = 4 / static_cast<int64_t>(sizeof(T));

// From lanes [D words][16] to tokens, `stride` elements apart.
template <class T>
void read_keys(const T* lanes, int64_t count, int64_t head_dim, T* tokens, int64_t stride) {
  const int64_t words = head_dim / kPerWord<T>;
  for (int64_t j = 0; j < count; j++) {
    T* token = tokens + j * stride;
    for (int64_t d = 0; d < words; d++)
      std::memcpy(token + d * kPerWord<T>, lanes + (d * kTileSlots + j) * kPerWord<T>, 4);
    for (int64_t d = words * kPerWord<T>; d < head_dim; d++)
      token[d] = lanes[key_offset<T>(d, j)];
  }
}

template <class T>
void write_keys(T* lanes, int64_t count, int64_t head_dim, const T* tokens, int64_t stride) {
  const int64_t words = head_dim / kPerWord<T>;
  for (int64_t d = 0; d < words; d++)
    for (int64_t j = 0; j < count; j++)
      std::memcpy(lanes + (d * kTileSlots + j) * kPerWord<T>,
                  tokens + j * stride + d * kPerWord<T>, 4);
  for (int64_t d = words * kPerWord<T>; d < head_dim; d++)
    for (int64_t j = 0; j < count; j++) lanes[key_offset<T>(d, j)] = tokens[j * stride + d];
}

// V of one token: neighbours in float32, every second element in bfloat16.
template <class T>
constexpr int64_t kValueStep = kPerWord<T>;

}  // namespace

template <class T>
void read_tokens(const KVShape& shape, const T* keys, const T* values, const int64_t* slots,
                 int64_t count, T* tokens) {
  const int64_t dim = shape.head_dim, stride = shape.num_kv_heads * dim;
  for (SlotRun run{}; run.token + run.count < count;) {
    run = run_at(slots, run.token + run.count, count);
    for (int64_t head = 0; head < shape.num_kv_heads; head++) {
      const int64_t offset = run.tile * shape.tile_elements() + head * shape.head_elements();
      T* of_head = tokens + run.token * stride + head * dim;
      read_keys(keys + offset + key_offset<T>(0, run.lane), run.count, dim, of_head, stride);
      of_head += count * stride;
      for (int64_t j = 0; j < run.count; j++) {
        const T* source = values + offset + value_offset<T>(0, run.lane + j, shape.padded_dim);
        T* token = of_head + j * stride;
        for (int64_t d = 0; d < dim; d++) token[d] = source[d * kValueStep<T>];
      }
    }
  }
}

template <class T>
void write_tokens(const KVShape& shape, T* keys, T* values, const int64_t* slots, int64_t count,
                  const T* tokens) {
  const int64_t dim = shape.head_dim, stride = shape.num_kv_heads * dim;
  for (SlotRun run{}; run.token + run.count < count;) {
    run = run_at(slots, run.token + run.count, count);
    for (int64_t head = 0; head < shape.num_kv_heads; head++) {
      const int64_t offset = run.tile * shape.tile_elements() + head * shape.head_elements();
      const T* of_head = tokens + run.token * stride + head * dim;
      write_keys(keys + offset + key_offset<T>(0, run.lane), run.count, dim, of_head, stride);
      of_head += count * stride;
      for (int64_t j = 0; j < run.count; j++) {
        T* target = values + offset + value_offset<T>(0, run.lane + j, shape.padded_dim);
        const T* token = of_head + j * stride;
        for (int64_t d = 0; d < dim; d++) target[d * kValueStep<T>] = token[d];
      }
    }
  }
}

template void read_tokens(const KVShape&, const float*, const float*, const int64_t*, int64_t,
                          float*);
template void read_tokens(const KVShape&, const bf16*, const bf16*, const int64_t*, int64_t, bf16*);
template void write_tokens(const KVShape&, float*, float*, const int64_t*, int64_t, const float*);
template void write_tokens(const KVShape&, bf16*, bf16*, const int64_t*, int64_t, const bf16*);

}  // namespace quire
