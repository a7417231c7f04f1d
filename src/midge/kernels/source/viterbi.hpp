// Best paths of A and of A ∩ y, with back-pointers instead of arcs: one code per state (and layer) and frame.
// Ties: blank first, then the smallest label, then the smallest source state (by context state, then (q, blank) before
// (q, y); in A ∩ y by position). Among the blanks that leave a frame of the k-constrained lattice: the smallest n.
#pragma once
#include "driver.hpp"

namespace {

// Codes are stored in as few bytes as the largest one needs: 1 for an n-gram context with up to 253 labels.
struct Codes {
  Buffer<uint8_t> memory;
  int width = 1;
  i64 per_frame = 0;
  void allocate(i64 frames, i64 count, i64 largest) {
    width = largest < 256 ? 1 : largest < 65536 ? 2 : 4;
    per_frame = count;
    memory.allocate(frames * count * width);
  }
  void put(i64 frame, const int32_t* codes) {
    uint8_t* out = memory.data + frame * per_frame * width;
    for (i64 i = 0; i < per_frame; i++) {
      if (width == 1) out[i] = (uint8_t)codes[i];
      else if (width == 2) ((uint16_t*)out)[i] = (uint16_t)codes[i];
      else ((int32_t*)out)[i] = codes[i];
    }
  }
  i64 get(i64 frame, i64 i) const {
    const uint8_t* in = memory.data + frame * per_frame * width;
    return width == 1 ? in[i] : width == 2 ? ((const uint16_t*)in)[i] : ((const int32_t*)in)[i];
  }
};

// A step of a path, collected from the end.
struct PathWriter {
  int64_t *labels, *frames;
  i64 n = 0;
  void add(i64 label, i64 frame) { labels[n] = label, frames[n++] = frame; }
  void reverse() {
    for (i64 i = 0; i < n / 2; i++) {
      int64_t a = labels[i], b = frames[i];
      labels[i] = labels[n - 1 - i], frames[i] = frames[n - 1 - i];
      labels[n - 1 - i] = a, frames[n - 1 - i] = b;
    }
  }
};

// The whole lattice. Within a layer, `pick` says which of (q, blank) = 0 and the slots of q = 1.. is the best source.
struct Viterbi {
  const Topology& g;
  const midge_problem& p;
  const i64 S, V, C, NS, ND, sel;  // sel: sources to choose from at a state
  const int k;
  const bool dedup, constrained, local;
  Buffer<float> floats;
  Buffer<int32_t> ints;
  float *a0, *a1, *T, *X, *arc, *zeros, *n0, *n1;
  int32_t *pick_T, *pick_X, *codes;

  Viterbi(const Topology& topology, const midge_problem& problem)
      : g(topology), p(problem), S(g.S), V(g.V), C(g.C), NS(g.num_slots), ND(g.num_dests), sel(g.max_slots + 1),
        k(problem.alignment == MIDGE_K_CONSTRAINED ? problem.k : 0), dedup(g.dedup),
        constrained(problem.alignment == MIDGE_K_CONSTRAINED), local(problem.normalization != MIDGE_GLOBAL) {
    floats.allocate(4 * (S + NS) + S + (dedup ? S * C : 0) + 256);
    float* f = floats.data;
    auto take = [&](i64 n) { float* r = f; f += round_up(n, 16); return r; };
    a0 = take(S), a1 = take(NS), T = dedup ? take(S) : a0, X = take(NS), zeros = take(S);
    n0 = take(S), n1 = take(NS), arc = dedup ? take(S * C) : nullptr;
    ints.allocate(S + NS + count() + 64);
    pick_T = ints.data, pick_X = pick_T + S, codes = pick_X + NS;
  }

  // Codes of a frame: layers 1..k by destination, then by state how blank came; or (frame-dependent) the destinations'
  // with, for deduplication, the states' before them.
  i64 count() const { return constrained ? k * ND + S : dedup ? S + NS : S; }
  i64 largest() const { return imax((g.max_in + 2) * sel, (i64)(k + 1) * sel); }

