// Forward and backward weights of the whole lattice A for one utterance, one frame at a time.
//
// Weights are float32 relative to an offset per frame (float64), so that precision does not decay with the number of
// frames. With ENT every weight carries the entropy of the paths behind it: the pair (log w, H) with
// plus = (logsumexp, sum p_i (H_i - log p_i)), times = (sum, sum).
//
// A frame is a stack of layers n = 0..k (only layer 0 for frame-dependent lattices). In a layer a context state q has
// the weight a0[q]; with deduplication a0 is (q, blank) and a1[s] the slots (q, y). T[q] sums over them: the source of
// blank and of new labels; X[s] leaves slot s out: the source of a new label equal to the slot's own.
#pragma once
#include "rows.hpp"

namespace {

struct Weights {  // a: log-weights; h: their entropies (null without ENT)
  float *a, *h;
};

// Running log-sum-exp of scalars with entropies, given the maximum.
template <bool ENT>
struct Sum {
  float m, s = 0, e = 0;
  explicit Sum(float max) : m(max == NEG_INF ? 0.f : max) {}
  MIDGE_INLINE void add(float v, float h) {
    if (v == NEG_INF) return;
    float p = sexp(v - m);
    s += p;
    if (ENT) e += p * (h - (v - m));
  }
  MIDGE_INLINE float log() const { return s > 0 ? m + slog(s) : NEG_INF; }
  MIDGE_INLINE float entropy() const { return s > 0 ? e / s + slog(s) : 0.f; }
};

template <bool ENT>
MIDGE_INLINE void plus(vf a, vf ha, vf b, vf hb, vf& out, vf& hout) {
  if (!ENT) {
    out = vlse2(a, b);
    return;
  }
  vf m = vmax(a, b);
  m = m == splat(NEG_INF) ? splat(0.f) : m;
  vf da = vmax(a - m, splat(-100.f)), db = vmax(b - m, splat(-100.f));
  vf pa = vexp(da), pb = vexp(db), s = pa + pb, l = vlog(s);
  out = m + l;
  hout = s > splat(0.f) ? (pa * (ha - da) + pb * (hb - db)) / s + l : splat(0.f);
}

// Calls f(i, n) over 0..count in vectors; n < VW only for the last.
template <class F>
MIDGE_INLINE void for_vectors(i64 count, F&& f) {
  i64 i = 0;
  for (; i + VW <= count; i += VW) f(i, (i64)VW);
  if (i < count) f(i, count - i);
}
MIDGE_INLINE vf get(const float* p, i64 n, float fill = NEG_INF) { return n >= VW ? load(p) : load_part(p, n, fill); }
MIDGE_INLINE void put(float* p, vf x, i64 n) {
  if (n >= VW) store(p, x);
  else store_part(p, x, n);
}

template <bool ENT>
struct Lattice {
  const Topology& g;
  const midge_problem& p;
  const i64 S, V, C, NS;
  const bool dedup, local;
  const int k;  // last layer
  Buffer<float> memory;
  // Layers: weights and sources of each; all of size [k + 1].
  float *layer0, *layer1, *layerT, *layerX, *zeros, *arc_v, *arc_h, *scratch, *scratch_h, *column;
  i64 layer_size;

  Lattice(const Topology& topology, const midge_problem& problem)
      : g(topology), p(problem), S(g.S), V(g.V), C(g.C), NS(g.num_slots), dedup(g.dedup),
        local(problem.normalization != MIDGE_GLOBAL), k(problem.alignment == MIDGE_K_CONSTRAINED ? problem.k : 0) {
    i64 planes = ENT ? 2 : 1, stack = k + 1;
    i64 wide = imax(imax(V + 1, g.max_in), g.max_slots + 1) + 64;
    i64 n = stack * planes * 2 * (S + NS) + S + (dedup ? planes * S * C : 0) + 4 * wide + S + 1024;
    memory.allocate(n);
    float* m = memory.data;
    auto take = [&](i64 count) { float* r = m; m += round_up(count, 16); return r; };
    layer_size = planes * S;
    layer0 = take(stack * planes * S);
    layerT = dedup ? take(stack * planes * S) : layer0;
    layer1 = take(stack * planes * NS);
    layerX = take(stack * planes * NS);
    zeros = take(S);
    arc_v = dedup ? take(S * C) : nullptr;
    arc_h = dedup && ENT ? take(S * C) : nullptr;
    scratch = take(wide);
    scratch_h = take(2 * wide);
    column = take(S);
    extra.allocate(2 * (V + 16));
  }

