#include "decode_loop.h"

#include <algorithm>

namespace quire {

void DecodeLoop::run(const DecodeRows& rows) {
  active_.clear();
  tokens_.assign(rows.tokens, rows.tokens + rows.num_rows);
  for (int64_t row = 0; row < rows.num_rows; row++) {
    active_.push_back(row);
    rows.counts[row] = rows.stopped[row] = rows.failed[row] = 0;
  }
  std::fill(rows.sampled, rows.sampled + rows.num_rows * rows.num_steps, kNoToken);
  for (int64_t step = 0; step < rows.num_steps && !active_.empty(); step++) {
    forward(rows, step);
    choose(rows, step);
    size_t kept = 0;
    for (size_t place = 0; place < active_.size(); place++)
      if (!ends(rows, step, static_cast<int64_t>(place))) active_[kept++] = active_[place];
    active_.resize(kept);
  }
}

// Appends each row's token and computes the hidden state after it.
void DecodeLoop::forward(const DecodeRows& rows, int64_t step) {
  const int64_t page_size = decoder_.spec().page_size, count = static_cast<int64_t>(active_.size());
  const PageTablesView& tables = rows.page_tables;
  row_starts_.resize(active_.size() + 1);
  tables_.resize(active_.size());
  slots_.resize(active_.size());
  positions_.resize(active_.size());
  chosen_.resize(active_.size());
  adapters_.resize(active_.size());
  for (int64_t i = 0; i < count; i++) {
    const int64_t row = active_[static_cast<size_t>(i)], cursor = rows.cursors[row] + step;
    const int64_t entry = rows.tables[row] * tables.width + cursor / page_size;
    row_starts_[static_cast<size_t>(i)] = i;
    tables_[static_cast<size_t>(i)] = rows.tables[row];
    slots_[static_cast<size_t>(i)] = tables.blocks[entry] * page_size + cursor % page_size;
    positions_[static_cast<size_t>(i)] = rows.positions[row] + static_cast<int32_t>(step);
    chosen_[static_cast<size_t>(i)] = tokens_[static_cast<size_t>(row)];
    adapters_[static_cast<size_t>(i)] = rows.adapters ? rows.adapters[row] : -1;
    rows.visible[entry] |= uint64_t{1} << (cursor % page_size);
  }
  row_starts_.back() = count;
  const StepInput input{{count, count, row_starts_.data(), tables_.data(), positions_.data(),
                         slots_.data(), nullptr, 0},
                        chosen_.data(), nullptr, nullptr,
                        rows.adapters ? adapters_.data() : nullptr};
  decoder_.run(input, tables, hidden_.floats(count * decoder_.spec().hidden_size));
}

void DecodeLoop::choose(const DecodeRows& rows, int64_t step) {
  choices_.clear();
  for (size_t place = 0; place < active_.size(); place++) {
    const int64_t row = active_[place];
    const bool may_stop = step >= rows.min_steps[row];
    // The random draw uses the position of the chosen token.
    choices_.push_back({{rows.greedy[row] != 0, rows.top_k[row],
                         static_cast<float>(rows.temperature[row]), rows.min_p[row],
                         rows.top_p[row], rows.seeds[row]},
                        positions_[place] + 1, rows.stop_tokens + row * rows.num_stop_tokens,
                        may_stop ? 0 : rows.num_stop_tokens});
  }
  choice_.choose(hidden_.floats(0), choices_, chosen_.data());
}

// Records a row's token; returns whether the row ends.
bool DecodeLoop::ends(const DecodeRows& rows, int64_t step, int64_t place) {
  const int64_t row = active_[static_cast<size_t>(place)];
  const int64_t token = chosen_[static_cast<size_t>(place)];
  if (token == kNoToken) {
    rows.failed[row] = 1;
    return true;
  }
  tokens_[static_cast<size_t>(row)] = token;
  rows.sampled[step * rows.num_rows + row] = token;
  rows.counts[row]++;
  const int64_t* stops = rows.stop_tokens + row * rows.num_stop_tokens;
  rows.stopped[row] = std::find(stops, stops + rows.num_stop_tokens, token) !=
                      stops + rows.num_stop_tokens;
  return rows.stopped[row] || rows.counts[row] >= rows.steps[row];
}

}  // namespace quire
