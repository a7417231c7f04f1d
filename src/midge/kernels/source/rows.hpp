// Local normalization of arc rows and its chain rule. A row is [blank, label 1, .., label V].
#pragma once
#include "topology.hpp"

namespace {

inline void subtract(float* x, i64 n, float v) {
  if (v == NEG_INF || v == 0) return;  // a row of all -inf stays as it is
  for (i64 i = 0; i < n; i++) x[i] -= v;
}

// Removes the arcs that the automaton does not have (mask: next states of the row, or null).
inline void mask_row(float* w, i64 V, bool blank, const int32_t* mask) {
  if (mask)
    for (i64 y = 0; y < V; y++)
      if (mask[y] < 0) w[1 + y] = NEG_INF;
  if (!blank) w[0] = NEG_INF;
}

// Rows that are normalized together, in place: a row's own logarithms and exponentials are a lane of a vector.
struct RowGroup {
  const i64 V;
  const int normalization;
  float* row[VW];
  int count = 0;
  RowGroup(i64 labels, int kind) : V(labels), normalization(kind) {}

  void add(float* w) {
    if (normalization == MIDGE_GLOBAL) return;
    row[count++] = w;
    if (count == VW) flush();
  }
  void flush() {
    const i64 first = normalization == MIDGE_HAT ? 1 : 0;  // HAT: the labels, apart from blank
    float max[VW] = {}, sum[VW] = {}, blank[VW] = {}, shift[VW];
    for (int i = 0; i < count; i++) {
      sum[i] = sum_exp(row[i] + first, V + 1 - first, max[i]);
      blank[i] = row[i][0];
    }
    vf total = load(max) + vlog(load(sum));
    if (normalization == MIDGE_HAT) split(blank, total);
    store(shift, total);
    for (int i = 0; i < count; i++) {
      if (first) row[i][0] = blank[i];
      subtract(row[i] + first, V + 1 - first, shift[i]);
    }
    count = 0;
  }

  // HAT: blank's score x becomes log sigmoid(x), and what the labels' total l is divided by gets 1 + e^x.
  static void split(float* blank, vf& total) {
    const vf x = load(blank), none = splat(NEG_INF);
    const vf stay = total == none ? splat(0.f) : neg_softplus(-x);  // no label, so blank is certain
    total = total == none || x == none ? total : total - neg_softplus(x);
    store(blank, x == none ? none : stay);
  }
};

// A row alone.
inline void normalize_row(float* w, i64 V, int normalization, bool blank, const int32_t* mask) {
  RowGroup group(V, normalization);
  mask_row(w, V, blank, mask);
  group.add(w);
  group.flush();
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
