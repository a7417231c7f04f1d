// The numerator A ∩ y of one utterance: a chain of label positions u = 0..U.
//
// Its arcs are three numbers per frame and position: blank, the next label, and (deduplication) the repeat of the last
// label. They are extracted while the scorer's rows pass by; here the forward and backward weights are computed from
// them, and they are replaced by their posteriors, which is all the gradient needs. Where the context has a single state
// those numbers are few: a column for blank and one for each label of the string, gathered and scattered as needed.
// Same layers and the same
// (log w, H) pairs as lattice.hpp: P[u] is position u after blank (or, without deduplication, after anything), R[u]
// position u right after its label y_u.
//
// Unlike in A, the positions that matter can lie hundreds of nats below the best weight of their frame, where a float
// has no digits left. So weights are double here; exponentials and logarithms of differences are float.
#pragma once
#include "lattice.hpp"

namespace {

// a (+) b with entropies, weights in double.
template <bool ENT>
MIDGE_INLINE void plusd(vd a, vf ha, vd b, vf hb, vd& out, vf& hout) {
  vd m = vmaxd(a, b);
  vd base = m == splatd(NEG_INF_D) ? splatd(0.) : m;
  if (!ENT) {
    vf e = vexp(narrow(vmind(a, b) - base));
    out = m + widen(vlog(splat(1.f) + e));
    return;
  }
  vf da = vmax(narrow(a - base), splat(-100.f)), db = vmax(narrow(b - base), splat(-100.f));
  vf pa = vexp(da), pb = vexp(db), s = pa + pb, l = vlog(s);
  out = base + widen(l);
  hout = s > splat(0.f) ? (pa * (ha - da) + pb * (hb - db)) / s + l : splat(0.f);
}
template <bool ENT>
MIDGE_INLINE void plus1(double a, float ha, double b, float hb, double& out, float& hout) {
  vd r;
  vf h = {};
  plusd<ENT>(splatd(a), splat(ha), splatd(b), splat(hb), r, h);
  out = r[0], hout = h[0];
}

// How the arcs of an utterance are given: by position, or (at set) as columns of one row: blank is column 0.
struct Columns {
  const int32_t* at = nullptr;   // [U + 1]: column of the label that leads to position u; 0 at position 0
  const float* bonus = nullptr;  // [T] for new labels, or null; arcs by position already have it
  i64 width = 0;                 // floats of the row
};

template <bool ENT>
struct Chain {
  const midge_problem& p;
  const bool dedup, local, all_arcs;  // all_arcs: also the posterior of the certain blank, which has no gradient
  i64 T = 0, U = 0, row = 0;  // row: floats of a padded row
  int k = 0;
  i64 U1, planes;             // U1: stride of a plane of the arcs
  Columns columns;
  Buffer<double> alpha, work;  // rows of weights; their entropies are in the same rows of alpha_h, work_h
  Buffer<float> alpha_h, work_h, arc_rows;
  // Padded rows of one frame's arcs; -inf outside 0..U, so that whole vectors can be used everywhere.
  float *nb, *nl, *nr, *sure, *gb, *gl, *gr, *hb, *hl, *hr;
  float *blocked;             // at u: -inf if label u + 1 equals label u (no new label right after itself), else 0

  Chain(const midge_problem& problem, bool every_arc)
      : p(problem), dedup(problem.deduplicate != 0), local(problem.normalization != MIDGE_GLOBAL), all_arcs(every_arc),
        U1(problem.labels + 1), planes(problem.deduplicate ? 3 : 2) {}

  // Floats of the arcs of one frame: log-weights, later posteriors; with ENT also the entropy's gradients.
  i64 frame_floats() const { return (columns.at ? columns.width : planes * U1) * (ENT ? 2 : 1); }

  struct Row {  // at position 0; h null without ENT
    double* a;
    float* h;
  };

