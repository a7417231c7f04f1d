// Local normalization of arc rows and its chain rule. A row is [blank, label 1, .., label V].
#pragma once
#include "topology.hpp"

namespace {

inline void subtract(float* x, i64 n, float v) {
  if (v == NEG_INF || v == 0) return;  // a row of all -inf stays as it is
  for (i64 i = 0; i < n; i++) x[i] -= v;
}

// Removes the arcs that the automaton does not have (mask: next states of the row, or null), then normalizes in place.
inline void normalize_row(float* w, i64 V, int normalization, bool blank, const int32_t* mask) {
  if (mask)
    for (i64 y = 0; y < V; y++)
      if (mask[y] < 0) w[1 + y] = NEG_INF;
  if (!blank) w[0] = NEG_INF;
  if (normalization == MIDGE_SOFTMAX) {
    subtract(w, V + 1, lse_of(w, V + 1));
  } else if (normalization == MIDGE_HAT) {
    float l = lse_of(w + 1, V), x = w[0];
    if (l == NEG_INF) {
      w[0] = x == NEG_INF ? NEG_INF : 0.f;
    } else {
      w[0] = x == NEG_INF ? NEG_INF : neg_softplus(-x);
      subtract(w + 1, V, l + (x == NEG_INF ? 0.f : -neg_softplus(x)));
    }
  }
}

// g: gradient by the normalized weights w; out: gradient by the raw weights. out may be w.
inline void unnormalize_row(const float* w, const float* g, i64 V, int normalization, float* out) {
  if (normalization == MIDGE_GLOBAL) {
    memcpy(out, g, (V + 1) * sizeof(float));
    return;
  }
  float labels = 0;
  {
    vf s = {};
    i64 y = 1;
    for (; y + VW <= V + 1; y += VW) s += load(g + y);
    labels = hsum(s);
    for (; y <= V; y++) labels += g[y];
  }
  float total, first, shift = 0;
  if (normalization == MIDGE_SOFTMAX) {
    total = labels + g[0];
    first = g[0] - (w[0] == NEG_INF ? 0.f : sexp(w[0])) * total;
  } else {
    // log(1 - b) is the labels' total, also where 1 - b itself has no digits left
    const float rest = lse_of(w + 1, V);
    const float b = w[0] == NEG_INF ? 0.f : sexp(w[0]);
    first = rest == NEG_INF || w[0] == NEG_INF ? 0.f : g[0] * sexp(rest) - b * labels;
    total = labels;
    shift = rest == NEG_INF ? 0.f : rest;
  }
  i64 y = 1;
  for (; y + VW <= V + 1; y += VW) store(out + y, load(g + y) - vexp(load(w + y) - splat(shift)) * splat(total));
  for (; y <= V; y++) out[y] = g[y] - sexp(w[y] - shift) * total;
  out[0] = first;
}

}  // namespace