  void sources() {
    for (i64 i = 0; i < S; i++) pick_T[i] = 0;
    if (!dedup) return;
    for (i64 q = 0; q < S; q++) {
      const i64 s0 = g.slot_begin[q], n = g.slot_begin[q + 1] - s0;
      // Best and second best: leaving a slot out only matters for the best.
      float best = a0[q], second = NEG_INF;
      int32_t at = 0, next = -1;
      for (i64 i = 0; i < n; i++) {
        float v = a1[s0 + i];
        if (v > best) second = best, next = at, best = v, at = (int32_t)i + 1;
        else if (next < 0 || v > second) second = v, next = (int32_t)i + 1;
      }
      T[q] = best, pick_T[q] = at;
      for (i64 i = 0; i < n; i++) {
        bool own = at == i + 1;
        X[s0 + i] = own ? second : best;
        pick_X[s0 + i] = own ? imax(next, 0) : at;
      }
    }
  }

  // Best arc into every destination: value in out, 1 + arc index in code.
  void best_arcs(const float* source, const float* w, float* out, int32_t* code) {
    if (g.kind == Topology::NGRAM) best_ngram(source, w, out, code);
    else if (g.kind == Topology::LISTS) best_lists(source, w, out, code);
    else if (dedup) {
      for (i64 y = 0; y < V; y++) out[y] = source[0] + w[1 + y], code[y] = 1;
    } else {
      out[0] = NEG_INF, code[0] = 1;
      for (i64 y = 0; y < V; y++)
        if (source[0] + w[1 + y] > out[0]) out[0] = source[0] + w[1 + y], code[0] = (int32_t)y + 1;
    }
  }

  void best_ngram(const float* source, const float* w, float* out, int32_t* code) {
    if (!dedup) out[0] = NEG_INF, code[0] = 1;
    for (i64 q = 0; q < g.inner; q++)
      for (i64 y = 0; y < V; y++) out[g.first_dest(q) + y] = source[q] + w[q * C + 1 + y], code[g.first_dest(q) + y] = 1;
    for (i64 s = 0; s < g.suffixes; s++) {
      const i64 q0 = g.inner + s, first = g.first_dest(q0), step = g.suffixes;
      for (i64 y = 0; y < V; y += VW) {
        i64 i = V >= VW ? imin(y, V - VW) : 0, c = imin(V, VW);
        const float *w1 = w + (g.below + s) * C + 1 + i, *src = source + g.below + s;
        vf m = get(w + q0 * C + 1 + i, c) + splat(source[q0]);
        vi at = (vi){} + 1;
        for (i64 x = 0; x < V; x++) {
          vf v = get(w1 + x * step * C, c) + splat(src[x * step]);
          vi better = v > m;
          m = better ? v : m;
          at = better ? (vi){} + (int32_t)(x + 2) : at;
        }
        put(out + first + i, m, c);
        int32_t a[VW];
        __builtin_memcpy(a, &at, sizeof a);
        for (i64 j = 0; j < c; j++) code[first + i + j] = a[j];
      }
    }
  }

  void best_lists(const float* source, const float* w, float* out, int32_t* code) {
    for (i64 d = 0; d < ND; d++) {
      out[d] = NEG_INF, code[d] = 1;
      for (i64 i = g.in_begin[d]; i < g.in_begin[d + 1]; i++) {
        float v = source[g.in_state[i]] + w[(i64)g.in_state[i] * C + g.in_label[i]];
        if (v > out[d]) out[d] = v, code[d] = (int32_t)(i - g.in_begin[d] + 1);
      }
    }
  }

  // The context state that arc `index` (from 0) of destination d leaves, and its label.
  void arc_of(i64 d, i64 index, i64& q, i64& y) const {
    if (g.kind == Topology::LISTS) {
      q = g.in_state[g.in_begin[d] + index], y = g.in_label[g.in_begin[d] + index];
    } else if (g.kind == Topology::ZERO) {
      q = 0, y = dedup ? d + 1 : index + 1;
    } else {
      const i64 state = d + (dedup ? 1 : 0), parent = (state - 1) / V;
      y = (state - 1) % V + 1;
      q = index == 0 ? parent : g.below + (index - 1) * g.suffixes + (parent - g.inner);
    }
  }

