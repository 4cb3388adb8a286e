#include "decoder.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "activation.h"
#include "norm.h"

namespace quire {
namespace {

// Rows per thread and turn in loops over tokens.
constexpr int64_t kRowGrain = 4;
// The same where many tokens are written to the cache: neighbours share the cache lines of a tile,
// which two threads should not write alternately.
constexpr int64_t kTileGrain = 2 * kTileSlots;

// Room for converted rows of up to this depth, for any weight type.
int64_t converted_bytes(int64_t num_rows, int64_t depth) {
  return std::max({activation_bytes(WeightType::kF32, num_rows, depth),
                   activation_bytes(WeightType::kBF16, num_rows, depth),
                   activation_bytes(WeightType::kInt8, num_rows, depth)});
}

}  // namespace

uint8_t* Buffer::bytes(int64_t count) {
  if (count > size_) {
    memory_.reset();
    size_ = 0;
    const int64_t size = round_up(count + 64, 4096);
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(4096, static_cast<size_t>(size))));
    if (!memory_) throw std::bad_alloc();
    size_ = size;
  }
  return memory_.get();
}

Decoder::Decoder(const ModelSpec& spec, Team& team)
    : spec_(spec),
      layers_(spec.layers, spec.layers + spec.num_layers),
      team_(team),
      kv_shape_{spec.num_kv_heads, spec.head_dim, padded_head_dim(spec.head_dim),
                static_cast<KVType>(spec.kv_type)} {
  for (int64_t i = 0; i < spec.num_ropes; i++) {
    const RopeSpec& rope = spec.ropes[i];
    ropes_.emplace_back(rope.frequencies, rope.num_planes, rope.scale, rope.query_beta,
                        rope.query_length);
  }
}

void Decoder::embed_row(int64_t token, float* out) const {
  const int64_t size = spec_.hidden_size;
  const PackedMatrix& packed = spec_.output;
  const int64_t column = token % kPanelColumns;
  const uint8_t* panel = packed.panels + token / kPanelColumns * packed.panel_bytes;
  if (spec_.embedding != nullptr) {
    if (spec_.embedding_type == static_cast<int32_t>(WeightType::kF32)) {
      std::memcpy(out, static_cast<const float*>(spec_.embedding) + token * size,
                  static_cast<size_t>(size) * sizeof(float));
    } else {
      const bf16* row = static_cast<const bf16*>(spec_.embedding) + token * size;
      for (int64_t i = 0; i < size; i++) out[i] = to_f32(row[i]);
    }
  } else if (packed.type == WeightType::kF32) {
    const float* weights = reinterpret_cast<const float*>(panel) + column;
    for (int64_t k = 0; k < size; k++) out[k] = weights[k * kPanelColumns];
  } else if (packed.type == WeightType::kBF16) {
    const bf16* weights = reinterpret_cast<const bf16*>(panel) + 2 * column;
    for (int64_t k = 0; k < size; k++)
      out[k] = to_f32(weights[k / 2 * (2 * kPanelColumns) + k % 2]);
  } else {
    const int8_t* weights = reinterpret_cast<const int8_t*>(panel) + 4 * column;
    const float scale = packed.scales[token];
    for (int64_t k = 0; k < size; k++)
      out[k] = scale * static_cast<float>(weights[k / 4 * (4 * kPanelColumns) + k % 4]);
  }
  if (spec_.embedding_multiplier != 1.0f) scale_row(out, size, spec_.embedding_multiplier);
}

void Decoder::embed(const int64_t* tokens, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i++) embed_row(tokens[i], out + i * spec_.hidden_size);
}

