#include "advance.h"

#include <algorithm>

namespace quire {

void Advance::run(AdvanceMessage& message, const SequenceColumns& columns) {
  message.num_tokens = -1;
  message.num_failed = 0;
  if (!divide(message, columns)) return;
  message.num_tokens = 0;
  for (int64_t entry = 0; entry < message.num_entries; entry++)
    if (parts_[static_cast<size_t>(entry)] == Part::kNoRoom)
      columns.end[message.sequences[entry]] = static_cast<int64_t>(SequenceEnd::kNoRoom);
  if (!active_.empty()) {
    decode(message, columns);
    book(message, columns);
  }
  report(message, columns);
}

// Assigns each entry its part in the message; false if Python must handle it. Changes no column.
bool Advance::divide(const AdvanceMessage& message, const SequenceColumns& columns) {
  active_.clear();
  rows_ = {};
  parts_.assign(static_cast<size_t>(message.num_entries), Part::kWaiting);
  is_named_.resize(static_cast<size_t>(columns.capacity), 0);
  bool good = true;
  int64_t entry = 0;
  for (; entry < message.num_entries && good; entry++) {
    const int64_t row = message.sequences[entry];
    good = row >= 0 && row < columns.capacity && columns.is_open[row] &&
           !is_named_[static_cast<size_t>(row)];
    if (!good) break;
    is_named_[static_cast<size_t>(row)] = 1;
    Part& part = parts_[static_cast<size_t>(entry)];
    if (message.epochs[entry] != columns.epoch[row] ||
        columns.end[row] != static_cast<int64_t>(SequenceEnd::kRunning)) {
      part = Part::kSilent;
    } else if (message.max_steps[entry] > 0 && columns.last_token[row] >= 0) {
      part = has_room(message, columns, row) ? Part::kActive : Part::kNoRoom;
      if (part == Part::kActive) good = add_active(message, columns, entry);
    }
  }
  for (int64_t i = 0; i < std::min(entry + 1, message.num_entries); i++) {
    const int64_t row = message.sequences[i];
    if (row >= 0 && row < columns.capacity) is_named_[static_cast<size_t>(row)] = 0;
  }
  return good;
}

bool Advance::has_room(const AdvanceMessage& message, const SequenceColumns& columns,
                       int64_t row) const {
  return columns.cursor[row] < columns.limit[row] && columns.position[row] < message.max_position;
}

// Adds a row to the loop; false if Python must inspect its tokens or report its error.
bool Advance::add_active(const AdvanceMessage& message, const SequenceColumns& columns,
                         int64_t entry) {
  const int64_t row = message.sequences[entry], table = columns.table[row];
  const int64_t steps = std::min<int64_t>(message.max_steps[entry], message.num_steps);
  const int64_t room = std::min(columns.limit[row] - columns.cursor[row],
                                message.max_position - columns.position[row]);
  const int64_t budget = columns.max_tokens[row] - columns.num_generated[row];
  if (!columns.is_plain[row] || budget < 1 || table < 0) return false;
  const int64_t num_slots = message.page_tables.num_pages[table] * decoder_.spec().page_size;
  if (columns.limit[row] > num_slots) return false;
  active_.push_back(entry);
  rows_.tables.push_back(table);
  rows_.tokens.push_back(columns.last_token[row]);
  rows_.positions.push_back(static_cast<int32_t>(columns.position[row]));
  rows_.cursors.push_back(columns.cursor[row]);
  rows_.steps.push_back(std::min({steps, room, budget}));
  const int64_t* stops = columns.stop_tokens + row * columns.num_stop_tokens;
  rows_.stop_tokens.insert(rows_.stop_tokens.end(), stops, stops + columns.num_stop_tokens);
  rows_.min_steps.push_back(
      std::max<int64_t>(columns.min_tokens[row] - columns.num_generated[row], 0));
  rows_.greedy.push_back(columns.greedy[row]);
  rows_.top_k.push_back(static_cast<int64_t>(columns.top_k[row]));
  rows_.temperature.push_back(columns.temperature[row]);
  rows_.min_p.push_back(columns.min_p[row]);
  rows_.top_p.push_back(columns.top_p[row]);
  rows_.seeds.push_back(columns.seeds[row]);
  rows_.adapters.push_back(static_cast<int32_t>(columns.adapter[row]));
  return true;
}

void Advance::decode(const AdvanceMessage& message, const SequenceColumns& columns) {
  const size_t count = active_.size();
  const int64_t num_steps = *std::max_element(rows_.steps.begin(), rows_.steps.end());
  rows_.sampled.resize(count * static_cast<size_t>(num_steps));
  rows_.counts.resize(count);
  rows_.stopped.resize(count);
  rows_.failed.resize(count);
  const bool adapts = *std::max_element(rows_.adapters.begin(), rows_.adapters.end()) >= 0;
  const DecodeRows rows{static_cast<int64_t>(count),
                        num_steps,
                        rows_.tables.data(),
                        rows_.tokens.data(),
                        rows_.positions.data(),
                        rows_.cursors.data(),
                        rows_.steps.data(),
                        rows_.stop_tokens.data(),
                        columns.num_stop_tokens,
                        rows_.min_steps.data(),
                        rows_.greedy.data(),
                        rows_.top_k.data(),
                        rows_.temperature.data(),
                        rows_.min_p.data(),
                        rows_.top_p.data(),
                        rows_.seeds.data(),
                        adapts ? rows_.adapters.data() : nullptr,
                        message.visible,
                        message.page_tables,
                        rows_.sampled.data(),
                        rows_.counts.data(),
                        rows_.stopped.data(),
                        rows_.failed.data()};
  loop_.run(rows);
}

// Writes the loop's results to the columns. A stop token takes precedence over the token limit.
void Advance::book(AdvanceMessage& message, const SequenceColumns& columns) {
  for (size_t place = 0; place < active_.size(); place++) {
    const int64_t entry = active_[place], row = message.sequences[entry];
    const int64_t count = rows_.counts[place], appended = count + rows_.failed[place];
    message.num_tokens += appended;
    columns.cursor[row] += appended;
    columns.position[row] += appended;
    columns.num_generated[row] += count;
    if (count > 0)
      columns.last_token[row] =
          rows_.sampled[static_cast<size_t>(count - 1) * active_.size() + place];
    const int64_t steps = std::min<int64_t>(message.max_steps[entry], message.num_steps);
    SequenceEnd end = SequenceEnd::kRunning;
    if (rows_.failed[place]) {
      end = SequenceEnd::kFailed;
      message.num_failed++;
    } else if (rows_.stopped[place]) {
      end = SequenceEnd::kStopToken;
      columns.matched[row] = columns.last_token[row];
    } else if (columns.num_generated[row] >= columns.max_tokens[row]) {
      end = SequenceEnd::kMaxTokens;
    } else if (appended < steps && !has_room(message, columns, row)) {
      end = SequenceEnd::kNoRoom;
    }
    columns.end[row] = static_cast<int64_t>(end);
  }
}

void Advance::report(AdvanceMessage& message, const SequenceColumns& columns) const {
  int32_t* tokens = message.tokens;
  size_t place = 0;
  for (int64_t entry = 0; entry < message.num_entries; entry++) {
    const int64_t row = message.sequences[entry];
    const Part part = parts_[static_cast<size_t>(entry)];
    const bool silent = part == Part::kSilent;
    message.ends[entry] = static_cast<int32_t>(
        silent ? static_cast<int64_t>(SequenceEnd::kRunning) : columns.end[row]);
    message.matched[entry] = static_cast<int32_t>(silent ? kNoToken : columns.matched[row]);
    message.token_starts[entry] = static_cast<int32_t>(tokens - message.tokens);
    if (part != Part::kActive) continue;
    for (int64_t step = 0; step < rows_.counts[place]; step++)
      *tokens++ =
          static_cast<int32_t>(rows_.sampled[static_cast<size_t>(step) * active_.size() + place]);
    place++;
  }
  message.token_starts[message.num_entries] = static_cast<int32_t>(tokens - message.tokens);
}

}  // namespace quire
