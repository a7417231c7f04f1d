// The register-blocked products every scorer is made of, and the packing they need.
#pragma once
#include "simd.hpp"

namespace {

constexpr int MR = 6;  // rows of a register block: 6 x 2 vectors = 12 accumulators, 2 for the panel, 1 broadcast

// acc[i][v] += sum_k a(i, k) * b[k][v-th vector], with a(i, k) = a[i * rs + k * ks] and b a packed panel whose
// k-th row starts at b + k * bs. Cost: R * NV multiply-adds against R broadcasts and NV loads for each k.
template <int R, int NV, bool UNIT_K>
MIDGE_INLINE void block_product(i64 K, const float* a, i64 rs, i64 ks, const float* b, i64 bs, vf (&acc)[R][NV]) {
  const i64 step = UNIT_K ? 1 : ks, row = UNIT_K ? rs : 1;
#pragma GCC unroll 2
  for (i64 k = 0; k < K; k++) {
    vf bv[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) bv[v] = load(b + v * VW);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
      vf x = splat(a[i * row]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; v++) acc[i][v] += x * bv[v];
    }
    a += step;
    b += bs;
  }
}

// The same from zero into out[R][PW], never inlined: inside larger functions gcc 12 keeps the accumulators in memory,
// which halves the speed.
template <int R>
__attribute__((noinline)) void dot_block(i64 K, const float* a, i64 rs, const float* panel, float* out) {
  vf acc[R][2] = {};
  block_product<R, 2, true>(K, a, rs, 1, panel, PW, acc);
#pragma GCC unroll 8
  for (int i = 0; i < R; i++) store(out + i * PW, acc[i][0]), store(out + i * PW + VW, acc[i][1]);
}

// out[i][0..PW) += sum_k a[k * ks + i] * panel[k], rows of out os apart.
template <int R>
__attribute__((noinline)) void add_block(i64 K, const float* a, i64 ks, const float* panel, float* out, i64 os) {
  vf acc[R][2];
#pragma GCC unroll 8
  for (int i = 0; i < R; i++) acc[i][0] = load(out + i * os), acc[i][1] = load(out + i * os + VW);
  block_product<R, 2, false>(K, a, 1, ks, panel, PW, acc);
#pragma GCC unroll 8
  for (int i = 0; i < R; i++) store(out + i * os, acc[i][0]), store(out + i * os + VW, acc[i][1]);
}

// Calls f.template run<R>(first) for row groups of at most MR rows that cover 0..n as evenly as possible: 33 rows are
// 3 groups of 6 and 3 of 5, never a last group of 3 that leaves the multipliers idle.
template <class F>
MIDGE_INLINE void for_row_groups(i64 n, F&& f) {
  i64 groups = ceil_div(n, MR), first = 0;
  for (i64 g = 0; g < groups; g++) {
    i64 r = (n - first + groups - g - 1) / (groups - g);
    switch (r) {
      case 6: f.template run<6>(first); break;
      case 5: f.template run<5>(first); break;
      case 4: f.template run<4>(first); break;
      case 3: f.template run<3>(first); break;
      case 2: f.template run<2>(first); break;
      default: f.template run<1>(first); break;
    }
    first += r;
  }
}

// Packs the transpose of rows r0.. of a [rows, K] matrix into panels: out[panel][k][PW] holds rows panel*PW + 0..PW-1
// at column k; missing rows are 0.
inline void pack_rows(const float* w, i64 rows, i64 K, i64 ld, float* out) {
  for (i64 p = 0; p * PW < rows; p++)
    for (i64 k = 0; k < K; k++)
      for (int j = 0; j < PW; j++) {
        i64 r = p * PW + j;
        out[(p * K + k) * PW + j] = r < rows ? w[r * ld + k] : 0.f;
      }
}

// Packs a [rows, K] matrix into column panels: out[panel][row][PW] holds columns panel*PW + 0..PW-1; missing are 0.
inline void pack_columns(const float* w, i64 rows, i64 K, i64 ld, float* out) {
  for (i64 p = 0; p * PW < K; p++)
    for (i64 r = 0; r < rows; r++) {
      const float* in = w + r * ld + p * PW;
      float* o = out + (p * rows + r) * PW;
      const i64 left = K - p * PW;
      for (int v = 0; v < 2; v++)
        store(o + v * VW, left >= (v + 1) * VW ? load(in + v * VW) : load_part(in + v * VW, imax(left - v * VW, 0), 0));
    }
}

}  // namespace