  Row row_at(Buffer<double>& base, Buffer<float>& h, i64 index) const {
    return {base.data + index * row + VW, ENT ? h.data + index * row + VW : nullptr};
  }
  Row kept_P(i64 t) { return row_at(alpha, alpha_h, t * (dedup ? 2 : 1)); }
  Row kept_R(i64 t) { return row_at(alpha, alpha_h, t * (dedup ? 2 : 1) + (dedup ? 1 : 0)); }
  // Work rows: layers of P and R, their totals and sources, and backward weights.
  Row work_row(i64 i) { return row_at(work, work_h, i); }
  Row P(i64 n) { return work_row(n); }
  Row R(i64 n) { return work_row((k + 1) + n); }
  Row total(i64 n) { return dedup ? work_row(2 * (k + 1) + n) : P(n); }
  Row source(i64 n) { return dedup ? work_row(3 * (k + 1) + n) : P(n); }
  Row back(i64 i) { return work_row(4 * (k + 1) + i); }  // 8 of them

  void clear(Row r) {
    for (i64 i = -VW; i < row - VW; i++) r.a[i] = NEG_INF_D;
    if (ENT)
      for (i64 i = -VW; i < row - VW; i++) r.h[i] = 0;
  }
  void copy(Row to, Row from) {
    memcpy(to.a - VW, from.a - VW, row * sizeof(double));
    if (ENT) memcpy(to.h - VW, from.h - VW, row * sizeof(float));
  }

  void set_size(i64 frames, i64 labels) {
    T = frames, U = labels;
    row = round_up(U + 1, VW) + 2 * VW;
    k = p.alignment == MIDGE_K_CONSTRAINED ? (int)(dedup ? p.k : imin(p.k, U)) : 0;
  }
  i64 work_rows() const { return 4 * (k + 1) + 8; }

  // Memory for all utterances up to this size.
  void reserve(i64 frames, i64 labels) {
    set_size(frames, labels);
    const i64 kept_rows = (T + 1) * (dedup ? 2 : 1);
    alpha.allocate(kept_rows * row);
    work.allocate(work_rows() * row);
    if (ENT) alpha_h.allocate(kept_rows * row), work_h.allocate(work_rows() * row);
    arc_rows.allocate(11 * row);
  }

  void begin(i64 frames, i64 labels, const int64_t* ids, const Columns& given) {
    set_size(frames, labels);
    columns = given;
    float* m = arc_rows.data;
    float** rows[] = {&nb, &nl, &nr, &sure, &gb, &gl, &gr, &hb, &hl, &hr, &blocked};
    for (float** r : rows) *r = m + VW, m += row;
    for (i64 i = -VW; i < row - VW; i++) {
      nb[i] = nl[i] = nr[i] = NEG_INF;
      sure[i] = i >= 0 && i <= U ? 0.f : NEG_INF;
      blocked[i] = i >= 1 && i < U && ids[i] == ids[i - 1] ? NEG_INF : 0.f;
    }
    for (i64 i = 0; i < work_rows(); i++) clear(work_row(i));
  }

  void load_arcs(const float* arcs, i64 t) {
    if (columns.at) {
      gather_arcs(arcs, t, 0, U);
      return;
    }
    memcpy(nb, arcs, (U + 1) * sizeof(float));
    memcpy(nl, arcs + U1, U * sizeof(float));
    if (dedup) memcpy(nr + 1, arcs + 2 * U1 + 1, U * sizeof(float));
  }
  // The arcs that leave positions lo..hi, out of the columns.
  void gather_arcs(const float* arcs, i64 t, i64 lo, i64 hi) {
    const float blank = arcs[0], bonus = columns.bonus ? columns.bonus[t] : 0.f;
    const int32_t* at = columns.at;
    for (i64 u = lo; u <= hi; u++) nb[u] = blank;
    for (i64 u = lo; u < imin(hi + 1, U); u++) nl[u] = arcs[at[u + 1]] + bonus;
    for (i64 u = imax(lo, 1); dedup && u <= hi; u++) nr[u] = arcs[at[u]];
  }

