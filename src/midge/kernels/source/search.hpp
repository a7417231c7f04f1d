// Best-path search in pieces. Between calls a stream lives with the caller, as forward weights and back-pointers. One
// thread takes a stream through its frames, so that a stream's bits do not depend on the others of a call.
#pragma once
#include "viterbi.hpp"

namespace {

// The arcs of one frame, row by row; `rows` lists the states to score.
struct JointRows {
  Joint& joint;
  Buffer<float> exponential, tile;
  JointRows(Joint& j, const midge_problem&) : joint(j), exponential(j.Hp), tile(j.tile_floats) {}

  void score(const float* x, const int32_t* rows, i64 count, float* arcs) {
    const uint8_t flags = exponentials(x, joint.H, joint.Hp, exponential.data);
    Tile t;
    for (i64 i = 0; i < count; i++) {
      const i64 q = rows[i], n = t.n++;
      const uint8_t other = joint.flags_E[q];
      t.eE[n] = joint.eE.data + q * joint.Hp, t.eh[n] = exponential.data;
      t.E[n] = joint.p.embedding + q * joint.H, t.h[n] = x;
      t.direct[n] = (flags & other & BEYOND_SAFE) && ((flags | other) & BEYOND_EXP);
      t.arcs[n] = arcs + q * joint.C;
      if (t.n == ROW_BLOCK || i + 1 == count) joint.arcs_of_tile(t, tile.data), t.n = 0;
    }
  }
};

// Scorers that prepare nothing.
struct Unprepared {
  Unprepared(const midge_problem&, const RowSet&, int) {}
};

// Memory-bound: W streams past every frame. In use for the few states of CTC and cross-entropy models.
struct UnsharedRows {
  const midge_problem& p;
  UnsharedRows(Unprepared&, const midge_problem& problem) : p(problem) {}

  void score(const float* x, const int32_t* rows, i64 count, float* arcs) {
    const i64 C = p.vocab + 1, D = p.size;
    for (i64 i = 0; i < count; i++)
      for (i64 y = 0; y < C; y++) {
        const i64 at = rows[i] * C + y;
        vf sum = {};
        i64 k = 0;
        for (; k + VW <= D; k += VW) sum += load(p.weight + at * D + k) * load(x + k);
        if (k < D) sum += load_part(p.weight + at * D + k, D - k, 0.f) * load_part(x + k, D - k, 0.f);
        arcs[at] = hsum(sum) + (p.bias ? p.bias[at] : 0.f);
      }
  }
};

struct TableRows {
  const i64 C;
  TableRows(Unprepared&, const midge_problem& p) : C(p.vocab + 1) {}
  void score(const float* x, const int32_t* rows, i64 count, float* arcs) {
    for (i64 i = 0; i < count; i++) memcpy(arcs + rows[i] * C, x + rows[i] * C, C * sizeof(float));
  }
};

// One thread's share of a search.
template <class Rows>
struct Searcher {
  const midge_problem& p;
  const Topology& g;
  Viterbi viterbi;
  Rows scorer;
  Buffer<float> arcs;
  Buffer<int32_t> rows;
  const i64 S, C, width, F;  // width: places of a context state among the F states, (q, blank) first
  const float margin;

  template <class Scorer>
  Searcher(const midge_problem& problem, const Topology& topology, Scorer& s, i64 places, float m)
      : p(problem), g(topology), viterbi(topology, problem), scorer(s, problem), arcs(g.S * g.C + 64), rows(g.S),
        S(g.S), C(g.C), width(places), F(g.S * places), margin(m) {}

  i64 place(i64 state, i64 from) const { return state * width + from; }

  void load_weights(const float* alpha) {
    for (i64 q = 0; q < S; q++) {
      viterbi.a0[q] = alpha[q * width];
      for (i64 s = g.dedup ? g.slot_begin[q] : 0, i = 1; g.dedup && s < g.slot_begin[q + 1]; s++, i++)
        viterbi.a1[s] = alpha[q * width + i];
    }
  }
  void store_weights(float* alpha) const {
    for (i64 i = 0; i < F; i++) alpha[i] = NEG_INF;
    for (i64 q = 0; q < S; q++) {
      alpha[q * width] = viterbi.a0[q];
      for (i64 s = g.dedup ? g.slot_begin[q] : 0, i = 1; g.dedup && s < g.slot_begin[q + 1]; s++, i++)
        alpha[q * width + i] = viterbi.a1[s];
    }
  }

  // The states that arcs may leave: those alive, or, where a frame emits several labels, all.
  i64 list_rows() {
    i64 n = 0;
    for (i64 q = 0; q < S; q++) {
      bool alive = viterbi.constrained || viterbi.a0[q] > NEG_INF;
      for (i64 s = g.dedup ? g.slot_begin[q] : 0; g.dedup && !alive && s < g.slot_begin[q + 1]; s++)
        alive = viterbi.a1[s] > NEG_INF;
      if (alive) rows[n++] = (int32_t)q;
    }
    return n;
  }

  void drop() {
    for (i64 q = 0; q < S; q++)
      if (viterbi.a0[q] < -margin) viterbi.a0[q] = NEG_INF;
    for (i64 s = 0; s < viterbi.NS; s++)
      if (viterbi.a1[s] < -margin) viterbi.a1[s] = NEG_INF;
  }