  // The source's pick for a new arc (q, y).
  i64 pick(i64 q, i64 y) const {
    for (i64 s = g.slot_begin[q]; s < g.slot_begin[q + 1]; s++)
      if (g.slot_label[s] == y) return pick_X[s];
    return pick_T[q];
  }

  // Label arcs of the current layer. Code: arc * sel + pick; arc max_in + 1 is the repeat.
  void label_step(const float* w, float* out, int32_t* code) {
    if (!dedup) {
      best_arcs(a0, w, out, code);
      return;
    }
    for (i64 q = 0; q < S; q++) {
      for (i64 y = 1; y <= V; y++) arc[q * C + y] = w[q * C + y] + T[q];
      for (i64 s = g.slot_begin[q]; s < g.slot_begin[q + 1]; s++)
        arc[q * C + g.slot_label[s]] = w[q * C + g.slot_label[s]] + X[s];
    }
    best_arcs(zeros, arc, out, code);
    for (i64 s = 0; s < NS; s++) {
      i64 q, y, qs = g.slot_state[s];
      arc_of(s, code[s] - 1, q, y);
      const i64 from = pick(q, g.slot_label[s]);
      const float repeat = a1[s] + w[qs * C + g.slot_label[s]];
      const i64 own = s - g.slot_begin[qs] + 1;
      if (repeat > out[s] || (repeat == out[s] && (qs < q || (qs == q && own < from)))) {
        out[s] = repeat;
        code[s] = (int32_t)((g.max_in + 1) * sel);
      } else {
        code[s] = (int32_t)(code[s] * sel + from);
      }
    }
  }

  // One frame: (a0, a1) -> (a0, a1); codes filled. Returns the offset taken out.
  float frame(const float* w) {
    if (constrained) constrained_frame(w);
    else frame_dependent(w);
    float m = max_of(a0, S);
    if (dedup) m = smax(m, max_of(a1, NS));
    if (m == NEG_INF) return m;
    for (i64 i = 0; i < S; i++) a0[i] -= m;
    for (i64 i = 0; i < NS; i++) a1[i] -= m;
    return m;
  }

  void frame_dependent(const float* w) {
    sources();
    label_step(w, dedup ? n1 : n0, dedup ? codes + S : codes);
    if (dedup) {
      for (i64 q = 0; q < S; q++) a0[q] = T[q] + w[q * C], codes[q] = pick_T[q];
      memcpy(a1, n1, NS * sizeof(float));
      return;
    }
    for (i64 q = 0; q < S; q++) {
      float blank = a0[q] + w[q * C];  // -inf without blank
      bool take = p.alignment != MIDGE_FRAME_NO_BLANK && blank >= n0[q];
      if (take) codes[q] = 0;
      a0[q] = take ? blank : n0[q];
    }
  }

  void constrained_frame(const float* w) {
    int32_t* last = codes + k * ND;
    for (i64 q = 0; q < S; q++) n0[q] = NEG_INF, last[q] = 0;
    for (i64 n = 0; n <= k; n++) {
      sources();
      for (i64 q = 0; q < S; q++) {
        float v = T[q] + (n == k && local ? 0.f : w[q * C]);
        if (v > n0[q]) n0[q] = v, last[q] = (int32_t)(n * sel + pick_T[q]);
      }
      if (n == k) break;
      label_step(w, dedup ? n1 : zeros2(), codes + n * ND);
      if (dedup) {
        memcpy(a1, n1, NS * sizeof(float));
        for (i64 q = 0; q < S; q++) a0[q] = NEG_INF;
      } else {
        memcpy(a0, zeros2(), S * sizeof(float));
      }
    }
    memcpy(a0, n0, S * sizeof(float));
    for (i64 s = 0; s < NS; s++) a1[s] = NEG_INF;
  }
  // Without deduplication the all-zero sources are not in use: room for a layer.
  float* zeros2() { return zeros; }

  void start() {
    for (i64 q = 0; q < S; q++) a0[q] = NEG_INF;
    for (i64 s = 0; s < NS; s++) a1[s] = NEG_INF;
    a0[p.start] = 0;
  }