  // ---- vector steps over all positions

  template <class F>
  void each(F&& f) {
    for (i64 u = 0; u <= U; u += VW) f(u);
  }
  static MIDGE_INLINE vf hv(const float* h, i64 u) { return ENT ? load(h + u) : splat(0.f); }

  static MIDGE_INLINE vd sum(Row a, const float* w, i64 u) { return loadd(a.a + u) + widen(load(w + u)); }
  static MIDGE_INLINE void save(Row out, i64 u, vd r, vf h) {
    stored(out.a + u, r);
    if (ENT) store(out.h + u, h);
  }

  // out[u] = a[u + da] + wa[u + da]  (+)  b[u + db] + wb[u + db]
  void join(Row a, const float* wa, i64 da, Row b, const float* wb, i64 db, Row out) {
    each([&](i64 u) {
      vd r;
      vf h;
      plusd<ENT>(sum(a, wa, u + da), hv(a.h, u + da), sum(b, wb, u + db), hv(b.h, u + db), r, h);
      save(out, u, r, h);
    });
  }
  // out[u] = a[u + d] + w[u + d]
  void shift(Row a, const float* w, i64 d, Row out) {
    each([&](i64 u) { save(out, u, sum(a, w, u + d), hv(a.h, u + d)); });
  }

  void sources(i64 n) {
    if (!dedup) return;
    join(P(n), sure, 0, R(n), sure, 0, total(n));
    join(P(n), sure, 0, R(n), blocked, 0, source(n));
  }

  // Label arcs of layer n into R (deduplication) or P.
  void label_step(i64 n, Row out) {
    if (dedup) join(R(n), nr, 0, source(n), nl, -1, out);
    else shift(P(n), nl, -1, out);
  }

  const float* blank_at(i64 n) const { return local && p.alignment == MIDGE_K_CONSTRAINED && n == p.k ? sure : nb; }

  void climb() {
    for (i64 n = 0; n <= k; n++) {
      sources(n);
      if (n == k) break;
      if (dedup) clear(P(n + 1));
      label_step(n, dedup ? R(n + 1) : P(n + 1));
    }
  }

  // Unbounded labels inside a frame: a recurrence along u.
  void run_up(Row a, Row x) {
    double last = NEG_INF_D;
    float last_h = 0;
    for (i64 u = 0; u <= U; u++) {
      plus1<ENT>(a.a[u], ENT ? a.h[u] : 0.f, u ? last + nl[u - 1] : NEG_INF_D, last_h, last, last_h);
      x.a[u] = last;
      if (ENT) x.h[u] = last_h;
    }
  }

  // Layer 0 holds the state before the frame; outP, outR the state after.
  void forward_frame(Row outP, Row outR) {
    switch (p.alignment) {
      case MIDGE_UNBOUNDED:
        run_up(P(0), back(0));
        shift(back(0), nb, 0, outP);
        return;
      case MIDGE_K_CONSTRAINED:
        climb();
        shift(total(0), blank_at(0), 0, outP);
        for (i64 n = 1; n <= k; n++) join(outP, sure, 0, total(n), blank_at(n), 0, outP);
        if (dedup) clear(outR);
        return;
      default:
        sources(0);
        if (dedup) {
          label_step(0, outR);
          shift(total(0), nb, 0, outP);
        } else if (p.alignment == MIDGE_FRAME_NO_BLANK) {
          label_step(0, outP);
        } else {
          join(P(0), nb, 0, P(0), nl, -1, outP);
        }
    }
  }

