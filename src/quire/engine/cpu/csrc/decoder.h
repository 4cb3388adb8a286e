// Owns one step of a whole model: from tokens to final hidden states, and from these to logits.
// Must not know sequences or sampling (decode_loop.h does).
//
// Reference: quire/engine/models/decoder.py. The residual stream, norms, rotations, scores and sums
// are float32 for all weight types; the input of a product is converted to the type of its weights,
// K and V to that of the cache.
//
// A step is one run of the team: all threads process the layers together, with a barrier wherever a
// thread needs the results of others.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "experts.h"
#include "layer_progress.h"
#include "model_spec.h"
#include "rotary.h"
#include "scores.h"

namespace quire {

// Float memory aligned to 64 bytes that only grows.
class Buffer {
 public:
  float* floats(int64_t count) { return reinterpret_cast<float*>(bytes(count * 4)); }
  uint8_t* bytes(int64_t count);

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  int64_t size_ = 0;
};

// The inputs of a step's rows: tokens, or given vectors where embeds[t] >= 0.
struct StepInput {
  StepRows rows;
  const int64_t* tokens;   // [num_tokens]
  const int32_t* embeds;   // [num_tokens] or null: index into `vectors`, -1 for none
  const float* vectors;    // [any][hidden_size]
  const int32_t* adapters; // [num_tokens] or null: adapter of the token, -1 for none
};

class Decoder {
 public:
  // `team` belongs to the caller, and only this decoder uses it during a call.
  Decoder(const ModelSpec& spec, Team& team);

  const ModelSpec& spec() const { return spec_; }

  // Input embeddings [count][hidden_size].
  void embed(const int64_t* tokens, int64_t count, float* out);
  // Final hidden states [num_tokens][hidden_size], after the last norm. Writes K, V and positions.
  // `scored`: rows of the step whose attention mass is wanted, or null.
  void run(const StepInput& input, const PageTablesView& tables, float* hidden,
           const ScoredRows* scored = nullptr);
  // Logits [count][vocab_size].
  void logits(const float* hidden, int64_t count, float* out);
  // Greedy choice without materialised logits: best[i], or kNoColumn, for rows with wanted[i]; the
  // logits of the other rows as above. Only where the choice needs nothing else: see can_choose().
  void best_tokens(const float* hidden, int64_t count, const uint8_t* wanted, float* out,
                   int64_t* best);
  // Tell `progress` of each layer of the next steps whose K and V are written, from `base` on; null:
  // nobody.
  void watch(LayerProgress* progress, int64_t base) {
    progress_ = progress;
    progress_base_ = base;
  }
  // Soft-capped logits may be equal where the products differ.
  bool can_choose() const { return spec_.logit_softcap <= 0; }

 private:
  void embed_row(int64_t token, float* out) const;
  void walk(const StepInput& input, float* hidden, int thread);
  void attend(const LayerSpec& layer, const StepInput& input, int thread);
  void feed_forward(const LayerSpec& layer, int64_t num_tokens, int thread);
  void norm_and_convert(const float* weight, int64_t num_tokens, const PackedMatrix& next,
                        int thread);
  void convert(const float* rows, int64_t num_tokens, const PackedMatrix& next, int thread);
  void project(const PackedMatrix& matrix, const Activations& rows, const float* bias,
               const AdapterPair* adapters, const float* input, const float* output_norm,
               int64_t num_tokens, int thread);
  bool converts_itself(const LayerSpec& layer) const;
  template <class Product>
  void with_output(const float* hidden, int64_t count, Product&& product);
  MatmulOutput logits_output(float* out) const;
  void normed_row(const float* weight, int64_t token, float* out) const;
  void gated_with_adapters(const LayerSpec& layer, int64_t num_tokens, int thread);
  void add_output(const float* output_norm, int64_t num_tokens, int thread);
  void fetch_slot(const LayerSpec& layer, int64_t slot) const;
  void place_token(const LayerSpec& layer, const StepInput& input, int64_t token);

  ModelSpec spec_;
  std::vector<LayerSpec> layers_;
  std::vector<RotaryTable> ropes_;
  Team& team_;
  KVShape kv_shape_;
  AttentionContext context_;
  AttentionWork attention_;
  AttentionStep attention_step_{};
  ScoreWork scores_;
  LayerProgress* progress_ = nullptr;
  int64_t progress_base_ = 0;
  bool is_scored_ = false;  // whether the current step has rows whose mass is wanted
  ExpertsWork experts_;
  AdapterWork adapters_;
  Activations converted_{};
  // x: residual stream; y: what a sublayer adds before its output norm
  // gated: raw products of gate and up, where adapters add to them before the activation
  Buffer x_buffer_, y_buffer_, qkv_buffer_, attended_buffer_, inner_buffer_, converted_buffer_;
  Buffer gated_buffer_, inner_converted_buffer_;
  uint8_t* inner_converted_ = nullptr;
  std::vector<BestOfRows> best_of_threads_;
  float *x_ = nullptr, *y_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr, *inner_ = nullptr;
  float* gated_ = nullptr;
};

}  // namespace quire