  Weights at(float* base, i64 n, i64 size) const {
    float* a = base + n * (ENT ? 2 : 1) * size;
    return {a, ENT ? a + size : nullptr};
  }
  Weights a0(i64 n) const { return at(layer0, n, S); }
  Weights a1(i64 n) const { return at(layer1, n, NS); }
  Weights T(i64 n) const { return at(layerT, n, S); }
  Weights X(i64 n) const { return at(layerX, n, NS); }

  // Whether (q, y) slots live across frames: not in the k-constrained lattice, whose frames all end in blank.
  bool keeps_slots() const { return dedup && p.alignment != MIDGE_K_CONSTRAINED; }
  i64 kept_per_frame() const { return (S + (keeps_slots() ? NS : 0)) * (ENT ? 2 : 1); }

  static void fill(Weights w, i64 n, float v) {
    for (i64 i = 0; i < n; i++) w.a[i] = v;
    if (ENT)
      for (i64 i = 0; i < n; i++) w.h[i] = 0;
  }

  void set_start(Weights n0, Weights n1) {
    fill(n0, S, NEG_INF);
    fill(n1, NS, NEG_INF);
    n0.a[p.start] = 0;
  }

  // T and X of layer n. n-grams have one slot per state: vectors; otherwise exclusive sums by prefixes and suffixes.
  void sources(i64 n) {
    if (!dedup) return;
    Weights w0 = a0(n), w1 = a1(n), t = T(n), x = X(n);
    if (g.kind == Topology::NGRAM) {
      t.a[0] = w0.a[0];
      if (ENT) t.h[0] = w0.h[0];
      for_vectors(S - 1, [&](i64 i, i64 c) {
        vf r, h, zero = splat(0.f);
        plus<ENT>(get(w0.a + 1 + i, c), ENT ? get(w0.h + 1 + i, c, 0) : zero, get(w1.a + i, c),
                  ENT ? get(w1.h + i, c, 0) : zero, r, h);
        put(t.a + 1 + i, r, c);
        if (ENT) put(t.h + 1 + i, h, c);
      });
      memcpy(x.a, w0.a + 1, NS * sizeof(float));
      if (ENT) memcpy(x.h, w0.h + 1, NS * sizeof(float));
      return;
    }
    for (i64 q = 0; q < S; q++) {
      const i64 s0 = g.slot_begin[q], count = g.slot_begin[q + 1] - s0;
      exclusive_sums(w0.a[q], ENT ? w0.h[q] : 0.f, w1.a + s0, ENT ? w1.h + s0 : nullptr, count, x.a + s0,
                     ENT ? x.h + s0 : nullptr, t.a[q], ENT ? t.h[q] : *scratch);
    }
  }

  // total = base + sum of v[0..n); out[i] = base + the sum without v[i]. O(n): prefix and suffix sums relative to the
  // maximum; where the rest vanishes beside the one left out, that one sum is done again on its own scale.
  void exclusive_sums(float base, float base_h, const float* v, const float* vh, i64 n, float* out, float* out_h,
                      float& total, float& total_h) {
    float m = smax(base, max_of(v, n));
    if (m == NEG_INF) {
      total = NEG_INF;
      if (ENT) total_h = 0;
      for (i64 i = 0; i < n; i++) {
        out[i] = NEG_INF;
        if (ENT) out_h[i] = 0;
      }
      return;
    }
    Sum<ENT> before(m);
    before.add(base, base_h);
    float* e = scratch;
    for_vectors(n, [&](i64 i, i64 c) { put(e + i, vexp(get(v + i, c) - splat(m)), c); });
    const auto add = [&](Sum<ENT>& sum, i64 i) {
      sum.s += e[i];
      if (ENT && e[i] > 0) sum.e += e[i] * (vh[i] - (v[i] - m));
    };
    for (i64 i = 0; i < n; i++) {  // prefixes
      out[i] = before.s;
      if (ENT) out_h[i] = before.e;
      add(before, i);
    }
    total = before.log();
    if (ENT) total_h = before.entropy();
    Sum<ENT> after(m);
    i64 alone = -1;  // the one, if any, beside which the rest vanishes
    for (i64 i = n - 1; i >= 0; i--) {  // and suffixes
      Sum<ENT> both(m);
      both.s = out[i] + after.s;
      if (ENT) both.e = out_h[i] + after.e;
      if (both.s < 1e-6f) alone = i;
      out[i] = both.s;
      if (ENT) out_h[i] = both.entropy();
      add(after, i);
    }
    for_vectors(n, [&](i64 i, i64 c) { put(out + i, splat(m) + vlog(get(out + i, c, 1.f)), c); });
    if (alone < 0) return;
    const Sum<ENT> rest = sum_without(base, base_h, v, vh, n, alone);
    out[alone] = rest.log();
    if (ENT) out_h[alone] = rest.entropy();
  }
  Sum<ENT> sum_without(float base, float base_h, const float* v, const float* vh, i64 n, i64 skip) {
    float m = smax(base, smax(max_of(v, skip), max_of(v + skip + 1, n - skip - 1)));
    Sum<ENT> s(m);
    s.add(base, base_h);
    for (i64 i = 0; i < n; i++)
      if (i != skip) s.add(v[i], ENT ? vh[i] : 0.f);
    return s;
  }

