// Owns the description of a model for the kernel: shapes, and pointers to packed weights.
// Must not know how a step uses them. Every struct is mirrored in quire/engine/cpu/model_spec.py;
// the memory behind the pointers belongs to Python and outlives the model.
//
// Reference: quire/engine/models/decoder_config.py, whose terms are used here.
#pragma once

#include "adapters.h"
#include "kv_cache.h"
#include "packed_matrix.h"

namespace quire {

// 64-bit members come first, so that no padding depends on the compiler.
struct ExpertsSpec {
  int64_t num_experts;
  int64_t top_k;
  PackedMatrix router;
  const PackedMatrix* gate_up;  // [num_experts], gated
  const PackedMatrix* down;     // [num_experts]
  const float* router_bias;     // biases: null, or in the order of packed columns
  const float* const* gate_up_bias;  // null, or [num_experts]
  const float* const* down_bias;
  int32_t chosen_scoring;  // 1: softmax over the chosen logits; 0: over all, before choosing
  int32_t normalize;       // 1: the weights of a token are normalised to sum to one
};

struct LayerSpec {
  PackedMatrix qkv;      // query heads, key heads, value heads
  PackedMatrix output;
  PackedMatrix gate_up;  // gated; unused with experts
  PackedMatrix down;
  const float* qkv_bias;  // biases: null, or in the order of packed columns
  const float* output_bias;
  const float* gate_up_bias;
  const float* down_bias;
  const float* attention_norm;  // norms: null, or the weights in float32
  const float* attention_output_norm;
  const float* mlp_norm;
  const float* mlp_output_norm;
  const float* query_norm;
  const float* key_norm;
  const float* sinks;  // null, or [num_heads]
  const ExpertsSpec* experts;
  void* keys;  // the layer's cache (kv_cache.h)
  void* values;
  int64_t window;  // 0: none
  int64_t rope;
  // The adapters' products: null, or by adapter. Those of gate_up are in the order of its packed
  // columns.
  const AdapterPair* qkv_adapters;
  const AdapterPair* output_adapters;
  const AdapterPair* gate_up_adapters;
  const AdapterPair* down_adapters;
};

struct RopeSpec {
  const float* frequencies;  // [num_planes]
  int64_t num_planes;
  int64_t query_length;
  float scale;
  float query_beta;  // 0: queries are not scaled (rotary.h)
};

enum class QKNorm : int32_t { kNone = 0, kHead = 1, kWhole = 2 };

struct ModelSpec {
  int64_t vocab_size, hidden_size, num_layers, num_ropes;
  int64_t num_heads, num_kv_heads, head_dim, page_size;
  const LayerSpec* layers;
  const RopeSpec* ropes;
  const float* final_norm;
  const void* embedding;  // [vocab_size][hidden_size] of embedding_type; null: read from `output`
  PackedMatrix output;
  int32_t* slot_positions;  // of all slots of the pool, written by every step
  int32_t embedding_type;   // WeightType
  int32_t kv_type;          // KVType
  int32_t qk_norm;          // QKNorm
  int32_t activation;       // Epilogue of gate_up
  int32_t ordering;         // Ordering
  float norm_eps;
  float attention_scale;
  float attention_softcap;  // 0: none
  float embedding_multiplier;
  float residual_multiplier;
  float logit_multiplier;
  float logit_softcap;  // 0: none
};

}  // namespace quire
