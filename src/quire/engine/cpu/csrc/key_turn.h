// Owns moving cached keys to other positions: it rotates them in place. Must not know positions or
// frequencies: it gets angles, one set for each rope and slot.
//
// Reference: quire/engine/layers/key_turn.py and TorchKVPool.reposition, in float32.
#pragma once

#include "kv_cache.h"
#include "team.h"

namespace quire {

// The rotations of some slots' keys. Mirrored in quire/engine/cpu/model_abi.py.
struct KeyTurns {
  const float* const* angles;    // by rope: [count][num_planes cosines, then num_planes sines]
  const int64_t* num_planes;     // by rope
  const int64_t* rope_of_layer;  // [num_layers]
};

// Rotates K of `slots`, each named once, in every layer. `keys` [num_layers] are caches of `shape`.
void turn_keys(Team& team, const KVShape& shape, void* const* keys, int64_t num_layers,
               const int64_t* slots, int64_t count, const KeyTurns& turns);

}  // namespace quire
