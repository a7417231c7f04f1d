// Forward and backward of a whole batch: chunks of frames in which the scorer makes the arcs of all utterances, then the
// lattices of the utterances take their frames in order.
#pragma once
#include "chain.hpp"
#include "joint.hpp"
#include "unshared.hpp"

namespace {

inline bool wants(int32_t what, int32_t flag) { return (what & flag) != 0; }

// The label strings: context state, arc row and labels of every position.
struct Labels {
  Buffer<uint8_t> possible;  // [B]
  Buffer<int32_t> state;     // [B, U + 1]
  Buffer<int32_t> row;       // [B, U + 1]: arc row of the position
  // With columns (a context of one state): the string's different labels are columns 1.. of what is kept.
  Buffer<int32_t> column;       // [B, U + 1]: column of the label that leads to the position
  Buffer<int32_t> column_label; // [B, width]: and back; label 0 is column 0
  Buffer<int32_t> num_columns;  // [B]
  i64 U1 = 0;

  void walk(const midge_problem& p, const Topology* g) {
    U1 = p.labels + 1;
    possible.allocate(p.batch);
    state.allocate(p.batch * U1);
    row.allocate(p.batch * U1);
    for (i64 b = 0; b < p.batch; b++) possible[b] = walk_one(p, g, b);
  }
  bool walk_one(const midge_problem& p, const Topology* g, i64 b) {
    int32_t* q = state.data + b * U1;
    q[0] = g ? p.start : 0;
    for (i64 u = 0; u < p.num_labels[b]; u++) {
      i64 y = p.label_ids[b * p.labels + u];
      if (y < 1 || y > p.vocab) return false;
      i64 next = g ? g->next_state(q[u], y) : u + 1;
      if (next < 0) return false;
      q[u + 1] = (int32_t)next;
    }
    return true;
  }

  // Rows for the states that occur, in order of first occurrence.
  void number_rows(const midge_problem& p, RowSet& rows) {
    rows.begin.allocate(p.batch + 1);
    rows.ids.allocate(p.batch * U1);
    Buffer<i64> seen(p.states);  // 1 + index into ids, valid if it points into this utterance's list
    for (i64 b = 0; b < p.batch; b++) {
      i64 first = rows.begin[b], n = first;
      for (i64 u = 0; possible[b] && u <= p.num_labels[b]; u++) {
        int32_t q = state[b * U1 + u];
        if (seen[q] <= first) {
          rows.ids[n++] = q;
          seen[q] = n;
        }
        row[b * U1 + u] = (int32_t)(seen[q] - 1 - first);
      }
      rows.begin[b + 1] = n;
    }
  }

  void number_columns(const midge_problem& p, i64 width) {
    column.allocate(p.batch * U1);
    column_label.allocate(p.batch * width);
    num_columns.allocate(p.batch);
    Buffer<i64> seen(p.vocab + 1);  // index into column_label, valid if it points into this utterance's list
    for (i64 b = 0; b < p.batch; b++) {
      const i64 first = b * width;
      i64 n = first + 1;
      for (i64 u = 0; possible[b] && u < p.num_labels[b]; u++) {
        const i64 y = p.label_ids[b * p.labels + u];
        if (seen[y] <= first) {
          column_label[n] = (int32_t)y;
          seen[y] = n++;
        }
        column[b * U1 + u + 1] = (int32_t)(seen[y] - first);
      }
      num_columns[b] = (int32_t)(n - first);
    }
  }
};

// A context of one state has one arc row per frame, and the chain's arcs are some of its numbers: all of them together
// are far fewer than the positions'.
inline bool has_columns(const midge_problem& p, int32_t what) {
  return wants(what, MIDGE_NUMERATOR) && !wants(what, MIDGE_POSITIONS) && p.context != MIDGE_FULL_HISTORY && p.states == 1;
}
inline i64 column_width(const midge_problem& p) { return 1 + imin(p.vocab, p.labels); }

// Where forward leaves what backward needs, inside the caller's buffer.
struct Kept {
  double* offset = nullptr;   // [B, T + 1] of the forward weights
  double* value = nullptr;    // [B, 4]: log Z, log numerator, their entropies
  float* alpha = nullptr;     // [B, T, alpha_floats]
  float* chain = nullptr;     // [B, T, chain_floats]: posteriors, by position or by column
  i64 alpha_floats = 0, chain_floats = 0, bytes = 0;