  // Log-weight (and entropy) of all paths; arcs [T][frame_floats]. The forward weights stay for `posteriors`.
  double forward(const float* arcs, float final_weight, double& entropy) {
    clear(kept_P(0));
    if (dedup) clear(kept_R(0));
    kept_P(0).a[0] = 0;
    entropy = 0;
    for (i64 t = 0; t < T; t++) {
      Row outP = kept_P(t + 1), outR = kept_R(t + 1);
      if (one_label_per_frame()) {
        // Only positions that can be reached and from which the end can be reached.
        const i64 lo = imax(0, U - (T - t - 1)) / VW * VW, hi = imin(t + 1, U);
        if (lo > hi) return NEG_INF_D;
        load_positions(arcs + t * frame_floats(), t, lo, hi);
        clear_outside(outP, lo, hi);
        if (dedup) clear_outside(outR, lo, hi);
        forward_positions(kept_P(t), kept_R(t), outP, outR, lo, hi);
        continue;
      }
      load_arcs(arcs + t * frame_floats(), t);
      copy(P(0), kept_P(t));
      if (dedup) copy(R(0), kept_R(t));
      clear(outP);
      if (dedup) clear(outR);
      forward_frame(outP, outR);
    }
    double log = kept_P(T).a[U];
    float h = ENT ? kept_P(T).h[U] : 0.f;
    if (dedup) plus1<ENT>(log, h, kept_R(T).a[U], ENT ? kept_R(T).h[U] : 0.f, log, h);
    if (log != NEG_INF_D) entropy = h;
    return log + final_weight;
  }

  // ---- frame-dependent lattices with blank: one pass over the positions

  struct Upstream {
    double total;  // log-weight of all paths
    float entropy;
  };

  bool one_label_per_frame() const { return p.alignment == MIDGE_FRAME; }

  // What a pass over the vectors of positions lo..hi reads: a label more to their left, and whole vectors.
  void load_positions(const float* arcs, i64 t, i64 lo, i64 hi) {
    if (columns.at) gather_arcs(arcs, t, imax(lo - VW, 0), imin(hi / VW * VW + VW - 1, U));
    else load_arcs(arcs, t);
  }

  void clear_outside(Row r, i64 lo, i64 hi) {
    const i64 end = hi / VW * VW + VW;  // what a pass over lo..hi writes
    for (i64 i = -VW; i < lo; i++) r.a[i] = NEG_INF_D;
    for (i64 i = end; i < row - VW; i++) r.a[i] = NEG_INF_D;
    if (!ENT) return;
    for (i64 i = -VW; i < lo; i++) r.h[i] = 0;
    for (i64 i = end; i < row - VW; i++) r.h[i] = 0;
  }

  // P (+) R at positions u.., and the source of a new label there: the same, or P alone where the label would repeat.
  MIDGE_INLINE void total_and_source(Row P, Row R, i64 u, vd& total, vf& total_h, vd& source, vf& source_h) {
    vd x = loadd(P.a + u);
    vf hx = hv(P.h, u);
    if (!dedup) {
      total = source = x, total_h = source_h = hx;
      return;
    }
    plusd<ENT>(x, hx, loadd(R.a + u), hv(R.h, u), total, total_h);
    const vf free = load(blocked + u);
    source = widen(free) == splatd(0.) ? total : x;
    if (ENT) source_h = free == splat(0.f) ? total_h : hx;
  }

  void forward_positions(Row P, Row R, Row outP, Row outR, i64 lo, i64 hi) {
    Row src = back(0);  // sources + label, at their own position; read one further
    if (!dedup) {
      for (i64 u = lo; u <= hi; u += VW) {
        vd r;
        vf h;
        plusd<ENT>(sum(P, nb, u), hv(P.h, u), sum(P, nl, u - 1), hv(P.h, u - 1), r, h);
        save(outP, u, r, h);
      }
      return;
    }
    src.a[lo - 1] = NEG_INF_D;
    if (lo) {
      vd t, s;
      vf th, sh = {};
      total_and_source(P, R, lo - VW, t, th, s, sh);
      save(src, lo - VW, s + widen(load(nl + lo - VW)), sh);
    }
    for (i64 u = lo; u <= hi; u += VW) {
      vd t, s, r;
      vf th = {}, sh = {}, h;
      total_and_source(P, R, u, t, th, s, sh);
      save(outP, u, t + widen(load(nb + u)), th);
      save(src, u, s + widen(load(nl + u)), sh);
      plusd<ENT>(sum(R, nr, u), hv(R.h, u), loadd(src.a + u - 1), hv(src.h, u - 1), r, h);
      save(outR, u, r, h);
    }
  }

