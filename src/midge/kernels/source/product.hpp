// A matrix product whose bits do not depend on the number of threads, for the projections around the lattice: torch's
// own cuts its sums by the number of threads.
#pragma once
#include "common.hpp"
#include "gemm.hpp"


namespace {

constexpr i64 PRODUCT_ROWS = 48;    // rows of C that a task owns: with PRODUCT_DEPTH floats each they fit in the L2 cache
constexpr i64 PRODUCT_DEPTH = 256;  // terms of the sum at a time: a panel of B fits in the L1 cache

// A matrix by its strides, so that a transpose needs no copy of its own.
struct Strided {
  const float* data;
  i64 row, column;
  float at(i64 i, i64 j) const { return data[i * row + j * column]; }
};

// Rows of C += a block of A, packed, times one panel of B.
struct RowsTimesPanel {
  const float *a, *panel;
  i64 depth, columns;
  float* c;
  i64 ldc;
  template <int R>
  MIDGE_INLINE void run(i64 first) {
    float out[R * PW];
    dot_block<R>(depth, a + first * PRODUCT_DEPTH, PRODUCT_DEPTH, panel, out);
    for (int i = 0; i < R; i++)
      for (i64 j = 0; j < columns; j++) c[(first + i) * ldc + j] += out[i * PW + j];
  }
};

// Panel rows k0.. of columns j0..; reads run along the dimension that lies together in memory.
inline void pack_panel(const Strided& b, i64 k0, i64 depth, i64 j0, i64 columns, float* out) {
  if (columns < PW) memset(out, 0, depth * PW * sizeof(float));
  if (b.column == 1) {
    for (i64 k = 0; k < depth; k++) memcpy(out + k * PW, &b.data[(k0 + k) * b.row + j0], columns * sizeof(float));
    return;
  }
  for (i64 j = 0; j < columns; j++)
    for (i64 k = 0; k < depth; k++) out[k * PW + j] = b.at(k0 + k, j0 + j);
}

inline void pack_block(const Strided& a, i64 i0, i64 count, i64 k0, i64 depth, float* out) {
  if (a.row == 1) {
    for (i64 k = 0; k < depth; k++)
      for (i64 i = 0; i < count; i++) out[i * PRODUCT_DEPTH + k] = a.at(i0 + i, k0 + k);
    return;
  }
  for (i64 i = 0; i < count; i++)
    for (i64 k = 0; k < depth; k++) out[i * PRODUCT_DEPTH + k] = a.at(i0 + i, k0 + k);
}

// C [M, N] = A [M, K] B [K, N]. Every entry of C is summed by one thread, in the order of k, in blocks of fixed size.
inline void product(i64 M, i64 N, i64 K, Strided a, Strided b, float* c) {
  const i64 panels = ceil_div(N, PW), tasks = ceil_div(M, PRODUCT_ROWS);
  Buffer<float> packed(panels * PRODUCT_DEPTH * PW);
#pragma omp parallel
  {
    alignas(64) float rows[PRODUCT_ROWS * PRODUCT_DEPTH];
#pragma omp for schedule(static)
    for (i64 i = 0; i < M; i++)
      for (i64 j = 0; j < N; j++) c[i * N + j] = 0.f;
    for (i64 k0 = 0; k0 < K; k0 += PRODUCT_DEPTH) {
      const i64 depth = imin(PRODUCT_DEPTH, K - k0);
#pragma omp for schedule(static)
      for (i64 p = 0; p < panels; p++)
        pack_panel(b, k0, depth, p * PW, imin(PW, N - p * PW), packed.data + p * PRODUCT_DEPTH * PW);
#pragma omp for schedule(dynamic, 1)
      for (i64 task = 0; task < tasks; task++) {
        const i64 i0 = task * PRODUCT_ROWS, count = imin(PRODUCT_ROWS, M - i0);
        pack_block(a, i0, count, k0, depth, rows);
        for (i64 p = 0; p < panels; p++) {
          RowsTimesPanel block{rows, packed.data + p * PRODUCT_DEPTH * PW, depth, imin(PW, N - p * PW),
                             c + i0 * N + p * PW, N};
          for_row_groups(count, block);
        }
      }
    }
  }
}

}  // namespace