  Kept(const midge_problem& p, int32_t what, void* buffer) {
    const i64 planes = wants(what, MIDGE_ENTROPY) ? 2 : 1;
    if (wants(what, MIDGE_LOG_Z)) {
      Topology g(p);
      alpha_floats = (p.states + (p.deduplicate && p.alignment != MIDGE_K_CONSTRAINED ? g.num_slots : 0)) * planes;
    }
    if (wants(what, MIDGE_NUMERATOR)) chain_floats = (p.deduplicate ? 3 : 2) * (p.labels + 1) * planes;
    if (has_columns(p, what)) chain_floats = column_width(p) * planes;
    char* at = (char*)(((uintptr_t)buffer + 63) & ~(uintptr_t)63);
    char* start = at;
    value = (double*)at, at += round_up(p.batch * 4 * 8, 64);
    offset = (double*)at, at += alpha_floats ? round_up(p.batch * (p.frames + 1) * 8, 64) : 0;
    alpha = (float*)at, at += round_up(p.batch * p.frames * alpha_floats * 4, 64);
    chain = (float*)at, at += round_up(p.batch * p.frames * chain_floats * 4, 64);
    bytes = at - start + 64;
  }
};

// Rows whose arcs are all so small are left out of gradients. The posteriors of a frame sum to 1, and what is left out of
// each label, over all rows of a frame, is less than half a unit in the last place of that.
inline float negligible_mass(i64 num_rows) { return 0x1p-24f / (float)num_rows; }

template <bool ENT>
struct Driver {
  const midge_problem& p;
  const int32_t what;
  const bool den, num, full_history, columns;
  const i64 B, C, V;
  const int threads;
  Each<Topology> topology;
  Topology* g = nullptr;  // null with full history
  RowSet rows;
  Labels labels;
  Chunk chunk;
  i64 max_frames = 0, max_labels = 0, frames_per_chunk = 1;

  Driver(const midge_problem& problem, int32_t w)
      : p(problem), what(w), den(wants(w, MIDGE_LOG_Z)), num(wants(w, MIDGE_NUMERATOR)),
        full_history(problem.context == MIDGE_FULL_HISTORY), columns(has_columns(p, w)), B(p.batch), C(p.vocab + 1),
        V(p.vocab),
        threads(omp_get_max_threads()), topology(1) {
    if (!full_history) g = &topology.make(0, p);
    if (num || full_history) labels.walk(p, g);
    if (columns) labels.number_columns(p, column_width(p));
    choose_rows();
    for (i64 b = 0; b < B; b++) max_frames = imax(max_frames, p.num_frames[b]);
    for (i64 b = 0; num && b < B; b++) max_labels = imax(max_labels, p.num_labels[b]);
    plan_chunks();
  }

  void choose_rows() {
    rows.states = p.states;
    if (full_history) {
      rows.all = false, rows.positions = true, rows.stride = p.labels + 1;
      rows.begin.allocate(B + 1);
      for (i64 b = 0; b < B; b++) {
        rows.begin[b + 1] = rows.begin[b] + (labels.possible[b] ? p.num_labels[b] + 1 : 0);
        for (i64 u = 0; u <= p.num_labels[b]; u++) labels.row[b * labels.U1 + u] = (int32_t)u;
      }
    } else if (!den) {
      rows.all = false;
      labels.number_rows(p, rows);
    } else if (num) {
      for (i64 i = 0; i < B * labels.U1; i++) labels.row[i] = labels.state[i];
    }
  }