  // Backward weights before the frame and the posteriors of its arcs at positions lo..hi.
  void backward_positions(Row P, Row R, Row nextP, Row nextR, const Upstream& up, Row bP, Row bR, i64 lo, i64 hi) {
    const Row label = dedup ? nextR : nextP;
    for (i64 u = lo; u <= hi; u += VW) {
      vd total, source, blank = sum(nextP, nb, u), next = loadd(label.a + u + 1) + widen(load(nl + u)), r, r2;
      vf th = {}, sh = {}, h = {}, h2 = {};
      total_and_source(P, R, u, total, th, source, sh);
      const vf hb_ = hv(nextP.h, u), hn = hv(label.h, u + 1);
      put_posterior(up, total + blank, th, hb_, gb, hb, u);
      put_posterior(up, source + next, sh, hn, gl, hl, u);
      plusd<ENT>(blank, hb_, next, hn, r, h);
      save(bP, u, r, h);
      if (!dedup) continue;
      const vd again = loadd(label.a + u) + widen(load(nr + u));
      const vf ha = hv(label.h, u), free = load(blocked + u);
      put_posterior(up, loadd(R.a + u) + again, hv(R.h, u), ha, gr, hr, u);
      r = widen(free) == splatd(0.) ? r : blank;
      if (ENT) h = free == splat(0.f) ? h : hb_;
      plusd<ENT>(r, h, again, ha, r2, h2);
      save(bR, u, r2, h2);
    }
  }
  MIDGE_INLINE void put_posterior(const Upstream& up, vd weight, vf before, vf after, float* g, float* h, i64 u) {
    vf l = narrow(weight - splatd(up.total)), post = vexp(l);
    store(g + u, post);
    if (ENT) store(h + u, post * (before + after - splat(up.entropy) - vmax(l, splat(-100.f))));
  }

  // The same for CTC on columns. A new label and its repeat are one column, so the posterior of the state they lead to
  // (afterP, afterR: the forward weights after the frame) will do, and so for blank: an exponential each.
  void backward_states(Row afterP, Row afterR, Row nextP, Row nextR, const Upstream& up, Row bP, Row bR, i64 lo, i64 hi) {
    const vd total = splatd(up.total);
    for (i64 u = lo; u <= hi; u += VW) {
      const vd blank = sum(nextP, nb, u), next = loadd(nextR.a + u + 1) + widen(load(nl + u));
      const vd stay = loadd(nextR.a + u), again = stay + widen(load(nr + u));
      store(gb + u, vexp(narrow(loadd(afterP.a + u) + loadd(nextP.a + u) - total)));
      store(gr + u, vexp(narrow(loadd(afterR.a + u) + stay - total)));
      vd r, r2;
      vf h;
      plusd<false>(blank, h, next, h, r, h);
      stored(bP.a + u, r);
      r = widen(load(blocked + u)) == splatd(0.) ? r : blank;
      plusd<false>(r, h, again, h, r2, h);
      stored(bR.a + u, r2);
    }
  }
  bool by_states() const { return !ENT && dedup && columns.at && one_label_per_frame(); }

  // ---- backward

