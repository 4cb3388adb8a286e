#include "attention.h"

#include <algorithm>

#include "attention_softmax.h"

namespace quire {
namespace {

constexpr int64_t kSharesPerThread = 8;
constexpr int64_t kQueryRows = 32;  // approximate maximum of query rows (queries times heads) of an item

}  // namespace

int64_t end_of_part(const AttentionContext& context, int64_t first, int64_t last) {
  int64_t end = first + 1;
  const int64_t part = context.chunk(first).place / kPartChunks;
  while (end < last && context.chunk(end).place / kPartChunks == part) end++;
  return end;
}

void AttentionWork::plan(const AttentionStep& step, int num_threads) {
  items_.clear();
  merges_.clear();
  const StepRows& rows = *step.rows;
  const int64_t num_kv_heads = step.shape.num_kv_heads, heads = step.num_heads / num_kv_heads;
  const int64_t vector_queries = std::max<int64_t>(1, kQueryRows / heads);
  const bool matrix_fits = has_matrix_attention() && step.shape.type == KVType::kBF16 &&
                           step.shape.padded_dim % 32 == 0 && step.ordering == Ordering::kFastest;
  // The KV heads of a tile are adjacent, so memory is read faster when one thread takes them all;
  // but every thread should have a share.
  const int64_t enough = kSharesPerThread * num_threads;
  const int64_t together =
      std::clamp<int64_t>(rows.num_rows * num_kv_heads / enough, 1, num_kv_heads);
  const bool splits = num_threads > 1 && rows.num_rows * num_kv_heads < enough;
  for (int64_t row = 0; row < rows.num_rows; row++) {
    const AttentionContext::Row& context = step.context->row(row);
    const int64_t first_token = rows.row_starts[row];
    const int64_t num_new = rows.row_starts[row + 1] - first_token;
    const bool matrix = matrix_fits && num_new >= kMatrixQueries / 2;
    const int64_t size = matrix ? kMatrixQueries : vector_queries;
    const int64_t num_heads = num_new == 1 ? together : 1;
    for (int64_t first = 0; first < num_new; first += size)
      for (int64_t head = 0; head < num_kv_heads; head += num_heads) {
        const QueryBlock block{row, first_token + first, first, std::min(size, num_new - first),
                               head, std::min(num_heads, num_kv_heads - head),
                               context.first_chunk, context.last_chunk};
        if (splits && !matrix && num_new == 1)
          add_parts(step, block);
        else
          items_.push_back({block, -1, matrix});
      }
  }
  // The last queries of a row see most, so they go first and threads end at about the same time.
  std::reverse(items_.begin(), items_.end());
  int64_t num_floats = 0;
  for (const Merge& merge : merges_) num_floats += merge.num_parts * merge.floats;
  partials_.resize(static_cast<size_t>(num_floats));
}

// One item for each part of the block's context, to be merged afterwards.
void AttentionWork::add_parts(const AttentionStep& step, const QueryBlock& block) {
  const BlockRows rows{block, step.num_heads / step.shape.num_kv_heads};
  Merge merge{block, 0, softmax_floats(rows.count(), step.shape.padded_dim), 0};
  if (!merges_.empty()) {
    const Merge& before = merges_.back();
    merge.partials = before.partials + before.num_parts * before.floats;
  }
  const size_t first_item = items_.size();
  for (int64_t first = block.first_chunk; first < block.last_chunk; merge.num_parts++) {
    QueryBlock part = block;
    part.first_chunk = first;
    part.last_chunk = first = end_of_part(*step.context, first, block.last_chunk);
    items_.push_back({part, merge.partials + merge.num_parts * merge.floats, false});
  }
  if (merge.num_parts > 1) return merges_.push_back(merge);
  items_.resize(first_item);
  items_.push_back({block, -1, false});
}

void AttentionWork::attend(const AttentionStep& step, const LayerAttention& layer,
                           const LayerCache& cache, const float* q, int64_t q_stride, float* out,
                           int64_t out_stride, Team& team, int thread) {
  const auto num_items = static_cast<int64_t>(items_.size());
  team.share_ahead(thread, num_items, [&](int64_t place, int64_t next) {
    const Item& item = items_[static_cast<size_t>(place)];
    if (item.matrix)
      return attend_matrix(step, layer, cache, item.block, q, q_stride, out, out_stride);
    const QueryBlock* following =
        next < num_items ? &items_[static_cast<size_t>(next)].block : nullptr;
    float* partial = item.partial < 0 ? nullptr : partials_.data() + item.partial;
    attend_block(step, layer, cache, item.block, following, q, q_stride, partial, out, out_stride);
  });
  if (merges_.empty()) return;
  team.barrier(thread);
  team.share(thread, static_cast<int64_t>(merges_.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++)
      merge(step, merges_[static_cast<size_t>(i)], out, out_stride);
  });
}

// Merges in the order of the parts, as a single thread does.
void AttentionWork::merge(const AttentionStep& step, const Merge& merge, float* out,
                          int64_t out_stride) {
  const BlockRows rows{merge.block, step.num_heads / step.shape.num_kv_heads};
  const auto part = [&](int64_t i) {
    return softmax_rows(partials_.data() + merge.partials + i * merge.floats, rows.count(),
                        step.shape.padded_dim);
  };
  for (int64_t i = 1; i < merge.num_parts; i++) merge_softmax(rows.count(), part(0), part(i));
  end_softmax(step, rows, part(0), out, out_stride);
}

}  // namespace quire