  // ---- forward

  // The label arcs' values v[q][y] = source + w, where the source depends on y (deduplication). Entropies beside.
  void spread(i64 n, const float* w) {
    Weights t = T(n), x = X(n);
    for (i64 q = 0; q < S; q++) {
      float* v = arc_v + q * C;
      const float* row = w + q * C;
      for (i64 y = 1; y <= V; y++) v[y] = row[y] + t.a[q];
      if (ENT)
        for (i64 y = 1; y <= V; y++) arc_h[q * C + y] = t.h[q];
      for (i64 s = g.slot_begin[q]; s < g.slot_begin[q + 1]; s++) {
        i64 y = g.slot_label[s];
        v[y] = row[y] + x.a[s];
        if (ENT) arc_h[q * C + y] = x.h[s];
      }
    }
  }

  // out[dest] = sum over its arcs (q, y) of source[q] + w[q][y]. h: entropies by arc, or null for source.h.
  void sum_arcs(Weights source, const float* w, const float* h, Weights out) {
    switch (g.kind) {
      case Topology::NGRAM: sum_ngram(source, w, h, out); break;
      case Topology::ZERO: sum_zero(source, w, h, out); break;
      default: sum_lists(source, w, h, out);
    }
  }

  void sum_ngram(Weights source, const float* w, const float* h, Weights out) {
    if (!dedup) {
      out.a[0] = NEG_INF;  // nothing leads back to the empty history
      if (ENT) out.h[0] = 0;
    }
    for (i64 q = 0; q < g.inner; q++) {  // short histories: one arc each
      float* o = out.a + g.first_dest(q);
      for (i64 y = 0; y < V; y++) o[y] = source.a[q] + w[q * C + 1 + y];
      if (ENT)
        for (i64 y = 0; y < V; y++) out.h[g.first_dest(q) + y] = h ? h[q * C + 1 + y] : source.h[q];
    }
    for (i64 s = 0; s < g.suffixes; s++) {
      i64 q0 = g.inner + s, first = g.first_dest(q0);
      for (i64 y = 0; y < V; y += VW) {
        // The last vector overlaps the one before: the same values are stored twice.
        i64 i = V >= VW ? imin(y, V - VW) : 0, c = imin(V, VW);
        vf r, e;
        sum_column(source, w, h, q0, g.below + s, i, c, r, e);
        put(out.a + first + i, r, c);
        if (ENT) put(out.h + first + i, e, c);
      }
    }
  }