  // Adds the posteriors of arcs with source a, weight w and destination b (and the entropy's derivative by w).
  void add_posterior(const Upstream& up, Row a, const float* w, Row b, i64 db, float* g, float* h) {
    each([&](i64 u) {
      vf l = narrow(sum(a, w, u) + (loadd(b.a + u + db) - splatd(up.total))), post = vexp(l);
      store(g + u, load(g + u) + post);
      if (ENT)
        store(h + u, load(h + u) + post * (hv(a.h, u) + hv(b.h, u + db) - splat(up.entropy) - vmax(l, splat(-100.f))));
    });
  }

  // Backward weights of layer n from those of the label destinations (null: none) and of the next frame's P.
  void backward_layer(i64 n, Row label, bool has_labels, Row nextP, const Upstream& up, Row bP, Row bR) {
    const float* blank = blank_at(n);
    const bool has_blank = p.alignment != MIDGE_FRAME_NO_BLANK;
    if (has_blank && (blank == nb || all_arcs)) add_posterior(up, total(n), blank, nextP, 0, gb, hb);
    if (!has_labels) {
      shift(nextP, blank, 0, bP);
      if (dedup) shift(nextP, blank, 0, bR);
      return;
    }
    add_posterior(up, source(n), nl, label, 1, gl, hl);
    if (!dedup) {
      join_label(nextP, has_blank ? blank : nullptr, label, nullptr, bP);
      return;
    }
    add_posterior(up, R(n), nr, label, 0, gr, hr);
    join_label(nextP, blank, label, nullptr, bP);
    join_label(nextP, blank, label, blocked, bR);
    join(bR, sure, 0, label, nr, 0, bR);
  }

  // out[u] = nextP[u] + blank[u] (+) label[u + 1] + nl[u] (+ blocked[u])
  void join_label(Row nextP, const float* blank, Row label, const float* block, Row out) {
    each([&](i64 u) {
      vd a = blank ? sum(nextP, blank, u) : splatd(NEG_INF_D), b = loadd(label.a + u + 1) + widen(load(nl + u)), r;
      vf h;
      if (block) b += widen(load(block + u));
      plusd<ENT>(a, hv(nextP.h, u), b, hv(label.h, u + 1), r, h);
      save(out, u, r, h);
    });
  }

  void backward_unbounded(Row nextP, const Upstream& up, Row bP) {
    Row x = P(0), spare = back(6);
    copy(spare, x);
    run_up(spare, x);
    double last = NEG_INF_D;
    float last_h = 0;
    for (i64 u = U; u >= 0; u--) {
      plus1<ENT>(nb[u] + nextP.a[u], ENT ? nextP.h[u] : 0.f, u < U ? nl[u] + last : NEG_INF_D, last_h, last, last_h);
      bP.a[u] = last;
      if (ENT) bP.h[u] = last_h;
    }
    add_posterior(up, x, nb, nextP, 0, gb, hb);
    add_posterior(up, x, nl, bP, 1, gl, hl);
  }

  void backward_frame(Row nextP, Row nextR, const Upstream& up, Row bP, Row bR) {
    if (p.alignment == MIDGE_UNBOUNDED) {
      backward_unbounded(nextP, up, bP);
    } else if (p.alignment != MIDGE_K_CONSTRAINED) {
      sources(0);
      backward_layer(0, dedup ? nextR : nextP, true, nextP, up, bP, bR);
    } else {
      climb();
      Row x0 = k % 2 ? back(4) : bP, x1 = k % 2 ? back(5) : bR, y0 = k % 2 ? bP : back(4), y1 = k % 2 ? bR : back(5);
      backward_layer(k, nextP, false, nextP, up, x0, x1);
      for (i64 n = k - 1; n >= 0; n--) {
        backward_layer(n, dedup ? x1 : x0, true, nextP, up, y0, y1);
        Row s0 = x0, s1 = x1;
        x0 = y0, x1 = y1, y0 = s0, y1 = s1;
      }
    }
  }

