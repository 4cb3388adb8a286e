#include "model_abi.h"

#include <vector>

namespace {

quire::KVShape shape_of(const quire::CacheView& cache) {
  return {cache.num_kv_heads, cache.head_dim, quire::padded_head_dim(cache.head_dim),
          static_cast<quire::KVType>(cache.type)};
}

// Whether slots i to i + 15 form a tile, in order.
bool is_tile(const int64_t* slots, int64_t i, int64_t count) {
  if (count - i < quire::kTileSlots || slots[i] % quire::kTileSlots != 0) return false;
  for (int64_t lane = 1; lane < quire::kTileSlots; lane++)
    if (slots[i + lane] != slots[i] + lane) return false;
  return true;
}

// A tile, whose size is a multiple of 512 bytes. In vectors, because memcpy() takes `rep movsb` for
// this size, which some processors run at a tenth of the speed where the two addresses are almost
// equal modulo a page.
template <class T>
void copy_tile(const T* from, T* to, int64_t elements) {
  const float* source = reinterpret_cast<const float*>(from);
  float* target = reinterpret_cast<float*>(to);
  const int64_t count = elements * static_cast<int64_t>(sizeof(T)) / 4;
  for (int64_t i = 0; i < count; i += 4 * quire::kWidth) {
    const quire::F32 a = quire::load(source + i), b = quire::load(source + i + quire::kWidth);
    const quire::F32 c = quire::load(source + i + 2 * quire::kWidth);
    const quire::F32 d = quire::load(source + i + 3 * quire::kWidth);
    quire::store(target + i, a);
    quire::store(target + i + quire::kWidth, b);
    quire::store(target + i + 2 * quire::kWidth, c);
    quire::store(target + i + 3 * quire::kWidth, d);
  }
}

// Copies between two caches, as all swaps do: whole tiles, which are most of a block, are copied as
// they are.
template <class T>
void copy_between(const quire::KVShape& shape, const quire::CacheView& from, const int64_t* source,
                  const quire::CacheView& to, const int64_t* target, int64_t count) {
  const int64_t size = shape.tile_elements();
  for (int64_t layer = 0; layer < from.num_layers; layer++) {
    const T *keys = static_cast<const T*>(from.keys[layer]),
            *values = static_cast<const T*>(from.values[layer]);
    T *to_keys = static_cast<T*>(to.keys[layer]), *to_values = static_cast<T*>(to.values[layer]);
    for (int64_t i = 0; i < count;) {
      if (is_tile(source, i, count) && is_tile(target, i, count)) {
        const int64_t a = source[i] / quire::kTileSlots * size;
        const int64_t b = target[i] / quire::kTileSlots * size;
        copy_tile(keys + a, to_keys + b, size);
        copy_tile(values + a, to_values + b, size);
        i += quire::kTileSlots;
      } else {
        quire::copy_slot(shape, keys, values, source[i], to_keys, to_values, target[i]);
        i++;
      }
    }
  }
}

template <class T>
void copy_slots(const quire::CacheView& from, const int64_t* source, const quire::CacheView& to,
                const int64_t* target, int64_t count) {
  const quire::KVShape shape = shape_of(from);
  if (from.keys[0] != to.keys[0]) {
    copy_between<T>(shape, from, source, to, target, count);
    return;
  }
  // Copies through a buffer, so that a source may also be a target.
  const int64_t tiles = (count + quire::kTileSlots - 1) / quire::kTileSlots;
  std::vector<T> keys(static_cast<size_t>(tiles * shape.tile_elements()));
  std::vector<T> values(keys.size());
  for (int64_t layer = 0; layer < from.num_layers; layer++) {
    for (int64_t i = 0; i < count; i++)
      quire::copy_slot(shape, static_cast<const T*>(from.keys[layer]),
                       static_cast<const T*>(from.values[layer]), source[i], keys.data(),
                       values.data(), i);
    for (int64_t i = 0; i < count; i++)
      quire::copy_slot(shape, keys.data(), values.data(), i, static_cast<T*>(to.keys[layer]),
                       static_cast<T*>(to.values[layer]), target[i]);
  }
}

template <class T>
void read_layers(const quire::CacheView& cache, const int64_t* slots, int64_t count, T* tokens) {
  const quire::KVShape shape = shape_of(cache);
  const int64_t elements = 2 * count * shape.num_kv_heads * shape.head_dim;
  for (int64_t layer = 0; layer < cache.num_layers; layer++)
    quire::read_tokens<T>(shape, static_cast<const T*>(cache.keys[layer]),
                          static_cast<const T*>(cache.values[layer]), slots, count,
                          tokens + layer * elements);
}

template <class T>
void write_layers(const quire::CacheView& cache, const int64_t* slots, int64_t count,
                  const T* tokens) {
  const quire::KVShape shape = shape_of(cache);
  const int64_t elements = 2 * count * shape.num_kv_heads * shape.head_dim;
  for (int64_t layer = 0; layer < cache.num_layers; layer++)
    quire::write_tokens<T>(shape, static_cast<T*>(cache.keys[layer]),
                           static_cast<T*>(cache.values[layer]), slots, count,
                           tokens + layer * elements);
}

}  // namespace

quire::Model* quire_model_create(const quire::ModelSpec* spec, quire::Team* team) {
  quire::Model* model = nullptr;
  quire::guarded([&] { model = new quire::Model(*spec, *team); });
  return model;
}

void quire_model_destroy(quire::Model* model) { delete model; }

quire::LayerProgress* quire_progress_create() {
  quire::LayerProgress* progress = nullptr;
  quire::guarded([&] { progress = new quire::LayerProgress(); });
  return progress;
}