  // Arcs with labels 1 + i .. of the histories q0 and q1 + x V^(n-1), x = 0..V-1, which all have the same suffix.
  MIDGE_INLINE void sum_column(Weights source, const float* w, const float* h, i64 q0, i64 q1, i64 i, i64 c, vf& r,
                               vf& entropy) {
    const i64 step = g.suffixes;
    const float *w0 = w + q0 * C + 1 + i, *w1 = w + q1 * C + 1 + i;
    const float* src = source.a + q1;
    vf v0 = get(w0, c) + splat(source.a[q0]), m = v0;
    for (i64 x = 0; x < V; x++) m = vmax(m, get(w1 + x * step * C, c) + splat(src[x * step]));
    m = m == splat(NEG_INF) ? splat(0.f) : m;
    vf d = v0 - m, s = vexp(d), e = {};
    if (ENT) e = s * ((h ? get(h + q0 * C + 1 + i, c, 0) : splat(source.h[q0])) - vmax(d, splat(-100.f)));
    for (i64 x = 0; x < V; x++) {
      d = get(w1 + x * step * C, c) + splat(src[x * step]) - m;
      vf t = vexp(d);
      s += t;
      if (ENT) {
        const i64 q = q1 + x * step;
        e += t * ((h ? get(h + q * C + 1 + i, c, 0) : splat(source.h[q])) - vmax(d, splat(-100.f)));
      }
    }
    vf l = vlog(s);
    r = m + l;
    if (ENT) entropy = s > splat(0.f) ? e / s + l : splat(0.f);
  }

  void sum_zero(Weights source, const float* w, const float* h, Weights out) {
    if (dedup) {
      for (i64 y = 0; y < V; y++) out.a[y] = w[1 + y] + source.a[0];
      if (ENT) memcpy(out.h, h + 1, V * sizeof(float));
      return;
    }
    for (i64 y = 0; y < V; y++) scratch[y] = w[1 + y] + source.a[0];
    sum_list(scratch, nullptr, ENT ? source.h[0] : 0.f, V, out, 0);
  }

  void sum_lists(Weights source, const float* w, const float* h, Weights out) {
    for (i64 d = 0; d < g.num_dests; d++) {
      i64 i0 = g.in_begin[d], n = g.in_begin[d + 1] - i0;
      for (i64 i = 0; i < n; i++) {
        i64 q = g.in_state[i0 + i], at = q * C + g.in_label[i0 + i];
        scratch[i] = source.a[q] + w[at];
        if (ENT) scratch_h[i] = h ? h[at] : source.h[q];
      }
      sum_list(scratch, scratch_h, 0.f, n, out, d);
    }
  }

  void sum_list(const float* v, const float* h, float same_h, i64 n, Weights out, i64 d) {
    if (!ENT) {
      out.a[d] = lse_of(v, n);
      return;
    }
    Sum<ENT> s(max_of(v, n));
    for (i64 i = 0; i < n; i++) s.add(v[i], h ? h[i] : same_h);
    out.a[d] = s.log();
    out.h[d] = s.entropy();
  }

  // Label arcs of layer n, new and (deduplication) repeated, into `out` over the destinations.
  void label_step(i64 n, const float* w, Weights out) {
    if (!dedup) {
      sum_arcs(a0(n), w, nullptr, out);
      return;
    }
    spread(n, w);
    sum_arcs({zeros, zeros}, arc_v, arc_h, out);
    add_repeats(w, a1(n), out);
  }
  // out[s] = out[s] plus the repeat of slot s.
  void add_repeats(const float* w, Weights w1, Weights out) {
    for_vectors(NS, [&](i64 s, i64 c) {
      float v[VW];
      for (i64 i = 0; i < c; i++) v[i] = w1.a[s + i] + w[(i64)g.slot_state[s + i] * C + g.slot_label[s + i]];
      vf r, h;
      plus<ENT>(get(out.a + s, c), ENT ? get(out.h + s, c, 0) : splat(0.f), get(v, c),
                ENT ? get(w1.h + s, c, 0) : splat(0.f), r, h);
      put(out.a + s, r, c);
      if (ENT) put(out.h + s, h, c);
    });
  }

  // Blank's weight at layer n: at the last layer of a locally normalized k-constrained lattice nothing else leaves.
  bool blank_is_sure(i64 n) const { return p.alignment == MIDGE_K_CONSTRAINED && n == k && local; }
  void blank_column(const float* w, i64 n) {
    for (i64 q = 0; q < S; q++) column[q] = blank_is_sure(n) ? 0.f : w[q * C];
  }

  // out = (first ? nothing : out) plus T + blank.
  void blank_step(i64 n, const float* w, Weights out, bool first) {
    blank_column(w, n);
    Weights t = T(n);
    for_vectors(S, [&](i64 i, i64 c) {
      vf r = get(t.a + i, c) + get(column + i, c), h = ENT ? get(t.h + i, c, 0) : splat(0.f);
      if (!first) plus<ENT>(get(out.a + i, c), ENT ? get(out.h + i, c, 0) : splat(0.f), r, h, r, h);
      put(out.a + i, r, c);
      if (ENT) put(out.h + i, h, c);
    });
  }