  // The total weight, from the forward and backward weights before frame t. Taken anew every few frames: the rounding
  // errors that grow from the two ends cancel.
  double meet(i64 t, Row bP, Row bR) {
    Row a = kept_P(t), b = kept_R(t);
    vd m = splatd(NEG_INF_D);
    each([&](i64 u) {
      m = vmaxd(m, loadd(a.a + u) + loadd(bP.a + u));
      if (dedup) m = vmaxd(m, loadd(b.a + u) + loadd(bR.a + u));
    });
    double top = NEG_INF_D;
    for (int i = 0; i < VW; i++) top = m[i] > top ? m[i] : top;
    vf s = {};
    each([&](i64 u) {
      s += vexp(narrow(loadd(a.a + u) + loadd(bP.a + u) - splatd(top)));
      if (dedup) s += vexp(narrow(loadd(b.a + u) + loadd(bR.a + u) - splatd(top)));
    });
    return top + slog(hsum(s));
  }

  // Replaces the arcs by their posteriors.
  void posteriors(float* arcs, double entropy) {
    Row nextP = back(0), nextR = back(1), bP = back(2), bR = back(3);
    for (i64 i = 0; i < 8; i++) clear(back(i));
    nextP.a[U] = 0;
    if (dedup) nextR.a[U] = 0;
    Upstream up{0, (float)entropy};
    for (i64 t = T - 1; t >= 0; t--) {
      float* out = arcs + t * frame_floats();
      i64 lo = 0, hi = U;
      if ((T - 1 - t) % 8 == 0) up.total = meet(t + 1, nextP, nextR);
      if (one_label_per_frame()) {
        lo = imax(0, U - (T - t)) / VW * VW, hi = imin(by_states() ? t + 1 : t, U);
        load_positions(out, t, lo, hi);
        clear_outside(bP, lo, hi);
        if (dedup) clear_outside(bR, lo, hi);
        if (!columns.at) clear_posteriors();
        if (by_states()) backward_states(kept_P(t + 1), kept_R(t + 1), nextP, nextR, up, bP, bR, lo, hi);
        else backward_positions(kept_P(t), kept_R(t), nextP, nextR, up, bP, bR, lo, hi);
      } else {
        load_arcs(out, t);
        copy(P(0), kept_P(t));
        if (dedup) copy(R(0), kept_R(t));
        clear_posteriors();
        backward_frame(nextP, nextR, up, bP, bR);
      }
      if (columns.at) scatter_posteriors(out, lo, hi);
      else store_posteriors(out);
      Row s0 = nextP, s1 = nextR;
      nextP = bP, nextR = bR, bP = s0, bR = s1;
    }
  }

  void clear_posteriors() {
    for (float* r : {gb, gl, gr, hb, hl, hr}) memset(r, 0, (row - VW) * sizeof(float));
  }

  // Sums the posteriors of positions lo..hi into the columns.
  void scatter_posteriors(float* out, i64 lo, i64 hi) {
    const float* from[] = {gb, gl, gr, hb, hl, hr};
    const int32_t* at = columns.at;
    for (int i = 0; i < (ENT ? 2 : 1); i++, out += columns.width) {
      const float *blank = from[3 * i], *next = from[3 * i + 1], *repeat = from[3 * i + 2];
      memset(out, 0, columns.width * sizeof(float));
      vf s = {};
      for (i64 u = lo; u <= hi; u += VW) s += load(blank + u);
      for (i64 u = lo; !by_states() && u < imin(hi + 1, U); u++) out[at[u + 1]] += next[u];
      for (i64 u = imax(lo, 1); dedup && u <= hi; u++) out[at[u]] += repeat[u];
      out[0] = hsum(s);
    }
  }

  void store_posteriors(float* out) {
    const float* from[] = {gb, gl, gr, hb, hl, hr};
    for (int i = 0; i < (ENT ? 2 : 1); i++)
      for (i64 j = 0; j < planes; j++) memcpy(out + (i * planes + j) * U1, from[i * 3 + j], (U + 1) * sizeof(float));
  }
};

}  // namespace
