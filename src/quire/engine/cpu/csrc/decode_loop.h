// Owns the decode loop: several steps of a set of rows in one call. Each step runs the model,
// chooses tokens and checks whether rows end.
// Must not know sequences, sessions or how the number of steps was determined.
//
// Reference: DecodeStage._step_by_step in quire/engine/decode_stage.py.
#pragma once

#include "choice.h"

namespace quire {

// R rows, S steps, W stop tokens. Mirrored in quire/engine/cpu/decode_abi.py.
struct DecodeRows {
  int64_t num_rows;
  int64_t num_steps;
  const int64_t* tables;     // [R] row of the page tables
  const int64_t* tokens;     // [R] the token that the first step appends
  const int32_t* positions;  // [R] its position
  const int64_t* cursors;    // [R] the slot of the row's table to which it is appended
  const int64_t* steps;      // [R] the most tokens that a row samples, at least one
  const int64_t* stop_tokens;  // [R][W], padded with kNoToken
  int64_t num_stop_tokens;     // W
  const int64_t* min_steps;    // [R] number of first steps in which stop tokens are excluded
  const uint8_t* greedy;       // [R]; this and the following fields: see Sampler
  const int64_t* top_k;
  const double* temperature;
  const double* min_p;
  const double* top_p;
  const uint64_t* seeds;
  const int32_t* adapters;   // [R] or null: adapter of the row, -1 for none
  uint64_t* visible;         // visibility words of the page tables; appended slots are set in them
  PageTablesView page_tables;
  int64_t* sampled;          // out [S][R], kNoToken where a row had ended
  int64_t* counts;           // out [R] tokens sampled
  uint8_t* stopped;          // out [R] the last one is a stop token
  uint8_t* failed;           // out [R] no token could be chosen in the step after them
};

class DecodeLoop {
 public:
  DecodeLoop(Decoder& decoder, TokenChoice& choice) : decoder_(decoder), choice_(choice) {}
  void run(const DecodeRows& rows);

 private:
  void forward(const DecodeRows& rows, int64_t step);
  void choose(const DecodeRows& rows, int64_t step);
  bool ends(const DecodeRows& rows, int64_t step, int64_t place);

  Decoder& decoder_;
  TokenChoice& choice_;
  std::vector<int64_t> active_, tokens_, row_starts_, tables_, slots_, chosen_;
  std::vector<int32_t> positions_, adapters_;
  std::vector<Choice> choices_;
  Buffer hidden_;
};

}  // namespace quire