  // All layers of a frame from layer 0 (already in a0(0), a1(0)); fills the layers above it.
  void climb(const float* w) {
    for (i64 n = 0; n <= k; n++) {
      sources(n);
      if (n == k) break;
      if (dedup) fill(a0(n + 1), S, NEG_INF);
      label_step(n, w, dedup ? a1(n + 1) : a0(n + 1));
    }
  }

  // One frame: layer 0 is the state before, n0 (and n1) the state after. w [S, C] normalized arcs.
  void forward_frame(const float* w, Weights n0, Weights n1) {
    if (p.alignment == MIDGE_K_CONSTRAINED) {
      climb(w);
      for (i64 n = 0; n <= k; n++) blank_step(n, w, n0, n == 0);
      fill(n1, NS, NEG_INF);
      return;
    }
    sources(0);
    if (dedup) {
      label_step(0, w, n1);
      blank_step(0, w, n0, true);
    } else {
      label_step(0, w, n0);
      if (p.alignment != MIDGE_FRAME_NO_BLANK) blank_step(0, w, n0, false);
    }
  }

  // Subtracts the largest weight, which is returned (-inf: nothing is left).
  float recentre(Weights n0, Weights n1) {
    float m = smax(max_of(n0.a, S), dedup ? max_of(n1.a, NS) : NEG_INF);
    if (m == NEG_INF) return m;
    for (i64 i = 0; i < S; i++) n0.a[i] -= m;
    for (i64 i = 0; dedup && i < NS; i++) n1.a[i] -= m;
    return m;
  }

  // Sum over the final states.
  void finish(Weights n0, Weights n1, double& log, double& entropy) {
    const float* f = p.final_weight;
    float m = NEG_INF;
    for (i64 q = 0; q < S; q++) m = smax(m, n0.a[q] + (f ? f[q] : 0.f));
    for (i64 s = 0; dedup && s < NS; s++) m = smax(m, n1.a[s] + (f ? f[g.slot_state[s]] : 0.f));
    if (m == NEG_INF) {
      log = NEG_INF;
      entropy = 0;
      return;
    }
    double sum = 0, e = 0;
    auto add = [&](float v, float h) {
      if (v == NEG_INF) return;
      double d = (double)v - m, pr = __builtin_exp(d);
      sum += pr;
      e += pr * (h - d);
    };
    for (i64 q = 0; q < S; q++) add(n0.a[q] + (f ? f[q] : 0.f), ENT ? n0.h[q] : 0.f);
    for (i64 s = 0; dedup && s < NS; s++) add(n1.a[s] + (f ? f[g.slot_state[s]] : 0.f), ENT ? n1.h[s] : 0.f);
    log = m + __builtin_log(sum);
    entropy = e / sum + __builtin_log(sum);
  }

  // ---- backward

  void set_final(Weights b0, Weights b1) {
    fill(b0, S, 0.f);
    fill(b1, NS, 0.f);
    if (!p.final_weight) return;
    for (i64 q = 0; q < S; q++) b0.a[q] = p.final_weight[q];
    for (i64 s = 0; s < NS; s++) b1.a[s] = p.final_weight[g.slot_state[s]];
  }

  // log of the sum over states of forward times backward weights: log Z, relative to both offsets.
  float meet(const float* f0, const float* f1, Weights b0, Weights b1) {
    float m = NEG_INF;
    for (i64 i = 0; i < S; i++) m = smax(m, f0[i] + b0.a[i]);
    for (i64 i = 0; f1 && i < NS; i++) m = smax(m, f1[i] + b1.a[i]);
    if (m == NEG_INF) return m;
    vf s = {};
    for_vectors(S, [&](i64 i, i64 c) { s += vexp(get(f0 + i, c) + get(b0.a + i, c) - splat(m)); });
    if (f1) for_vectors(NS, [&](i64 i, i64 c) { s += vexp(get(f1 + i, c) + get(b1.a + i, c) - splat(m)); });
    return m + slog(hsum(s));
  }