  void plan_chunks() {
    i64 total = 0;
    for (i64 b = 0; b < B; b++) total += rows.count(b);
    i64 bytes = imax(1, total * C * (i64)sizeof(float));
    // The unshared weights stream past every chunk: more frames.
    const bool many = p.scorer == MIDGE_UNSHARED;
    const i64 most = many ? 512 : 2048;
    frames_per_chunk = imin(imin(many ? 256 : 64, imax(1, most / imax(B, 1))), (many ? 3 : 1) * CHUNK_BYTES / bytes);
    frames_per_chunk = imax(1, frames_per_chunk);
    chunk.frames.allocate(B * frames_per_chunk);
    chunk.first_frame.allocate(B + 1);
    chunk.arcs.allocate(frames_per_chunk * total * C + 64);
    chunk.active.allocate(frames_per_chunk * total);
    chunk.tasks.allocate(1);
  }

  // ---- chunks

  // Lists the real frames t0..t1 and cuts them into tasks. Utterances that share their rows form one group.
  void set_chunk(i64 t0, i64 t1) {
    Chunk& c = chunk;
    c.t0 = t0, c.t1 = t1, c.num_frames = c.num_rows = 0;
    for (i64 b = 0; b < B; b++) {
      c.first_frame[b] = c.num_frames;
      if (!rows.count(b)) continue;
      for (i64 t = t0; t < imin(t1, p.num_frames[b]); t++) {
        c.frames[c.num_frames++] = Frame{b, t, c.num_rows};
        c.num_rows += rows.count(b);
      }
    }
    c.first_frame[B] = c.num_frames;
    c.num_tasks = c.num_row_blocks = 0;
    if (rows.all) cut(0, c.num_frames, rows.states);
    else
      for (i64 b = 0; b < B; b++) cut(c.first_frame[b], c.first_frame[b + 1], rows.count(b));
  }

  void cut(i64 f0, i64 f1, i64 n) {
    if (f0 == f1 || !n) return;
    const i64 blocks = ceil_div(n, ROW_BLOCK), size = ceil_div(n, blocks), step = imax(1, TASK_ROWS / size);
    const i64 more = blocks * ceil_div(f1 - f0, step);
    if (chunk.num_tasks + more > chunk.tasks.count) {
      Buffer<Task> old;
      old.data = chunk.tasks.data, old.base = chunk.tasks.base, chunk.tasks.base = nullptr;
      chunk.tasks.allocate(2 * (chunk.num_tasks + more));
      memcpy(chunk.tasks.data, old.data, chunk.num_tasks * sizeof(Task));
    }
    for (i64 f = f0; f < f1; f += step)
      for (i64 i = 0; i < blocks; i++) {
        Task t{f, imin(f + step, f1), i * n / blocks, (i + 1) * n / blocks, (int)(chunk.num_tasks % LANES), (int)i};
        chunk.tasks[chunk.num_tasks++] = t;
      }
    chunk.num_row_blocks = imax(chunk.num_row_blocks, blocks);
  }

  void activate_all() { memset(chunk.active.data, 1, chunk.num_rows); }

  // For the numerator alone: only rows that a path to the end can use (frame-dependent: u <= t and U - u <= T - t), or,
  // for the gradient, only rows whose arcs have posterior mass.
  void activate_positions(const float* chain, i64 chain_floats) {
    memset(chunk.active.data, 0, chunk.num_rows);
    const i64 planes = chain_floats / labels.U1;
    const bool frame = p.alignment == MIDGE_FRAME || p.alignment == MIDGE_FRAME_NO_BLANK;
#pragma omp parallel for schedule(static) if (chunk.num_rows > 1000)
    for (i64 f = 0; f < chunk.num_frames; f++) {
      const Frame& fr = chunk.frames[f];
      const i64 U = p.num_labels[fr.b], T = p.num_frames[fr.b];
      if (rows.count(fr.b) == 1) {
        chunk.active[fr.first_row] = 1;
        continue;
      }
      const float* post = chain ? chain + (fr.b * p.frames + fr.t) * chain_floats : nullptr;
      for (i64 u = 0; u <= U; u++) {
        bool on = !frame || (u <= fr.t && U - u <= T - fr.t);
        if (post) {
          float mass = 0;
          for (i64 j = 0; j < planes; j++) mass += __builtin_fabsf(post[j * labels.U1 + u]);
          on = mass > negligible_mass(U + 1);
        }
        if (on) chunk.active[fr.first_row + labels.row[fr.b * labels.U1 + u]] = 1;
      }
    }
  }