void quire_progress_destroy(quire::LayerProgress* progress) { delete progress; }

void quire_progress_reach(quire::LayerProgress* progress, int64_t count) { progress->reach(count); }

void quire_progress_wait(quire::LayerProgress* progress, int64_t count) { progress->wait(count); }

void quire_model_watch(quire::Model* model, quire::LayerProgress* progress, int64_t base) {
  model->decoder.watch(progress, base);
}

void quire_model_embed(quire::Model* model, const int64_t* tokens, int64_t count, float* out) {
  model->decoder.embed(tokens, count, out);
}

int32_t quire_model_run(quire::Model* model, const quire::StepArguments* step, float* hidden) {
  return quire::guarded([&] { model->decoder.run(step->input, step->tables, hidden); });
}

int32_t quire_model_run_scored(quire::Model* model, const quire::StepArguments* step,
                               const quire::ScoredRows* scored, float* hidden) {
  return quire::guarded([&] { model->decoder.run(step->input, step->tables, hidden, scored); });
}

int32_t quire_model_logits(quire::Model* model, const float* hidden, int64_t count,
                           float* logits) {
  return quire::guarded([&] { model->decoder.logits(hidden, count, logits); });
}

int32_t quire_model_choose(quire::Model* model, const float* hidden,
                           const quire::ChoiceRows* rows) {
  return quire::guarded(
      [&] { model->choice.choose(hidden, quire::choices_of(*rows), rows->tokens); });
}

int32_t quire_model_best(quire::Model* model, const float* hidden, int64_t count, int64_t k,
                         int32_t* ids, float* probabilities) {
  return quire::guarded([&] { model->choice.best(hidden, count, k, ids, probabilities); });
}

int32_t quire_model_decode(quire::Model* model, const quire::DecodeRows* rows) {
  return quire::guarded([&] { model->loop.run(*rows); });
}

int32_t quire_model_advance(quire::Model* model, quire::AdvanceMessage* message,
                            const quire::SequenceColumns* columns) {
  return quire::guarded([&] { model->advance.run(*message, *columns); });
}

int64_t quire_choose(const float* logits, int64_t vocab_size, int32_t greedy, int64_t top_k,
                     double temperature, double min_p, double top_p, uint64_t seed,
                     int64_t position) {
  quire::TokenChooser chooser;
  return chooser.choose(
      logits, vocab_size,
      {greedy != 0, top_k, static_cast<float>(temperature), min_p, top_p, seed}, position);
}

int32_t quire_attend(quire::Team* team, const AttentionArguments* a) {
  return quire::guarded([&] {
    const quire::StepRows& rows = a->step->input.rows;
    const quire::KVShape shape{a->num_kv_heads, a->head_dim, quire::padded_head_dim(a->head_dim),
                               static_cast<quire::KVType>(a->kv_type)};
    const int64_t width = a->num_kv_heads * a->head_dim;
    for (int64_t t = 0; t < rows.num_tokens; t++) {
      const float *k = a->new_keys + t * width, *v = a->new_values + t * width;
      if (shape.type == quire::KVType::kBF16)
        quire::write_slot(shape, static_cast<quire::bf16*>(a->keys),
                          static_cast<quire::bf16*>(a->values), rows.slots[t], k, v);
      else
        quire::write_slot(shape, static_cast<float*>(a->keys), static_cast<float*>(a->values),
                          rows.slots[t], k, v);
    }
    quire::AttentionContext context;
    context.build(rows, a->step->tables, a->page_size, a->slot_positions);
    const quire::AttentionStep step{&rows, &context, a->slot_positions, shape, a->num_heads,
                                    a->page_size, static_cast<quire::Ordering>(a->ordering)};
    quire::AttentionWork work;
    work.plan(step, team->size());
    const int64_t q_size = a->num_heads * a->head_dim;
    team->run([&](int thread) {
      work.attend(step, *a->layer, {a->keys, a->values}, a->q, q_size, a->out, q_size, *team,
                  thread);
    });
  });
}

int64_t quire_cache_elements(int64_t num_slots, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t tiles = (num_slots + quire::kTileSlots - 1) / quire::kTileSlots;
  return tiles * num_kv_heads * quire::padded_head_dim(head_dim) * quire::kTileSlots;
}

int32_t quire_copy_slots(const quire::CacheView* from, const int64_t* source,
                         const quire::CacheView* to, const int64_t* target, int64_t count) {
  return quire::guarded([&] {
    if (from->type == static_cast<int32_t>(quire::KVType::kBF16))
      copy_slots<quire::bf16>(*from, source, *to, target, count);
    else
      copy_slots<float>(*from, source, *to, target, count);
  });
}

void quire_read_tokens(const quire::CacheView* cache, const int64_t* slots, int64_t count,
                       void* tokens) {
  if (cache->type == static_cast<int32_t>(quire::KVType::kBF16))
    read_layers(*cache, slots, count, static_cast<quire::bf16*>(tokens));
  else
    read_layers(*cache, slots, count, static_cast<float*>(tokens));
}

void quire_write_tokens(const quire::CacheView* cache, const int64_t* slots, int64_t count,
                        const void* tokens) {
  if (cache->type == static_cast<int32_t>(quire::KVType::kBF16))
    write_layers(*cache, slots, count, static_cast<const quire::bf16*>(tokens));
  else
    write_layers(*cache, slots, count, static_cast<const float*>(tokens));
}

int32_t quire_turn_keys(quire::Team* team, const quire::CacheView* cache, const int64_t* slots,
                        int64_t count, const quire::KeyTurns* turns) {
  return quire::guarded([&] {
    quire::turn_keys(*team, shape_of(*cache), cache->keys, cache->num_layers, slots, count, *turns);
  });
}