  // Best final state as (state, pick).
  float finish(i64& state, i64& from) const {
    float best = NEG_INF;
    state = from = 0;
    for (i64 q = 0; q < S; q++) {
      const float f = p.final_weight ? p.final_weight[q] : 0.f;
      if (a0[q] + f > best) best = a0[q] + f, state = q, from = 0;
      for (i64 s = dedup ? g.slot_begin[q] : 0; dedup && s < g.slot_begin[q + 1]; s++)
        if (a1[s] + f > best) best = a1[s] + f, state = q, from = s - g.slot_begin[q] + 1;
    }
    return best;
  }

  // Undoes a label arc into (state, from) given its code: the source's (state, from). Returns the label.
  i64 undo_label(i64 code, i64& state, i64& from) const {
    const i64 d = dedup ? g.slot_begin[state] + from - 1 : state;
    const i64 arc_code = dedup ? code / sel : code;
    if (dedup && arc_code == g.max_in + 1) return g.slot_label[d];  // repeat: same state
    i64 q, y;
    arc_of(d, arc_code - 1, q, y);
    state = q, from = dedup ? code % sel : 0;
    return y;
  }
  i64 dest_of(i64 state, i64 from) const { return dedup ? g.slot_begin[state] + from - 1 : state; }

  void trace(const Codes& c, i64 first, i64 frames, i64 state, i64 from, PathWriter& out) const {
    for (i64 t = frames - 1; t >= 0; t--) {
      if (!constrained) {
        const bool blank = dedup ? from == 0 : c.get(first + t, state) == 0;
        if (blank) {
          out.add(0, t);
          if (dedup) from = c.get(first + t, state);
        } else {
          out.add(undo_label(c.get(first + t, dedup ? S + dest_of(state, from) : state), state, from), t);
        }
        continue;
      }
      const i64 last = c.get(first + t, k * ND + state);
      out.add(0, t);
      from = last % sel;
      for (i64 n = last / sel; n > 0; n--)
        out.add(undo_label(c.get(first + t, (n - 1) * ND + dest_of(state, from)), state, from), t);
    }
  }
};

// The numerator's chain, one utterance. P, R as in chain.hpp. Plain loops: a few numbers per frame and position.
struct ChainViterbi {
  const midge_problem& p;
  const bool dedup;
  Buffer<float> P, R, P2, R2, best;
  Buffer<uint8_t> label_code;  // [T][max(k, 1)][U + 1]: how R (P) was entered
  Buffer<int32_t> blank_code;  // [T][U + 1]
  // With memory for utterances of up to T frames and U labels.
  ChainViterbi(const midge_problem& problem, i64 T, i64 U) : p(problem), dedup(problem.deduplicate != 0) {
    for (Buffer<float>* b : {&P, &R, &P2, &R2, &best}) b->allocate(U + 1);
    label_code.allocate(T * (p.alignment == MIDGE_K_CONSTRAINED ? p.k : 1) * (U + 1));
    blank_code.allocate(T * (U + 1));
  }

