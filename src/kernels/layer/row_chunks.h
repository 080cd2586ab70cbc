// Rows shared out among threads, and sums over them whose order does not depend on the number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace augur {

// A fixed division of the rows; threads share the chunks, and partial sums are added in their order.
inline constexpr int kRowChunks = 16;

// Calls visit(begin, end) for each thread's share of the rows.
template <typename Visit>
void ShareRows(int64_t rows, Visit visit) {
#pragma omp parallel
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    visit(rows * thread / threads, rows * (thread + 1) / threads);
  }
}

// Calls visit(begin, end, partial) for each chunk, in parallel, with a zeroed partial [width] of its own, and
// writes the sum of the partials to `total`.
template <typename Visit>
void SumOverRowChunks(int64_t rows, int64_t width, float* total, Visit visit) {
  std::vector<float> partials(kRowChunks * width, 0.0f);
#pragma omp parallel for schedule(static)
  for (int chunk = 0; chunk < kRowChunks; ++chunk) {
    visit(rows * chunk / kRowChunks, rows * (chunk + 1) / kRowChunks, partials.data() + chunk * width);
  }
  std::fill_n(total, width, 0.0f);
  for (int chunk = 0; chunk < kRowChunks; ++chunk) {
    for (int64_t i = 0; i < width; ++i) total[i] += partials[chunk * width + i];
  }
}

}  // namespace augur
