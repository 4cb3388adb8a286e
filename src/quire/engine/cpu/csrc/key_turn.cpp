#include "key_turn.h"

#include <vector>

#include "rotary.h"

namespace quire {
namespace {

float widened(float value) { return value; }
float widened(bf16 value) { return to_f32(value); }
void narrow(float value, float& to) { to = value; }
void narrow(float value, bf16& to) { to = to_bf16(value); }

// Turns one slot of one layer. `head` holds padded_dim numbers.
template <class T>
void turn_slot(const KVShape& shape, T* keys, int64_t slot, const float* angles, int64_t num_planes,
               float* head) {
  const int64_t lane = slot % kTileSlots;
  T* tile = keys + slot / kTileSlots * shape.tile_elements();
  for (int64_t h = 0; h < shape.num_kv_heads; h++) {
    T* of_head = tile + h * shape.head_elements();
    for (int64_t d = 0; d < 2 * num_planes; d++) head[d] = widened(of_head[key_offset<T>(d, lane)]);
    rotate(head, angles, num_planes);
    for (int64_t d = 0; d < 2 * num_planes; d++)
      narrow(head[d], of_head[key_offset<T>(d, lane)]);
  }
}

}  // namespace

void turn_keys(Team& team, const KVShape& shape, void* const* keys, int64_t num_layers,
               const int64_t* slots, int64_t count, const KeyTurns& turns) {
  constexpr int64_t kGrain = 16;
  std::vector<float> heads(static_cast<size_t>(team.size() * shape.padded_dim));
  team.run([&](int thread) {
    float* head = heads.data() + thread * shape.padded_dim;
    team.share(thread, num_layers * count, kGrain, [&](int64_t first, int64_t last) {
      for (int64_t item = first; item < last; item++) {
        const int64_t layer = item / count, i = item % count;
        const int64_t rope = turns.rope_of_layer[layer], planes = turns.num_planes[rope];
        const float* angles = turns.angles[rope] + i * 2 * planes;
        if (shape.type == KVType::kBF16)
          turn_slot(shape, static_cast<bf16*>(keys[layer]), slots[i], angles, planes, head);
        else
          turn_slot(shape, static_cast<float*>(keys[layer]), slots[i], angles, planes, head);
      }
    });
  });
}

}  // namespace quire