void Decoder::run(const StepInput& input, const PageTablesView& tables, float* hidden,
                  const ScoredRows* scored) {
  const StepRows& rows = input.rows;
  const int64_t num_tokens = rows.num_tokens, hidden_size = spec_.hidden_size;
  for (int64_t t = 0; t < num_tokens; t++) spec_.slot_positions[rows.slots[t]] = rows.positions[t];
  context_.build(rows, tables, spec_.page_size, spec_.slot_positions);
  for (RotaryTable& rope : ropes_) rope.prepare(rows.positions, num_tokens);
  attention_step_ = {&rows,    &context_,       spec_.slot_positions,
                     kv_shape_, spec_.num_heads, spec_.page_size,
                     static_cast<Ordering>(spec_.ordering)};
  attention_.plan(attention_step_, team_.size());
  is_scored_ = scored != nullptr;
  if (is_scored_) scores_.plan(*scored, kv_shape_);

  const int64_t q_size = spec_.num_heads * spec_.head_dim;
  const int64_t qkv_size = q_size + 2 * spec_.num_kv_heads * spec_.head_dim;
  int64_t widest = std::max(hidden_size, q_size), inner = hidden_size;
  for (const LayerSpec& layer : layers_)
    if (layer.experts == nullptr) inner = std::max(inner, layer.gate_up.num_columns);
  widest = std::max(widest, inner);
  x_ = x_buffer_.floats(num_tokens * hidden_size);
  y_ = y_buffer_.floats(num_tokens * hidden_size);
  qkv_ = qkv_buffer_.floats(num_tokens * qkv_size);
  attended_ = attended_buffer_.floats(num_tokens * q_size);
  inner_ = inner_buffer_.floats(num_tokens * inner);
  converted_buffer_.bytes(converted_bytes(num_tokens, widest));
  inner_converted_ = inner_converted_buffer_.bytes(converted_bytes(num_tokens, inner));
  adapters_.plan(input.adapters, num_tokens);
  int64_t gated = 0;
  for (const LayerSpec& layer : layers_)
    if (adapters_.touches(layer.gate_up_adapters))
      gated = std::max(gated, num_panels(layer.gate_up) * kPanelColumns);
  gated_ = gated_buffer_.floats(num_tokens * gated);
  team_.run([&](int thread) { walk(input, hidden, thread); });
}

void Decoder::walk(const StepInput& input, float* hidden, int thread) {
  const int64_t num_tokens = input.rows.num_tokens, size = spec_.hidden_size;
  team_.share(thread, num_tokens, kRowGrain, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) {
      const int32_t embed = input.embeds ? input.embeds[t] : -1;
      if (embed < 0)
        embed_row(input.tokens[t], x_ + t * size);
      else
        std::memcpy(x_ + t * size, input.vectors + embed * size,
                    static_cast<size_t>(size) * sizeof(float));
    }
  });
  team_.barrier(thread);
  for (const LayerSpec& layer : layers_) {
    norm_and_convert(layer.attention_norm, num_tokens, layer.qkv, thread);
    attend(layer, input, thread);
    feed_forward(layer, num_tokens, thread);
  }
  team_.share(thread, num_tokens, kRowGrain, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++)
      rms_norm(x_ + t * size, spec_.final_norm, size, spec_.norm_eps, hidden + t * size);
  });
}

// Normed rows of the residual stream, converted for the next product; complete on return.
void Decoder::norm_and_convert(const float* weight, int64_t num_tokens, const PackedMatrix& next,
                               int thread) {
  const int64_t size = spec_.hidden_size;
  const Activations rows =
      make_activations(converted_buffer_.bytes(0), next.type, num_tokens, size);
  static thread_local std::vector<float> normed;
  normed.resize(static_cast<size_t>(size));
  team_.share(thread, num_tokens, kRowGrain, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) {
      const float* source = x_ + t * size;
      if (weight) {
        normed_row(weight, t, normed.data());
        source = normed.data();
      }
      convert_row(source, t, rows);
    }
  });
  if (thread == 0) converted_ = rows;
  team_.barrier(thread);
}

// Whether the gated product of a layer can write the next product's input format directly. Its
// plain rows are not needed otherwise.
bool Decoder::converts_itself(const LayerSpec& layer) const {
  return layer.down.type != WeightType::kInt8 && !adapters_.touches(layer.down_adapters);
}