  // One frame; returns what was taken off the weights.
  float frame(const float* x) {
    const i64 n = list_rows();
    scorer.score(x, rows.data, n, arcs.data);
    const bool blank = p.alignment != MIDGE_FRAME_NO_BLANK, table = p.context == MIDGE_NEXT_STATE_TABLE;
    if (p.normalization != MIDGE_GLOBAL || !blank || table)
      for (i64 i = 0; i < n; i++) {
        const int32_t* mask = table ? p.next_state + rows[i] * g.V : nullptr;
        normalize_row(arcs.data + rows[i] * C, g.V, p.normalization, blank, mask);
      }
    const float m = viterbi.frame(arcs.data);
    drop();
    return m == NEG_INF ? 0.f : m;
  }

  // A label's pointer, label * F + source, from its code; 0 at a destination that no arc enters.
  i64 label_pointer(i64 dest, i64 code) const {
    if (g.kind == Topology::NGRAM && !g.dedup && dest == 0) return 0;
    if (g.kind == Topology::LISTS && g.in_begin[dest] == g.in_begin[dest + 1]) return 0;
    i64 state = g.dedup ? g.slot_state[dest] : dest, from = g.dedup ? dest - g.slot_begin[state] + 1 : 0;
    const i64 label = viterbi.undo_label(code, state, from);
    return label * F + place(state, from);
  }
  i64 place_of_dest(i64 dest) const {
    if (!g.dedup) return place(dest, 0);
    const i64 q = g.slot_state[dest];
    return place(q, dest - g.slot_begin[q] + 1);
  }

  // The frame's pointers [levels][F], as AlignmentLattice.trace reads them.
  template <class T>
  void write_pointers(T* out) const {
    const int32_t* codes = viterbi.codes;
    if (viterbi.constrained) {
      for (i64 n = 0; n < viterbi.k; n++)
        for (i64 d = 0; d < g.num_dests; d++)
          out[n * F + place_of_dest(d)] = (T)label_pointer(d, codes[n * g.num_dests + d]);
      for (i64 q = 0; q < S; q++) {
        const i64 code = codes[viterbi.k * g.num_dests + q];
        out[viterbi.k * F + place(q, 0)] = (T)(code / viterbi.sel * F + place(q, code % viterbi.sel));
      }
    } else if (g.dedup) {
      for (i64 q = 0; q < S; q++) out[place(q, 0)] = (T)place(q, codes[q]);
      for (i64 s = 0; s < g.num_slots; s++) out[place_of_dest(s)] = (T)label_pointer(s, codes[S + s]);
    } else {
      for (i64 q = 0; q < S; q++) out[place(q, 0)] = (T)(codes[q] ? label_pointer(q, codes[q]) : place(q, 0));
    }
  }

  void stream(const midge_piece& c, i64 b) {
    float* alpha = c.alpha + b * F;
    const i64 levels = viterbi.constrained ? viterbi.k + 1 : 1;
    load_weights(alpha);
    for (i64 i = 0; i < c.count[b]; i++) {
      c.offset[b] += frame(c.x + (b * c.frames + c.first[b] + i) * p.size);
      if (c.pointer_bytes == 2) write_pointers((int16_t*)c.pointers[b] + i * levels * F);
      else write_pointers((int32_t*)c.pointers[b] + i * levels * F);
    }
    store_weights(alpha);
  }
};

// What is made once: topology, packed weights, and the threads' memory.
struct SearchBase {
  virtual ~SearchBase() {}
  virtual void run(const midge_piece& c) = 0;
};

template <class Scorer, class Rows>
struct Search : SearchBase {
  midge_problem p;
  Topology g;
  RowSet rows;
  Scorer scorer;
  const i64 width;
  const float margin;
  Searcher<Rows>** searchers = nullptr;
  int num_searchers = 0;

  Search(const midge_problem& problem, i64 places, double m)
      : p(problem), g(p), scorer(p, all_rows(), 1), width(places), margin((float)m) {}
  ~Search() override {
    for (int i = 0; i < num_searchers; i++) delete searchers[i];
    delete[] searchers;
  }
  const RowSet& all_rows() {
    rows.states = p.states;
    return rows;
  }

  void prepare(int threads) {
    if (threads <= num_searchers) return;
    Searcher<Rows>** more = new Searcher<Rows>*[threads]();
    for (int i = 0; i < num_searchers; i++) more[i] = searchers[i];
    delete[] searchers;
    searchers = more;
    for (; num_searchers < threads; num_searchers++)
      searchers[num_searchers] = new Searcher<Rows>(p, g, scorer, width, margin);
  }

  void run(const midge_piece& c) override {
    prepare(omp_get_max_threads());
#pragma omp parallel for schedule(dynamic) if (c.batch > 1)
    for (i64 b = 0; b < c.batch; b++)
      if (c.count[b] > 0) searchers[omp_get_thread_num()]->stream(c, b);
  }
};

inline SearchBase* open_search(const midge_problem& p, i64 places, double margin) {
  if (p.scorer == MIDGE_JOINT) return new Search<Joint, JointRows>(p, places, margin);
  if (p.scorer == MIDGE_UNSHARED) return new Search<Unprepared, UnsharedRows>(p, places, margin);
  return new Search<Unprepared, TableRows>(p, places, margin);
}

}  // namespace