  struct Upstream {
    float c;         // e^(alpha + w + beta + c) is a posterior
    float d_log;     // d loss / d log Z
    float d_entropy; // d loss / d entropy
    float entropy;   // of the whole utterance
    bool all_arcs;   // also the posterior of the certain blank, which has no gradient
  };

  // d loss / d w of an arc with log-posterior l and entropies before and after it.
  static MIDGE_INLINE vf arc_gradient(const Upstream& u, vf l, vf h_before, vf h_after) {
    vf post = vexp(l);
    if (!ENT) return post * splat(u.d_log);
    return post * (splat(u.d_log) + splat(u.d_entropy) * (h_before + h_after - splat(u.entropy) - vmax(l, splat(-100.f))));
  }
  static float arc_gradient1(const Upstream& u, float l, float h_before, float h_after) {
    return arc_gradient(u, splat(l), splat(h_before), splat(h_after))[0];
  }

  // Layer n: from the backward weights of the label destinations (null at the last layer of the k-constrained lattice)
  // and of the blank destinations, those of the layer (b0, b1), and the gradient of the arcs, added to grad [S, C].
  void backward_layer(i64 n, const float* w, const Weights* label, Weights blank, const Upstream& u, Weights b0,
                      Weights b1, float* grad) {
    Weights t = T(n);
    const bool has_blank = p.alignment != MIDGE_FRAME_NO_BLANK, sure = blank_is_sure(n);
    for (i64 q = 0; q < S; q++) {
      const float* row = w + q * C;
      float* out = grad + q * C;
      const float step = has_blank ? (sure ? 0.f : row[0]) : NEG_INF;
      const float vb = step + blank.a[q], hb = ENT ? blank.h[q] : 0.f, th = ENT ? t.h[q] : 0.f;
      if (!sure || u.all_arcs) out[0] += arc_gradient1(u, t.a[q] + vb + u.c, th, hb);
      if (!label) {
        b0.a[q] = vb;
        if (ENT) b0.h[q] = hb;
        for (i64 s = 0; dedup && s < g.slot_begin[q + 1] - g.slot_begin[q]; s++) {
          b1.a[g.slot_begin[q] + s] = vb;
          if (ENT) b1.h[g.slot_begin[q] + s] = hb;
        }
        continue;
      }
      const float* next = g.at_dests(q, label->a, scratch);
      const float* next_h = ENT ? g.at_dests(q, label->h, scratch_h, 0.f) : nullptr;
      if (dedup) backward_row_dedup(n, q, row, next, next_h, *label, vb, hb, u, b0, b1, out);
      else backward_row(t.a[q], th, row, next, next_h, vb, hb, u, b0.a[q], ENT ? b0.h[q] : *scratch_h, out);
    }
  }

  // b0 = blank plus the label arcs; one exponential per arc serves the sum and the posteriors.
  void backward_row(float source, float source_h, const float* row, const float* next, const float* next_h, float vb,
                    float hb, const Upstream& u, float& b0, float& b0_h, float* out) {
    vf vm = splat(vb);
    for_vectors(V, [&](i64 i, i64 c) { vm = vmax(vm, get(row + 1 + i, c) + get(next + i, c)); });
    const float m = hmax(vm);
    if (m == NEG_INF) {
      b0 = NEG_INF;
      if (ENT) b0_h = 0;
      return;
    }
    const float top = source + m + u.c;
    const vf scale = splat(sexp(top) * u.d_log);
    vf s = {}, e = {};
    for_vectors(V, [&](i64 i, i64 c) {
      vf d = get(row + 1 + i, c) + get(next + i, c) - splat(m), x = vexp(d);
      s += x;
      vf o = get(out + 1 + i, c, 0);
      if (ENT) {
        vf h = get(next_h + i, c, 0);
        e += x * (h - vmax(d, splat(-100.f)));
        o += arc_gradient(u, d + splat(top), splat(source_h), h);
      } else {
        o += x * scale;
      }
      put(out + 1 + i, o, c);
    });
    Sum<ENT> sum(m);
    sum.add(vb, hb);
    sum.s += hsum(s);
    if (ENT) sum.e += hsum(e);
    b0 = sum.log();
    if (ENT) b0_h = sum.entropy();
  }