// A row of the residual stream, as input of the product after the norm.
void Decoder::normed_row(const float* weight, int64_t token, float* out) const {
  const int64_t size = spec_.hidden_size;
  const float* source = x_ + token * size;
  if (weight)
    rms_norm(source, weight, size, spec_.norm_eps, out);
  else
    std::memcpy(out, source, static_cast<size_t>(size) * sizeof(float));
}

void Decoder::convert(const float* source, int64_t num_tokens, const PackedMatrix& next,
                      int thread) {
  const Activations rows =
      make_activations(converted_buffer_.bytes(0), next.type, num_tokens, next.depth);
  team_.share(thread, num_tokens, kRowGrain, [&](int64_t first, int64_t last) {
    convert_rows(source, next.depth, nullptr, first, last, rows);
  });
  if (thread == 0) converted_ = rows;
  team_.barrier(thread);
}

// The last product of a sublayer, of rows `input`, added to the residual stream.
void Decoder::project(const PackedMatrix& matrix, const Activations& rows, const float* bias,
                      const AdapterPair* adapters, const float* input, const float* output_norm,
                      int64_t num_tokens, int thread) {
  MatmulOutput output{x_, spec_.hidden_size, bias, Epilogue::kAdd, spec_.residual_multiplier};
  if (output_norm) output = {y_, spec_.hidden_size, bias, Epilogue::kStore};
  const auto ordering = static_cast<Ordering>(spec_.ordering);
  matmul(matrix, rows, output, ordering, team_, thread);
  team_.barrier(thread);
  const auto source = [&](int64_t token, float* row) {
    std::memcpy(row, input + token * matrix.depth,
                static_cast<size_t>(matrix.depth) * sizeof(float));
  };
  adapters_.add(adapters, source, output.rows, output.stride, output.scale, ordering, team_, thread);
  if (output_norm) add_output(output_norm, num_tokens, thread);
}

// x += multiplier * norm(y); complete on return.
void Decoder::add_output(const float* output_norm, int64_t num_tokens, int thread) {
  const int64_t size = spec_.hidden_size;
  team_.share(thread, num_tokens, kRowGrain, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) {
      float* y = y_ + t * size;
      if (output_norm) rms_norm(y, output_norm, size, spec_.norm_eps, y);
      add_scaled(x_ + t * size, y, size, spec_.residual_multiplier);
    }
  });
  team_.barrier(thread);
}

// Prefetches the memory that a token's K and V will be written to: its lines are scattered and
// cold.
void Decoder::fetch_slot(const LayerSpec& layer, int64_t slot) const {
  if (kv_shape_.type == KVType::kBF16)
    prefetch_slot(kv_shape_, static_cast<bf16*>(layer.keys), static_cast<bf16*>(layer.values), slot);
  else
    prefetch_slot(kv_shape_, static_cast<float*>(layer.keys), static_cast<float*>(layer.values),
                  slot);
}

// Norms and rotates a token's queries and keys, and writes its K and V.
void Decoder::place_token(const LayerSpec& layer, const StepInput& input, int64_t token) {
  const int64_t dim = spec_.head_dim, num_heads = spec_.num_heads;
  const int64_t num_kv_heads = spec_.num_kv_heads;
  float* q = qkv_ + token * (num_heads + 2 * num_kv_heads) * dim;
  float* k = q + num_heads * dim;
  if (spec_.qk_norm == static_cast<int32_t>(QKNorm::kWhole)) {
    rms_norm(q, layer.query_norm, num_heads * dim, spec_.norm_eps, q);
    rms_norm(k, layer.key_norm, num_kv_heads * dim, spec_.norm_eps, k);
  }
  const RotaryTable& rope = ropes_[static_cast<size_t>(layer.rope)];
  const float* angles = rope.at(input.rows.positions[token]);
  for (int64_t head = 0; head < num_heads + num_kv_heads; head++) {
    float* one = q + head * dim;
    if (spec_.qk_norm == static_cast<int32_t>(QKNorm::kHead))
      rms_norm(one, head < num_heads ? layer.query_norm : layer.key_norm, dim, spec_.norm_eps, one);
    rotate(one, angles, rope.num_planes());
  }
  if (rope.scales_queries()) {
    const float scale = rope.query_scale(input.rows.positions[token]);
    for (int64_t i = 0; i < num_heads * dim; i++) q[i] *= scale;
  }
  const int64_t slot = input.rows.slots[token];
  const float* v = k + num_kv_heads * dim;
  if (kv_shape_.type == KVType::kBF16)
    write_slot(kv_shape_, static_cast<bf16*>(layer.keys), static_cast<bf16*>(layer.values), slot, k,
               v);
  else
    write_slot(kv_shape_, static_cast<float*>(layer.keys), static_cast<float*>(layer.values), slot,
               k, v);
}

