// Owns messages that only advance sequences: which sequences can advance, the decode loop over
// them, and the updates of the columns that Python keeps for sequences and of the answer.
// Must not know grammars, stop strings, penalties or log probabilities: a message with a sequence
// that has one of them is left to Python, unchanged.
//
// Reference: DecodeStage.begin, ready and loop in quire/engine/decode_stage.py, and SequenceReport.
#pragma once

#include "decode_loop.h"

namespace quire {

// Why a sequence ended, as quire/core/batch_result.py numbers it.
enum class SequenceEnd : int64_t {
  kRunning = 0,
  kStopToken = 1,
  kMaxTokens = 4,
  kNoRoom = 5,
  kFailed = 6
};

// The columns of quire/engine/sequences.py and of its samplers, by sequence. Mirrored in
// quire/engine/cpu/decode_abi.py.
struct SequenceColumns {
  int64_t capacity;
  const uint8_t* is_open;
  const uint8_t* is_plain;  // no grammar, stop string or other check of its tokens in Python
  const int64_t* epoch;
  const int64_t* table;     // row of the page tables, negative for none
  const int64_t* limit;     // exclusive bound of the cursor
  const int64_t* max_tokens;
  const int64_t* min_tokens;
  const int64_t* adapter;
  int64_t* cursor;          // slot of the next token, and its position
  int64_t* position;
  int64_t* last_token;      // the next token to append, negative before the first one was sampled
  int64_t* num_generated;
  int64_t* end;
  int64_t* matched;
  const int64_t* stop_tokens;  // [capacity][num_stop_tokens]
  int64_t num_stop_tokens;
  const uint8_t* greedy;       // this and what follows: see Sampler
  const double* top_k;
  const double* temperature;
  const double* min_p;
  const double* top_p;
  const uint64_t* seeds;
};

// S entries. Mirrored in quire/engine/cpu/decode_abi.py.
struct AdvanceMessage {
  int64_t num_entries;
  int64_t num_steps;
  int64_t max_position;      // exclusive bound of positions
  const int32_t* sequences;  // [S]
  const int32_t* epochs;     // [S]
  const int32_t* max_steps;  // [S]
  uint64_t* visible;         // visibility words of the page tables; appended slots are set in them
  PageTablesView page_tables;
  int32_t* ends;             // out [S] SequenceEnd
  int32_t* matched;          // out [S]
  int32_t* token_starts;     // out [S + 1]
  int32_t* tokens;           // out [S * num_steps], filled up to token_starts[S]
  int64_t num_tokens;        // out: tokens that were run; -1 if the message is left to Python
  int64_t num_failed;        // out: entries that ended because no token could be chosen
};

class Advance {
 public:
  Advance(const Decoder& decoder, DecodeLoop& loop) : decoder_(decoder), loop_(loop) {}
  void run(AdvanceMessage& message, const SequenceColumns& columns);

 private:
  enum class Part { kSilent, kWaiting, kNoRoom, kActive };
  // What the loop reads and writes of an active row.
  struct Rows {
    std::vector<int64_t> tables, tokens, cursors, steps, stop_tokens, min_steps, top_k;
    std::vector<int64_t> counts, sampled;
    std::vector<int32_t> positions, adapters;
    std::vector<double> temperature, min_p, top_p;
    std::vector<uint64_t> seeds;
    std::vector<uint8_t> greedy, stopped, failed;
  };

  bool divide(const AdvanceMessage& message, const SequenceColumns& columns);
  bool has_room(const AdvanceMessage& message, const SequenceColumns& columns, int64_t row) const;
  bool add_active(const AdvanceMessage& message, const SequenceColumns& columns, int64_t entry);
  void decode(const AdvanceMessage& message, const SequenceColumns& columns);
  void book(AdvanceMessage& message, const SequenceColumns& columns);
  void report(AdvanceMessage& message, const SequenceColumns& columns) const;

  const Decoder& decoder_;
  DecodeLoop& loop_;
  std::vector<Part> parts_;          // by entry
  std::vector<int64_t> active_;      // entries, in order
  std::vector<uint8_t> is_named_;    // by sequence; all zero between messages
  Rows rows_;
};

}  // namespace quire