  const int32_t* mask_of(i64 b, i64 r) const {
    if (p.context != MIDGE_NEXT_STATE_TABLE) return nullptr;
    return p.next_state + rows.source(b, r) * V;
  }

  float* arcs_of(i64 f) { return chunk.arcs.data + chunk.frames[f].first_row * C; }

  void normalize_frame(i64 f) {
    const Frame& fr = chunk.frames[f];
    const bool blank = p.alignment != MIDGE_FRAME_NO_BLANK;
    if (p.normalization == MIDGE_GLOBAL && blank && p.context != MIDGE_NEXT_STATE_TABLE) return;
    RowGroup group(V, p.normalization);
    for (i64 r = 0; r < rows.count(fr.b); r++) {
      if (!chunk.active[fr.first_row + r]) continue;
      mask_row(arcs_of(f) + r * C, V, blank, mask_of(fr.b, r));
      group.add(arcs_of(f) + r * C);
    }
    group.flush();
  }

  // The chain's arcs of a frame out of the rows. Rows that are not active have no path: -inf.
  void extract(i64 f, float* out) {
    const Frame& fr = chunk.frames[f];
    const float* w = arcs_of(f);
    const int64_t* ids = p.label_ids + fr.b * p.labels;
    const int32_t* row = labels.row.data + fr.b * labels.U1;
    const i64 U = p.num_labels[fr.b], U1 = labels.U1;
    const float bonus = p.label_bonus ? p.label_bonus[fr.b * p.frames + fr.t] : 0.f;
    for (i64 u = 0; u <= U; u++) {
      const float* r = w + row[u] * C;
      const bool on = chunk.active[fr.first_row + row[u]];
      out[u] = on ? r[0] : NEG_INF;
      out[U1 + u] = on && u < U ? r[ids[u]] + bonus : NEG_INF;
      if (p.deduplicate) out[2 * U1 + u] = on && u ? r[ids[u - 1]] : NEG_INF;
    }
  }

  void extract_columns(i64 f, float* out) {
    const i64 b = chunk.frames[f].b;
    const float* w = arcs_of(f);
    const int32_t* label = labels.column_label.data + b * column_width(p);
    for (i64 j = 0; j < labels.num_columns[b]; j++) out[j] = w[label[j]];
  }

  // ---- forward

  struct State {  // of one utterance's lattice between chunks
    Buffer<float> memory;
    Weights a0, a1, b0, b1, s0, s1;
    double offset = 0;
    bool dead = false;
    void allocate(i64 S, i64 NS) {
      i64 planes = ENT ? 2 : 1;
      memory.allocate(3 * planes * (round_up(S, 16) + round_up(NS, 16)) + 256);
      float* m = memory.data;
      auto take = [&](i64 n) {
        Weights w{m, ENT ? m + round_up(n, 16) : nullptr};
        m += planes * round_up(n, 16);
        return w;
      };
      a0 = take(S), a1 = take(NS), b0 = take(S), b1 = take(NS), s0 = take(S), s1 = take(NS);
    }
  };