void Decoder::attend(const LayerSpec& layer, const StepInput& input, int thread) {
  const int64_t num_tokens = input.rows.num_tokens;
  const int64_t q_size = spec_.num_heads * spec_.head_dim;
  const int64_t qkv_size = q_size + 2 * spec_.num_kv_heads * spec_.head_dim;
  const auto ordering = static_cast<Ordering>(spec_.ordering);
  matmul(layer.qkv, converted_, {qkv_, qkv_size, layer.qkv_bias}, ordering, team_, thread);
  team_.barrier(thread);
  const auto source = [&](int64_t token, float* row) {
    normed_row(layer.attention_norm, token, row);
  };
  adapters_.add(layer.qkv_adapters, source, qkv_, qkv_size, 1.0f, ordering, team_, thread);
  const int64_t grain = num_tokens < 2 * kTileGrain ? kRowGrain : kTileGrain;
  team_.share(thread, num_tokens, grain, [&](int64_t first, int64_t last) {
    fetch_slot(layer, input.rows.slots[first]);
    for (int64_t t = first; t < last; t++) {
      if (t + 1 < last) fetch_slot(layer, input.rows.slots[t + 1]);
      place_token(layer, input, t);
    }
  });
  team_.barrier(thread);
  if (progress_ && thread == 0) progress_->reach(progress_base_ + (&layer - layers_.data()) + 1);
  const LayerAttention attributes{spec_.attention_scale, spec_.attention_softcap, layer.window,
                                  layer.sinks};
  attention_.attend(attention_step_, attributes, {layer.keys, layer.values}, qkv_, qkv_size,
                    attended_, q_size, team_, thread);
  team_.barrier(thread);
  if (is_scored_)
    scores_.add(&layer - layers_.data(), attention_step_, attributes, {layer.keys, layer.values},
                qkv_, qkv_size, team_, thread);
  convert(attended_, num_tokens, layer.output, thread);
  project(layer.output, converted_, layer.output_bias, layer.output_adapters, attended_,
          layer.attention_output_norm, num_tokens, thread);
}

