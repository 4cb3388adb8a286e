// Owns the C interface of models: creating one, running a step. See abi.h for the conventions.
#pragma once

#include "abi.h"
#include "advance.h"
#include "decode_loop.h"
#include "decoder.h"
#include "key_turn.h"
#include "token_form.h"

namespace quire {

// A decoder and the state of its calls.
struct Model {
  Model(const ModelSpec& spec, Team& team)
      : decoder(spec, team), choice(decoder, team), loop(decoder, choice), advance(decoder, loop) {}
  Decoder decoder;
  TokenChoice choice;
  DecodeLoop loop;
  Advance advance;
};

// One step's arrays, as Python passes them. Mirrored in quire/engine/cpu/model_abi.py.
struct StepArguments {
  StepInput input;
  PageTablesView tables;
};

// K and V of a cache in slots, every layer: device blocks or host blocks.
struct CacheView {
  void* const* keys;    // [num_layers]
  void* const* values;
  int64_t num_layers;
  int64_t num_kv_heads;
  int64_t head_dim;
  int32_t type;  // KVType
  int32_t reserved;
};

}  // namespace quire

// Copies the spec's structs, but not the memory that they point to. `team` must outlive the model.
QUIRE_EXPORT quire::Model* quire_model_create(const quire::ModelSpec* spec, quire::Team* team);
QUIRE_EXPORT void quire_model_destroy(quire::Model* model);
QUIRE_EXPORT void quire_model_embed(quire::Model* model, const int64_t* tokens, int64_t count,
                                    float* out);
// See Decoder::watch. Another thread may wait; nothing waits when the progress is destroyed.
QUIRE_EXPORT quire::LayerProgress* quire_progress_create();
QUIRE_EXPORT void quire_progress_destroy(quire::LayerProgress* progress);
QUIRE_EXPORT void quire_progress_reach(quire::LayerProgress* progress, int64_t count);
QUIRE_EXPORT void quire_progress_wait(quire::LayerProgress* progress, int64_t count);
QUIRE_EXPORT void quire_model_watch(quire::Model* model, quire::LayerProgress* progress,
                                    int64_t base);
// hidden: [num_tokens][hidden_size]. A Status.
QUIRE_EXPORT int32_t quire_model_run(quire::Model* model, const quire::StepArguments* step,
                                     float* hidden);
// The same, and adds up the attention mass of some rows.
QUIRE_EXPORT int32_t quire_model_run_scored(quire::Model* model, const quire::StepArguments* step,
                                            const quire::ScoredRows* scored, float* hidden);
QUIRE_EXPORT int32_t quire_model_logits(quire::Model* model, const float* hidden, int64_t count,
                                        float* logits);

// Chooses a token after each hidden state [num_rows][hidden_size]. Returns a Status.
QUIRE_EXPORT int32_t quire_model_choose(quire::Model* model, const float* hidden,
                                        const quire::ChoiceRows* rows);
// The k best of the distribution after each hidden state, see TokenChoice::best. Returns a Status.
QUIRE_EXPORT int32_t quire_model_best(quire::Model* model, const float* hidden, int64_t count,
                                      int64_t k, int32_t* ids, float* probabilities);
// The decode loop. Returns a Status.
QUIRE_EXPORT int32_t quire_model_decode(quire::Model* model, const quire::DecodeRows* rows);
// A message that only advances sequences. Returns a Status; AdvanceMessage says when nothing was
// done.
QUIRE_EXPORT int32_t quire_model_advance(quire::Model* model, quire::AdvanceMessage* message,
                                         const quire::SequenceColumns* columns);
// For tests: chooses a token for one row of logits, as the loop does.
QUIRE_EXPORT int64_t quire_choose(const float* logits, int64_t vocab_size, int32_t greedy,
                                  int64_t top_k, double temperature, double min_p, double top_p,
                                  uint64_t seed, int64_t position);

// For tests: attention of one layer alone. Writes K and V of the step's tokens to their slots, then
// attends. q [num_tokens][num_heads][head_dim]; new_keys and new_values [num_tokens]
// [num_kv_heads][head_dim]; out like q. `slot_positions` already holds those of the step's tokens.
struct AttentionArguments {
  const quire::StepArguments* step;
  const quire::LayerAttention* layer;
  const int32_t* slot_positions;
  const float* q;
  const float* new_keys;
  const float* new_values;
  void* keys;
  void* values;
  float* out;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  int32_t kv_type;
  int32_t ordering;
};
QUIRE_EXPORT int32_t quire_attend(quire::Team* team, const AttentionArguments* arguments);

// Elements of K (or of V) of one layer for `num_slots` slots.
QUIRE_EXPORT int64_t quire_cache_elements(int64_t num_slots, int64_t num_kv_heads,
                                          int64_t head_dim);
// Copies slots of one cache to slots of another, or of the same (then all sources are read before a
// target is written). Returns a Status.
QUIRE_EXPORT int32_t quire_copy_slots(const quire::CacheView* from, const int64_t* source,
                                      const quire::CacheView* to, const int64_t* target,
                                      int64_t count);

// Tokens in canonical form, [num_layers][2][count][num_kv_heads][head_dim] (token_form.h), from
// slots of `cache` and back. On the caller's thread.
QUIRE_EXPORT void quire_read_tokens(const quire::CacheView* cache, const int64_t* slots,
                                    int64_t count, void* tokens);
QUIRE_EXPORT void quire_write_tokens(const quire::CacheView* cache, const int64_t* slots,
                                     int64_t count, const void* tokens);

// Rotates K of `slots`, each named once, in every layer of `cache` (key_turn.h). Returns a Status.
QUIRE_EXPORT int32_t quire_turn_keys(quire::Team* team, const quire::CacheView* cache,
                                     const int64_t* slots, int64_t count,
                                     const quire::KeyTurns* turns);