  template <class Scorer>
  int forward(Scorer& scorer, void* kept_buffer, double* log_z, double* log_num, double* entropy_z,
              double* entropy_num) {
    const bool keep = wants(what, MIDGE_KEEP);
    Kept kept(p, what, keep ? kept_buffer : nullptr);
    Buffer<float> own_chain;
    if (num && !keep) {
      own_chain.allocate(B * p.frames * kept.chain_floats);
      kept.chain = own_chain.data;
    }
    Each<State> states(den ? B : 0);
    Each<Lattice<ENT>> lattices(den ? threads : 0);
    if (den) {
      for (int i = 0; i < threads; i++) lattices.make(i, *g, p);
      for (i64 b = 0; b < B; b++) {
        states.make(b).allocate(p.states, g->num_slots);
        lattices[0].set_start(states[b].a0, states[b].a1);
        if (keep) kept.offset[b * (p.frames + 1)] = 0;
      }
    }
    for (i64 t0 = 0; t0 < max_frames; t0 += frames_per_chunk) {
      set_chunk(t0, imin(t0 + frames_per_chunk, max_frames));
      if (den) activate_all();
      else activate_positions(nullptr, 0);
      scorer.prepare_chunk(chunk);
      scorer.all_arcs(chunk);
#pragma omp parallel for schedule(dynamic) if (B > 1)
      for (i64 b = 0; b < B; b++)
        for (i64 f = chunk.first_frame[b]; f < chunk.first_frame[b + 1]; f++) {
          normalize_frame(f);
          const i64 t = chunk.frames[f].t;
          float* chain = kept.chain + (b * p.frames + t) * kept.chain_floats;
          if (columns && labels.possible[b]) extract_columns(f, chain);
          else if (num && labels.possible[b]) extract(f, chain);
          if (den) advance(lattices[omp_get_thread_num()], states[b], f, keep ? &kept : nullptr);
        }
    }
    for (i64 b = 0; den && b < B; b++) {
      double value, entropy;
      lattices[0].finish(states[b].a0, states[b].a1, value, entropy);
      if (states[b].dead) value = NEG_INF, entropy = 0;
      log_z[b] = states[b].offset + value;
      if (ENT) entropy_z[b] = entropy;
      if (keep) kept.value[4 * b] = log_z[b], kept.value[4 * b + 2] = entropy;
    }
    if (num) finish_chains(kept, keep, log_num, entropy_num);
    return 0;
  }

  // One frame of one utterance's lattice.
  void advance(Lattice<ENT>& lattice, State& s, i64 f, Kept* kept) {
    const Frame& fr = chunk.frames[f];
    const i64 S = p.states, NS = g->num_slots;
    copy_weights(lattice.a0(0), s.a0, S);
    copy_weights(lattice.a1(0), s.a1, NS);
    if (kept) {
      float* out = kept->alpha + (fr.b * p.frames + fr.t) * kept->alpha_floats;
      out = save(out, s.a0, S);
      if (lattice.keeps_slots()) save(out, s.a1, NS);
      kept->offset[fr.b * (p.frames + 1) + fr.t] = s.offset;
    }
    lattice.forward_frame(arcs_of(f), s.a0, s.a1);
    float m = lattice.recentre(s.a0, s.a1);
    if (m == NEG_INF) s.dead = true;
    else s.offset += m;
  }
  static void copy_weights(Weights to, Weights from, i64 n) {
    memcpy(to.a, from.a, n * sizeof(float));
    if (ENT) memcpy(to.h, from.h, n * sizeof(float));
  }
  static float* save(float* out, Weights w, i64 n) {
    memcpy(out, w.a, n * sizeof(float));
    if (ENT) memcpy(out + n, w.h, n * sizeof(float));
    return out + n * (ENT ? 2 : 1);
  }
  static const float* restore(const float* in, Weights w, i64 n) {
    memcpy(w.a, in, n * sizeof(float));
    if (ENT) memcpy(w.h, in + n, n * sizeof(float));
    return in + n * (ENT ? 2 : 1);
  }

  float final_of(i64 b) const {
    if (!p.final_weight || full_history) return 0.f;
    return p.final_weight[labels.state[b * labels.U1 + p.num_labels[b]]];
  }

  Columns columns_of(i64 b) const {
    if (!columns) return {};
    return {labels.column.data + b * labels.U1, p.label_bonus ? p.label_bonus + b * p.frames : nullptr, column_width(p)};
  }

  void finish_chains(Kept& kept, bool keep, double* log_num, double* entropy_num) {
    Each<Chain<ENT>> chains(threads);
    for (int i = 0; i < threads; i++) chains.make(i, p, wants(what, MIDGE_POSITIONS)).reserve(max_frames, max_labels);
#pragma omp parallel for schedule(dynamic)
    for (i64 b = 0; b < B; b++) {
      Chain<ENT>& c = chains[omp_get_thread_num()];
      float* arcs = kept.chain + b * p.frames * kept.chain_floats;
      double entropy = 0;
      log_num[b] = NEG_INF;
      if (labels.possible[b]) {
        c.begin(p.num_frames[b], p.num_labels[b], p.label_ids + b * p.labels, columns_of(b));
        log_num[b] = c.forward(arcs, final_of(b), entropy);
        if (keep && log_num[b] != NEG_INF) c.posteriors(arcs, entropy);
      }
      if (log_num[b] == NEG_INF) {
        entropy = 0;
        if (keep) memset(arcs, 0, p.num_frames[b] * kept.chain_floats * sizeof(float));
      }
      if (ENT) entropy_num[b] = entropy;
      if (keep) kept.value[4 * b + 1] = log_num[b], kept.value[4 * b + 3] = entropy;
    }
  }