void Decoder::feed_forward(const LayerSpec& layer, int64_t num_tokens, int thread) {
  const auto activation = static_cast<Epilogue>(spec_.activation);
  const auto ordering = static_cast<Ordering>(spec_.ordering);
  const int64_t size = spec_.hidden_size;
  if (layer.experts) {
    team_.share(thread, num_tokens, kRowGrain, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; t++) {
        float* normed = inner_ + t * size;
        std::memcpy(normed, x_ + t * size, static_cast<size_t>(size) * sizeof(float));
        if (layer.mlp_norm) rms_norm(normed, layer.mlp_norm, size, spec_.norm_eps, normed);
      }
    });
    team_.barrier(thread);
    experts_.run(*layer.experts, activation, ordering, inner_, num_tokens, size, y_, team_, thread);
    team_.barrier(thread);
    add_output(layer.mlp_output_norm, num_tokens, thread);
    return;
  }
  norm_and_convert(layer.mlp_norm, num_tokens, layer.gate_up, thread);
  if (adapters_.touches(layer.gate_up_adapters)) {
    gated_with_adapters(layer, num_tokens, thread);
  } else {
    const MatmulOutput output{inner_, layer.gate_up.num_columns, layer.gate_up_bias, activation};
    if (converts_itself(layer)) {
      const Activations next = make_activations(inner_converted_, layer.down.type, num_tokens,
                                                layer.down.depth);
      matmul_converted(layer.gate_up, converted_, output, next, ordering, team_, thread);
      team_.barrier(thread);
      project(layer.down, next, layer.down_bias, layer.down_adapters, inner_,
              layer.mlp_output_norm, num_tokens, thread);
      return;
    }
    matmul(layer.gate_up, converted_, output, ordering, team_, thread);
    team_.barrier(thread);
  }
  convert(inner_, num_tokens, layer.down, thread);
  project(layer.down, converted_, layer.down_bias, layer.down_adapters, inner_,
          layer.mlp_output_norm, num_tokens, thread);
}

// The gated product in two steps: the raw columns, to which adapters add, then the activation.
void Decoder::gated_with_adapters(const LayerSpec& layer, int64_t num_tokens, int thread) {
  const auto ordering = static_cast<Ordering>(spec_.ordering);
  PackedMatrix plain = layer.gate_up;
  plain.layout = PanelLayout::kPlain;
  plain.num_columns = num_panels(layer.gate_up) * kPanelColumns;
  const MatmulOutput raw{gated_, plain.num_columns, layer.gate_up_bias};
  matmul(plain, converted_, raw, ordering, team_, thread);
  team_.barrier(thread);
  const auto source = [&](int64_t token, float* row) { normed_row(layer.mlp_norm, token, row); };
  adapters_.add(layer.gate_up_adapters, source, gated_, plain.num_columns, 1.0f, ordering, team_,
                thread);
  const int64_t columns = layer.gate_up.num_columns;
  team_.share(thread, num_tokens, kRowGrain, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++)
      gate_row(static_cast<Epilogue>(spec_.activation), gated_ + t * plain.num_columns, columns,
               raw.limit, inner_ + t * columns);
  });
  team_.barrier(thread);
}

void Decoder::logits(const float* hidden, int64_t count, float* out) {
  with_output(hidden, count, [&](int thread) {
    matmul(spec_.output, converted_, logits_output(out), static_cast<Ordering>(spec_.ordering),
           team_, thread);
    if (spec_.logit_softcap <= 0) return;
    team_.barrier(thread);
    team_.share(thread, count, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++)
        softcap_row(out + i * spec_.vocab_size, spec_.vocab_size, spec_.logit_softcap);
    });
  });
}

void Decoder::best_tokens(const float* hidden, int64_t count, const uint8_t* wanted, float* out,
                          int64_t* best) {
  best_of_threads_.resize(static_cast<size_t>(team_.size()));
  for (BestOfRows& of_thread : best_of_threads_) of_thread.reset(wanted, count);
  with_output(hidden, count, [&](int thread) {
    matmul_best(spec_.output, converted_, logits_output(out),
                best_of_threads_[static_cast<size_t>(thread)],
                static_cast<Ordering>(spec_.ordering), team_, thread);
  });
  for (int64_t i = 0; i < count; i++)
    if (wanted[i]) best[i] = best_column(best_of_threads_, i);
}

// Runs `product` with the hidden states converted for the output matrix.
template <class Product>
void Decoder::with_output(const float* hidden, int64_t count, Product&& product) {
  converted_buffer_.bytes(converted_bytes(count, spec_.hidden_size));
  team_.run([&](int thread) {
    convert(hidden, count, spec_.output, thread);
    product(thread);
  });
}

MatmulOutput Decoder::logits_output(float* out) const {
  return {out, spec_.vocab_size, nullptr, Epilogue::kStore, spec_.logit_multiplier};
}

}  // namespace quire