  void backward_row_dedup(i64 n, i64 q, const float* row, const float* next, const float* next_h, Weights label,
                          float vb, float hb, const Upstream& u, Weights b0, Weights b1, float* out) {
    Weights t = T(n), x = X(n), w1 = a1(n);
    // New labels, as if every source were T; the label of a slot then gets its own source instead.
    const i64 s0 = g.slot_begin[q], s1 = g.slot_begin[q + 1];
    for (i64 s = s0; s < s1; s++) b1.a[s] = out[g.slot_label[s]];  // b1 is not yet in use
    backward_row(t.a[q], ENT ? t.h[q] : 0.f, row, next, next_h, vb, hb, u, b0.a[q], ENT ? b0.h[q] : *scratch_h, out);
    for (i64 s = s0; s < s1; s++) {
      const i64 y = g.slot_label[s];
      const float h = ENT ? next_h[y - 1] : 0.f;
      out[y] = b1.a[s] + arc_gradient1(u, x.a[s] + row[y] + next[y - 1] + u.c, ENT ? x.h[s] : 0.f, h) +
               arc_gradient1(u, w1.a[s] + row[y] + label.a[s] + u.c, ENT ? w1.h[s] : 0.f, ENT ? label.h[s] : 0.f);
    }
    exclude_own_label(q, row, next, next_h, label, vb, hb, b1);
  }

  // b1[s] = blank, plus the new labels other than the slot's own, plus the repeat.
  void exclude_own_label(i64 q, const float* row, const float* next, const float* next_h, Weights label, float vb,
                         float hb, Weights b1) {
    const i64 s0 = g.slot_begin[q], count = g.slot_begin[q + 1] - s0;
    if (!count) return;
    float* v = arc_v;  // free in the backward pass; [V] and [V] of results
    float *vh = ENT ? arc_h : nullptr, *r = extra.data, *rh = ENT ? extra.data + V + 16 : nullptr;
    for (i64 y = 0; y < V; y++) v[y] = row[1 + y] + next[y];
    if (ENT) memcpy(vh, next_h, V * sizeof(float));
    float total, total_h;
    if (count == 1) {  // n-grams: no need for all V exclusions
      const i64 y = g.slot_label[s0] - 1;
      Sum<ENT> sum = ENT ? sum_without(vb, hb, v, vh, V, y) : Sum<ENT>(0.f);
      if (ENT) {
        r[y] = sum.log();
        rh[y] = sum.entropy();
      } else {
        v[y] = vb;  // blank takes the place of the label that is left out
        r[y] = lse_of(v, V);
      }
    } else {
      exclusive_sums(vb, hb, v, vh, V, r, rh, total, ENT ? total_h : total);
    }
    for (i64 s = s0; s < s0 + count; s++) {
      const i64 y = g.slot_label[s] - 1;
      const float repeat = row[1 + y] + label.a[s];
      Sum<ENT> sum(smax(r[y], repeat));
      sum.add(r[y], ENT ? rh[y] : 0.f);
      sum.add(repeat, ENT ? label.h[s] : 0.f);
      b1.a[s] = sum.log();
      if (ENT) b1.h[s] = sum.entropy();
    }
  }

  // One frame backwards. Layer 0 is the forward state before the frame; b0, b1 become the backward weights before it.
  // next0, next1 are those after it. grad [S, C] is overwritten.
  void backward_frame(const float* w, Weights next0, Weights next1, const Upstream& u, Weights b0, Weights b1,
                      Weights spare0, Weights spare1, float* grad) {
    memset(grad, 0, S * C * sizeof(float));
    if (p.alignment != MIDGE_K_CONSTRAINED) {
      sources(0);
      backward_layer(0, w, dedup ? &next1 : &next0, next0, u, b0, b1, grad);
      return;
    }
    climb(w);
    // Two sets of backward weights take turns so that layer 0 ends in (b0, b1).
    Weights x0 = k % 2 ? spare0 : b0, x1 = k % 2 ? spare1 : b1, y0 = k % 2 ? b0 : spare0, y1 = k % 2 ? b1 : spare1;
    backward_layer(k, w, nullptr, next0, u, x0, x1, grad);
    for (i64 n = k - 1; n >= 0; n--) {
      backward_layer(n, w, dedup ? &x1 : &x0, next0, u, y0, y1, grad);
      Weights s0 = x0, s1 = x1;
      x0 = y0, x1 = y1, y0 = s0, y1 = s1;
    }
  }

  Buffer<float> extra;
};

}  // namespace