  // label_code: 0 new label after P, 1 new label after R, 2 repeat, 3 blank or (unbounded) no label.
  double run(const float* arcs, i64 stride, i64 T, i64 U, const int64_t* ids, float final_weight, PathWriter& out) {
    const i64 n1 = U + 1, U1 = p.labels + 1;
    const bool constrained = p.alignment == MIDGE_K_CONSTRAINED, local = p.normalization != MIDGE_GLOBAL;
    const bool unbounded = p.alignment == MIDGE_UNBOUNDED;
    const int k = constrained ? p.k : 1;
    for (i64 u = 0; u <= U; u++) P[u] = R[u] = NEG_INF;
    P[0] = 0;
    double offset = 0;
    for (i64 t = 0; t < T; t++) {
      const float *nb = arcs + t * stride, *nl = nb + U1, *nr = nl + U1;
      int32_t* blanks = blank_code.data + t * n1;
      if (unbounded) {
        uint8_t* code = label_code.data + t * n1;
        for (i64 u = 0; u <= U; u++) {
          float step = u ? P[u - 1] + nl[u - 1] : NEG_INF;
          code[u] = step > P[u] ? 0 : 3;
          P[u] = smax(step, P[u]);
        }
        for (i64 u = 0; u <= U; u++) P[u] += nb[u];
      } else if (constrained) {
        for (i64 u = 0; u <= U; u++) best[u] = NEG_INF;
        for (int n = 0; n <= k; n++) {
          for (i64 u = 0; u <= U; u++) {
            const float w = n == k && local ? 0.f : nb[u];
            const bool r = dedup && R[u] > P[u];
            const float v = (r ? R[u] : P[u]) + w;
            if (v > best[u]) best[u] = v, blanks[u] = 2 * n + r;
          }
          if (n == k) break;
          label_layer(nl, nr, U, ids, label_code.data + (t * k + n) * n1);
          for (i64 u = 0; u <= U; u++) {
            P[u] = dedup ? NEG_INF : P2[u];
            if (dedup) R[u] = R2[u];
          }
        }
        for (i64 u = 0; u <= U; u++) P[u] = best[u], R[u] = NEG_INF;
      } else {
        uint8_t* code = label_code.data + t * n1;
        label_layer(nl, nr, U, ids, code);
        const bool blank = p.alignment != MIDGE_FRAME_NO_BLANK;
        for (i64 u = 0; u <= U; u++) {
          if (dedup) {
            blanks[u] = R[u] > P[u];
            P[u] = smax(P[u], R[u]) + nb[u];
            R[u] = R2[u];
          } else {
            const float stay = blank ? P[u] + nb[u] : NEG_INF;
            if (blank && stay >= P2[u]) code[u] = 3;
            P[u] = code[u] == 3 ? stay : P2[u];
          }
        }
      }
      float m = smax(max_of(P.data, n1), dedup ? max_of(R.data, n1) : NEG_INF);
      if (m == NEG_INF) return NEG_INF;
      for (i64 u = 0; u <= U; u++) P[u] -= m, R[u] -= m;
      offset += m;
    }
    bool r = dedup && R[U] > P[U];
    const float end = r ? R[U] : P[U];
    if (end == NEG_INF) return NEG_INF;
    trace(T, U, k, r, ids, out);
    return offset + end + final_weight;
  }

  void label_layer(const float* nl, const float* nr, i64 U, const int64_t* ids, uint8_t* code) {
    P2[0] = R2[0] = NEG_INF;
    code[0] = 2;
    for (i64 u = 1; u <= U; u++) {
      float v = P[u - 1] + nl[u - 1];
      code[u] = 0;
      if (dedup) {
        const bool blocked = u >= 2 && ids[u - 1] == ids[u - 2];
        if (!blocked && R[u - 1] + nl[u - 1] > v) v = R[u - 1] + nl[u - 1], code[u] = 1;
        if (R[u] + nr[u] > v) v = R[u] + nr[u], code[u] = 2;
        R2[u] = v;
      } else {
        P2[u] = v;
      }
    }
  }