  // ---- backward

  struct Upstreams {
    const double *log_z, *log_num, *entropy_z, *entropy_num;
    static double of(const double* d, i64 b) { return d ? d[b] : 0.; }
    float scale(i64 b) const {
      double s = 0;
      for (const double* d : {log_z, log_num, entropy_z, entropy_num}) s += __builtin_fabs(of(d, b));
      return (float)s;
    }
    bool any_z(i64 b) const { return of(log_z, b) != 0 || of(entropy_z, b) != 0; }
    bool any_num(i64 b) const { return of(log_num, b) != 0 || of(entropy_num, b) != 0; }
  };

  // Walks the chunks backwards; arcs become gradients by the raw arc weights; then consume(chunk).
  // raw = false leaves gradients by the normalized weights (marginals).
  template <class Scorer, class F>
  int backward(Scorer& scorer, const void* kept_buffer, const Upstreams& up, bool raw, F&& consume) {
    Kept kept(p, what, (void*)kept_buffer);
    Each<State> states(den ? B : 0);
    Each<Lattice<ENT>> lattices(den ? threads : 0);
    Buffer<float> gradients;  // per thread: one frame
    i64 most = 0;
    for (i64 b = 0; b < B; b++) most = imax(most, rows.count(b));
    const i64 grad_floats = round_up(most * C, 16);
    gradients.allocate(grad_floats * threads);
    if (den) {
      for (int i = 0; i < threads; i++) lattices.make(i, *g, p);
      for (i64 b = 0; b < B; b++) {
        states.make(b).allocate(p.states, g->num_slots);
        lattices[0].set_final(states[b].b0, states[b].b1);
        states[b].dead = !up.any_z(b) || kept.value[4 * b] == NEG_INF;
        float m = lattices[0].recentre(states[b].b0, states[b].b1);
        if (m != NEG_INF) states[b].offset += m;
      }
    }
    const i64 chunks = ceil_div(max_frames, frames_per_chunk);
    for (i64 i = chunks - 1; i >= 0; i--) {
      set_chunk(i * frames_per_chunk, imin((i + 1) * frames_per_chunk, max_frames));
      if (den) activate_all();
      else activate_positions(kept.chain, kept.chain_floats);
      scorer.prepare_chunk(chunk);
      scorer.all_arcs(chunk);
#pragma omp parallel for schedule(dynamic) if (B > 1)
      for (i64 b = 0; b < B; b++)
        for (i64 f = chunk.first_frame[b + 1] - 1; f >= chunk.first_frame[b]; f--) {
          int thread = omp_get_thread_num();
          normalize_frame(f);
          float* grad = gradients.data + thread * grad_floats;
          if (den && !states[b].dead) retreat(lattices[thread], states[b], f, kept, up, !raw, grad);
          else memset(grad, 0, rows.count(b) * C * sizeof(float));
          if (num) add_chain(f, kept, up, grad);
          finish_rows(f, grad, raw, negligible_mass(rows.count(b)) * up.scale(b));
        }
      consume(chunk);
    }
    return 0;
  }

