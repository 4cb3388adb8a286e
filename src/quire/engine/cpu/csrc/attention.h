// Owns softmax attention of a step's new tokens over the tiles of the cache, one layer at a time.
// Must not know page tables (attention_context.h does) or how q, K and V were made.
//
// Reference: quire/engine/attention/reference.py. For each token and head, with the rows of its KV
// head and the slots that the context shows it:
//   s = softcap(scale * q . K)     softcap(s) = c * tanh(s / c), where the layer has one
//   out = sum over slots of exp(s - m) V / (sum over slots of exp(s - m) + exp(sink - m))
// in float32 (K and V may be stored as bf16), computed chunk by chunk with a running maximum m, and
// merged from parts of several chunks. A token that sees nothing gets zeros. A slot that no
// visibility word shows is never multiplied, so that its content, NaN included, cannot affect
// results.
//
// A token's result depends on its own row alone: its bits depend neither on other rows nor on how
// many queries are processed at a time, except on the bf16 matrix path that `Ordering` kFastest may
// take for long rows.
#pragma once

#include "attention_context.h"
#include "matmul.h"
#include "team.h"

namespace quire {

struct LayerAttention {
  float scale;
  float softcap;       // 0: none
  int64_t window;      // a token at p sees positions above p - window; 0: all
  const float* sinks;  // [num_heads] or null
};

struct LayerCache {
  void* keys;
  void* values;
};

// Views of a step: queries are at q + token * q_stride, [num_heads][head_dim]; the output likewise.
struct AttentionStep {
  const StepRows* rows;
  const AttentionContext* context;
  const int32_t* slot_positions;
  KVShape shape;
  int64_t num_heads;
  int64_t page_size;
  Ordering ordering;
};

// Queries of one row, the KV heads to process them with (one, on the matrix path), and a range of
// chunks of the row's context.
struct QueryBlock {
  int64_t row;
  int64_t first_token;  // of the step
  int64_t first_query;  // of the row
  int64_t num_queries;
  int64_t kv_head, num_kv_heads;
  int64_t first_chunk, last_chunk;
};

// A context is summed in parts of this many chunks of the page table, then the parts are merged in
// order: one long row can be divided among threads without changing a bit.
constexpr int64_t kPartChunks = 4;
// The end of the part that begins at chunk `first`, at most `last`.
int64_t end_of_part(const AttentionContext& context, int64_t first, int64_t last);

// A step's work, cut into items of some queries of one row and some KV heads.
class AttentionWork {
 public:
  void plan(const AttentionStep& step, int num_threads);
  // Called by every thread of the team; each returns after its share. Contains at most one barrier.
  void attend(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
              const float* q, int64_t q_stride, float* out, int64_t out_stride, Team& team,
              int thread);

 private:
  struct Item {
    QueryBlock block;
    int64_t partial;  // offset in partials_ if the part is merged later, or -1
    bool matrix;      // on the bf16 matrix path
  };
  struct Merge {
    QueryBlock block;
    int64_t partials, floats;  // offset of the first part, distance between parts
    int64_t num_parts;
  };

  void add_parts(const AttentionStep& step, const QueryBlock& block);
  void merge(const AttentionStep& step, const Merge& merge, float* out, int64_t out_stride);

  std::vector<Item> items_;
  std::vector<Merge> merges_;
  std::vector<float> partials_;
};

// ---- between attention.cpp and the files with its kernels

// Which lanes of a chunk's tiles each query of a block sees: lanes[query * num_tiles + tile].
struct ChunkLanes {
  int64_t first_tile;
  int64_t num_tiles;  // 0 if no query sees anything of the chunk
  std::vector<uint16_t> lanes;

  void find(const AttentionStep& step, const QueryBlock& block, int64_t chunk, int64_t window);

 private:
  void trim(const AttentionContext& context, const int32_t* positions, int64_t num_queries,
            int64_t window);
};

// The vector kernels. `following`: this thread's next block, or null. With `partial`, the state of
// the block's chunks is written there (attention_softmax.h) and nothing to `out`.
void attend_block(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                  const QueryBlock& block, const QueryBlock* following, const float* q,
                  int64_t q_stride, float* partial, float* out, int64_t out_stride);

constexpr int64_t kMatrixQueries = 32;
bool has_matrix_attention();
void attend_matrix(const AttentionStep& step, const LayerAttention& layer, const LayerCache& cache,
                   const QueryBlock& block, const float* q, int64_t q_stride, float* out,
                   int64_t out_stride);

}  // namespace quire
