#include "best_columns.h"

#include <cmath>
#include <limits>

namespace quire {

void BestOfRows::reset(const uint8_t* rows, int64_t num_rows) {
  wanted = rows;
  values.assign(static_cast<size_t>(num_rows * kPanelColumns),
                -std::numeric_limits<float>::infinity());
  panels.assign(values.size(), 0);
}

int64_t best_column(const std::vector<BestOfRows>& of_threads, int64_t row) {
  float best = -std::numeric_limits<float>::infinity();
  int64_t column = kNoColumn;
  for (const BestOfRows& seen : of_threads) {
    for (int64_t lane = 0; lane < kPanelColumns; lane++) {
      const auto place = static_cast<size_t>(row * kPanelColumns + lane);
      const float value = seen.values[place];
      if (std::isnan(value)) return kNoColumn;
      const int64_t of_lane = seen.panels[place] * kPanelColumns + lane;
      if (value < best || (value == best && of_lane > column && column != kNoColumn)) continue;
      best = value;
      column = of_lane;
    }
  }
  return std::isfinite(best) ? column : kNoColumn;
}

}  // namespace quire