  void trace(i64 T, i64 U, int k, bool r, const int64_t* ids, PathWriter& out) {
    const i64 n1 = U + 1;
    i64 u = U;
    auto undo = [&](uint8_t code, i64 t) {  // a label arc into (u, r)
      out.add(ids[u - 1], t);
      if (code == 2) return;
      u--, r = code == 1;
    };
    for (i64 t = T - 1; t >= 0; t--) {
      const uint8_t* code = label_code.data + t * k * n1;
      if (p.alignment == MIDGE_UNBOUNDED) {
        out.add(0, t);
        while (code[u] == 0) undo(0, t);
      } else if (p.alignment == MIDGE_K_CONSTRAINED) {
        const int32_t c = blank_code[t * n1 + u];
        out.add(0, t);
        r = c % 2;
        for (int n = c / 2; n > 0; n--) undo(code[(n - 1) * n1 + u], t);
      } else if (dedup ? !r : code[u] == 3) {
        out.add(0, t);
        if (dedup) r = blank_code[t * n1 + u];
      } else {
        undo(code[u], t);
      }
    }
  }
};

inline i64 path_length(const midge_problem& p, int32_t) {
  if (p.alignment == MIDGE_UNBOUNDED) return p.frames + p.labels;
  return p.frames * (p.alignment == MIDGE_K_CONSTRAINED ? p.k + 1 : 1);
}

template <class D, class Scorer>
int best_path_of_lattice(D& d, Scorer& scorer, double* weight, int64_t* length, int64_t* labels, int64_t* frames) {
  const midge_problem& p = d.p;
  const i64 B = p.batch, longest = path_length(p, 0);
  Each<Viterbi> each(B);
  for (i64 b = 0; b < B; b++) each.make(b, *d.g, p).start(), weight[b] = 0;
  Codes codes;
  codes.allocate(B * p.frames, each[0].count(), each[0].largest());
  for (i64 t0 = 0; t0 < d.max_frames; t0 += d.frames_per_chunk) {
    d.set_chunk(t0, imin(t0 + d.frames_per_chunk, d.max_frames));
    d.activate_all();
    scorer.prepare_chunk(d.chunk);
    scorer.all_arcs(d.chunk);
#pragma omp parallel for schedule(dynamic) if (B > 1)
    for (i64 b = 0; b < B; b++)
      for (i64 f = d.chunk.first_frame[b]; f < d.chunk.first_frame[b + 1]; f++) {
        d.normalize_frame(f);
        weight[b] += each[b].frame(d.arcs_of(f));
        codes.put(b * p.frames + d.chunk.frames[f].t, each[b].codes);
      }
  }
#pragma omp parallel for schedule(dynamic)
  for (i64 b = 0; b < B; b++) {
    i64 state, from;
    weight[b] += each[b].finish(state, from);
    PathWriter out{labels + b * longest, frames + b * longest};
    if (weight[b] != NEG_INF) each[b].trace(codes, b * p.frames, p.num_frames[b], state, from, out);
    out.reverse();
    length[b] = out.n;
  }
  return 0;
}

template <class D, class Scorer>
int best_path_of_chain(D& d, Scorer& scorer, double* weight, int64_t* length, int64_t* labels, int64_t* frames) {
  const midge_problem& p = d.p;
  const i64 B = p.batch, longest = path_length(p, 0), stride = (p.deduplicate ? 3 : 2) * (p.labels + 1);
  Buffer<float> arcs(B * p.frames * stride);
  Each<ChainViterbi> chains(d.threads);
  for (int i = 0; i < d.threads; i++) chains.make(i, p, d.max_frames, d.max_labels);
  for (i64 t0 = 0; t0 < d.max_frames; t0 += d.frames_per_chunk) {
    d.set_chunk(t0, imin(t0 + d.frames_per_chunk, d.max_frames));
    d.activate_positions(nullptr, 0);
    scorer.prepare_chunk(d.chunk);
    scorer.all_arcs(d.chunk);
#pragma omp parallel for schedule(dynamic)
    for (i64 f = 0; f < d.chunk.num_frames; f++) {
      d.normalize_frame(f);
      d.extract(f, arcs.data + (d.chunk.frames[f].b * p.frames + d.chunk.frames[f].t) * stride);
    }
  }
#pragma omp parallel for schedule(dynamic)
  for (i64 b = 0; b < B; b++) {
    PathWriter out{labels + b * longest, frames + b * longest};
    weight[b] = NEG_INF;
    if (d.labels.possible[b])
      weight[b] = chains[omp_get_thread_num()].run(arcs.data + b * p.frames * stride, stride, p.num_frames[b],
                                                   p.num_labels[b], p.label_ids + b * p.labels, d.final_of(b), out);
    out.reverse();
    length[b] = out.n;
  }
  return 0;
}

template <class D, class Scorer>
int best_path(D& d, Scorer& scorer, double* weight, int64_t* length, int64_t* labels, int64_t* frames) {
  return d.den ? best_path_of_lattice(d, scorer, weight, length, labels, frames)
               : best_path_of_chain(d, scorer, weight, length, labels, frames);
}

}  // namespace