  void retreat(Lattice<ENT>& lattice, State& s, i64 f, const Kept& kept, const Upstreams& up, bool all_arcs,
               float* grad) {
    const Frame& fr = chunk.frames[f];
    const float* in = kept.alpha + (fr.b * p.frames + fr.t) * kept.alpha_floats;
    in = restore(in, lattice.a0(0), p.states);
    if (lattice.keeps_slots()) restore(in, lattice.a1(0), g->num_slots);
    else lattice.fill(lattice.a1(0), g->num_slots, NEG_INF);
    const double c = posterior_offset(lattice, s, fr, kept);
    typename Lattice<ENT>::Upstream u{(float)c, (float)Upstreams::of(up.log_z, fr.b),
                                      (float)Upstreams::of(up.entropy_z, fr.b), (float)kept.value[4 * fr.b + 2],
                                      all_arcs};
    // (a0, a1) are free here: they take the new backward weights.
    lattice.backward_frame(arcs_of(f), s.b0, s.b1, u, s.a0, s.a1, s.s0, s.s1, grad);
    float m = lattice.recentre(s.a0, s.a1);
    if (m != NEG_INF) s.offset += m;
    Weights t0 = s.a0, t1 = s.a1;
    s.a0 = s.b0, s.a1 = s.b1, s.b0 = t0, s.b1 = t1;
  }

  // What turns alpha + w + beta into a log-posterior. log Z is taken where the forward and backward weights meet, at the
  // end of this very frame: their rounding errors grow with the distance from the two ends, and cancel here.
  double posterior_offset(Lattice<ENT>& lattice, const State& s, const Frame& fr, const Kept& kept) {
    const double* offset = kept.offset + fr.b * (p.frames + 1) + fr.t;
    if (fr.t + 1 == p.num_frames[fr.b]) return offset[0] + s.offset - kept.value[4 * fr.b];
    const float* f0 = kept.alpha + (fr.b * p.frames + fr.t + 1) * kept.alpha_floats;
    const float* f1 = lattice.keeps_slots() ? f0 + p.states * (ENT ? 2 : 1) : nullptr;
    return offset[0] - offset[1] - lattice.meet(f0, f1, s.b0, s.b1);
  }

  void add_chain(i64 f, const Kept& kept, const Upstreams& up, float* grad) {
    const Frame& fr = chunk.frames[f];
    if (!up.any_num(fr.b) || !labels.possible[fr.b]) return;
    const float* post = kept.chain + (fr.b * p.frames + fr.t) * kept.chain_floats;
    const int64_t* ids = p.label_ids + fr.b * p.labels;
    const int32_t* row = labels.row.data + fr.b * labels.U1;
    const i64 U = p.num_labels[fr.b], U1 = labels.U1, planes = p.deduplicate ? 3 : 2;
    const float scale[] = {(float)Upstreams::of(up.log_num, fr.b), (float)Upstreams::of(up.entropy_num, fr.b)};
    if (columns) {
      const int32_t* label = labels.column_label.data + fr.b * column_width(p);
      for (int e = 0; e < (ENT ? 2 : 1); e++, post += column_width(p))
        for (i64 j = 0; j < labels.num_columns[fr.b]; j++) grad[label[j]] += scale[e] * post[j];
      return;
    }
    for (int e = 0; e < (ENT ? 2 : 1); e++, post += planes * U1)
      for (i64 u = 0; u <= U; u++) {
        float* r = grad + row[u] * C;
        r[0] += scale[e] * post[u];
        if (u < U) r[ids[u]] += scale[e] * post[U1 + u];
        if (p.deduplicate && u) r[ids[u - 1]] += scale[e] * post[2 * U1 + u];
      }
  }

  // From gradients by normalized weights to gradients by raw weights, in the place of the arcs; drops rows of nothing.
  void finish_rows(i64 f, const float* grad, bool raw, float negligible) {
    const Frame& fr = chunk.frames[f];
    for (i64 r = 0; r < rows.count(fr.b); r++) {
      uint8_t& on = chunk.active[fr.first_row + r];
      if (!on) continue;
      float *w = arcs_of(f) + r * C;
      const float* gr = grad + r * C;
      on = largest(gr) > negligible;
      if (on || !raw) unnormalize_row(w, gr, V, raw ? p.normalization : MIDGE_GLOBAL, w);
      else memset(w, 0, C * sizeof(float));
    }
  }
  float largest(const float* x) const {
    vf m = {};
    for_vectors(C, [&](i64 i, i64 c) {
      vf v = get(x + i, c, 0.f);
      m = vmax(m, vmax(v, -v));
    });
    return hmax(m);
  }
};

}  // namespace
