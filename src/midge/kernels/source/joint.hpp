// The shared joint: arc weights W tanh(h_t + E_q) + bias, forward and gradient.
//
// tanh(a + b) = 1 - 2 / (1 + e^{2a} e^{2b}): both exponentials are made once (per frame, per state), so an element costs
// one multiply-add, one division and one subtraction. The tile of tanh values is multiplied with W at once, in cache.
// For the gradient the tile is made again, 4 panels of the hidden dimension at a time, and serves both products.
#pragma once
#include <omp.h>

#include "common.hpp"
#include "gemm.hpp"

namespace {

// The product form needs finite, nonzero exponentials, so inputs are clamped to +-EXP_RANGE. If one side is clamped and
// the other within SAFE_RANGE the sum is beyond +-9, where tanh is +-1 to float precision either way.
constexpr float EXP_RANGE = 43.f, SAFE_RANGE = 33.f;
enum { BEYOND_SAFE = 1, BEYOND_EXP = 2 };

// out = e^{2 clamp(in)} with 1 (tanh: 0) in the padding; returns the range flags of the row.
inline uint8_t exponentials(const float* in, i64 n, i64 padded, float* out) {
  float largest = 0;
  for (i64 i = 0; i < padded; i += VW) {
    vf v = i + VW <= n ? load(in + i) : load_part(in + i, imax(n - i, 0), 0.f);
    vf a = vmax(v, -v);
    largest = smax(largest, hmax(a));
    v = vmin(vmax(v, splat(-EXP_RANGE)), splat(EXP_RANGE));
    store(out + i, vexp(v + v));
  }
  return (largest > SAFE_RANGE ? BEYOND_SAFE : 0) | (largest > EXP_RANGE ? BEYOND_EXP : 0);
}

// Up to ROW_BLOCK rows that are worked on together.
struct Tile {
  i64 n = 0;
  const float *eE[ROW_BLOCK], *eh[ROW_BLOCK];  // exponentials
  const float *E[ROW_BLOCK], *h[ROW_BLOCK];    // the inputs themselves; only used for direct rows
  float *dE[ROW_BLOCK], *dh[ROW_BLOCK];
  float* arcs[ROW_BLOCK];
  bool direct[ROW_BLOCK];
};

struct Joint {
  const midge_problem& p;
  const RowSet& rows;
  i64 H, Hp, V, C, panels, hidden_panels;
  Buffer<float> eE, eh, packed, blank_row, by_hidden;
  Buffer<uint8_t> flags_E, flags_h;
  // Gradient accumulators: dE [lane][embedding rows][Hp], dW [lane][hidden panel][C][PW], dbias [lane][C],
  // dh [row block of the chunk][frame of the chunk][Hp].
  Buffer<float> dE, dW, dbias, dh;
  i64 embedding_rows;
  Buffer<float> tile_memory;  // per thread: A tile and G tile
  i64 tile_floats;

  Joint(const midge_problem& problem, const RowSet& row_set, int threads) : p(problem), rows(row_set) {
    H = p.size, V = p.vocab, C = V + 1;
    Hp = round_up(H, PW);
    panels = ceil_div(V, PW);
    hidden_panels = Hp / PW;
    embedding_rows = rows.positions ? p.batch * (p.labels + 1) : p.states;
    tile_floats = round_up(ROW_BLOCK * (imax(Hp, BLOCK_PANELS * PW) + C) + 64, 16);
    tile_memory.allocate(tile_floats * threads);
    pack();
    prepare_embedding();
  }

  void pack() {
    packed.allocate(panels * H * PW);
    blank_row.allocate(Hp);
    pack_rows(p.weight + H, V, H, H, packed.data);
    memcpy(blank_row.data, p.weight, H * sizeof(float));
  }

  void prepare_embedding() {
    eE.allocate(embedding_rows * Hp);
    flags_E.allocate(embedding_rows);
#pragma omp parallel for schedule(static)
    for (i64 q = 0; q < embedding_rows; q++) {
      // Padded label positions are never read.
      if (rows.positions && q % rows.stride >= rows.count(q / rows.stride)) continue;
      flags_E[q] = exponentials(p.embedding + q * H, H, Hp, eE.data + q * Hp);
    }
  }

  void prepare_chunk(const Chunk& c) {
    eh.grow(c.num_frames * Hp);
    flags_h.grow(c.num_frames);
#pragma omp parallel for schedule(static)
    for (i64 f = 0; f < c.num_frames; f++)
      flags_h[f] = exponentials(frame_input(c.frames[f]), H, Hp, eh.data + f * Hp);
  }

  const float* frame_input(const Frame& f) const { return p.x + (f.b * p.frames + f.t) * H; }

  void add_row(const Chunk& c, const Task& task, Tile& t, i64 f, i64 r, bool gradient) {
    const Frame& frame = c.frames[f];
    i64 q = rows.source(frame.b, r), i = t.n++;
    t.eE[i] = eE.data + q * Hp;
    t.eh[i] = eh.data + f * Hp;
    t.E[i] = p.embedding + q * H;
    t.h[i] = frame_input(frame);
    uint8_t a = flags_E[q], b = flags_h[f];
    t.direct[i] = (a & b & BEYOND_SAFE) && ((a | b) & BEYOND_EXP);
    t.arcs[i] = c.arcs.data + (frame.first_row + r) * C;
    if (gradient) {
      t.dE[i] = dE.data + (task.lane * embedding_rows + q) * Hp;
      t.dh[i] = dh.data + (task.row_block * c.num_frames + f) * Hp;
    }
  }

  // Calls tile(t) for the active rows of a task, at most ROW_BLOCK at a time.
  template <class F>
  void for_tiles(const Chunk& c, const Task& task, bool gradient, F&& run) {
    Tile t;
    for (i64 f = task.f0; f < task.f1; f++)
      for (i64 r = task.r0; r < task.r1; r++) {
        if (!c.active[c.frames[f].first_row + r]) continue;
        add_row(c, task, t, f, r, gradient);
        if (t.n == ROW_BLOCK) run(t), t.n = 0;
      }
    if (t.n) run(t);
  }

  static MIDGE_INLINE vf tanh_of(vf eE, vf eh) { return splat(1.f) - splat(2.f) / (eE * eh + splat(1.f)); }

  // tanh(h + E) for hidden units k0..k1 of row i, without the product form.
  void direct_row(const Tile& t, i64 i, i64 k0, i64 k1, float* out, i64 panel_stride) {
    for (i64 k = k0; k < k1; k++) {
      float v = k < H ? vtanh(splat(t.E[i][k] + t.h[i][k]))[0] : 0.f;
      out[(k - k0) / PW * panel_stride + (k - k0) % PW] = v;
    }
  }

  // ---- forward

  // A[i][k] = tanh, row-major with stride Hp.
  void fill_rows(const Tile& t, i64 first, i64 count, float* A) {
    for (i64 i = first; i < first + count; i++) {
      float* out = A + (i - first) * Hp;
      if (t.direct[i]) {
        direct_row(t, i, 0, Hp, out, PW);
        continue;
      }
      const float *a = t.eE[i], *b = t.eh[i];
      for (i64 k = 0; k < Hp; k += PW) {
        store(out + k, tanh_of(load(a + k), load(b + k)));
        store(out + k + VW, tanh_of(load(a + k + VW), load(b + k + VW)));
      }
    }
  }

  struct PanelProduct {
    Joint& j;
    const Tile& t;
    const float *A, *panel;  // A: row 0 of the tile
    i64 column;              // first label column of the panel
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      float block[R * PW];
      dot_block<R>(j.H, A + first * j.Hp, j.Hp, panel, block);
      const i64 width = imin(PW, j.C - column);
      for (int i = 0; i < R; i++) {
        float *out = t.arcs[first + i] + column, *in = block + i * PW;
        if (width == PW) store(out, load(in)), store(out + VW, load(in + VW));
        else memcpy(out, in, width * sizeof(float));
      }
    }
  };

  // The blank column is a dot product beside the panels, so that V = 32 fills its panels exactly.
  struct BlankProduct {
    Joint& j;
    const Tile& t;
    const float* A;
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      vf acc[R] = {};
      for (i64 k = 0; k < j.Hp; k += VW) {
        vf w = load(j.blank_row.data + k);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) acc[i] += w * load(A + (first + i) * j.Hp + k);
      }
#pragma GCC unroll 8
      for (int i = 0; i < R; i++) t.arcs[first + i][0] = hsum(acc[i]);
    }
  };

  // A register block's rows against all panels: its tanh values stay in L1 while W streams from L2.
  struct GroupProduct {
    Joint& j;
    const Tile& t;
    float* A;
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      j.fill_rows(t, first, R, A);
      const float* row0 = A - first * j.Hp;
      for (i64 q = 0; q < j.panels; q++)
        PanelProduct{j, t, row0, j.packed.data + q * j.H * PW, 1 + q * PW}.template run<R>(first);
      BlankProduct{j, t, row0}.template run<R>(first);
    }
  };

  void arcs_of_tile(const Tile& t, float* A) {
    if (panels * H * PW * (i64)sizeof(float) <= (200 << 10)) {
      for_row_groups(t.n, GroupProduct{*this, t, A});
    } else {  // W does not fit L2: each panel meets the whole tile
      fill_rows(t, 0, t.n, A);
      for (i64 q = 0; q < panels; q++)
        for_row_groups(t.n, PanelProduct{*this, t, A, packed.data + q * H * PW, 1 + q * PW});
      for_row_groups(t.n, BlankProduct{*this, t, A});
    }
    if (p.bias)
      for (i64 i = 0; i < t.n; i++)
        for (i64 y = 0; y < C; y++) t.arcs[i][y] += p.bias[y];
  }

  void all_arcs(Chunk& c) {
#pragma omp parallel for schedule(dynamic)
    for (i64 i = 0; i < c.num_tasks; i++) {
      float* A = tile_memory.data + omp_get_thread_num() * tile_floats;
      for_tiles(c, c.tasks[i], false, [&](Tile& t) { arcs_of_tile(t, A); });
    }
  }

  // ---- gradient

  static constexpr i64 BLOCK_PANELS = 4;

  void begin_gradient() {
    by_hidden.allocate(hidden_panels * C * PW);
    pack_columns(p.weight, C, H, H, by_hidden.data);
    dE.allocate(LANES * embedding_rows * Hp);
    dW.allocate(LANES * hidden_panels * C * PW);
    dbias.allocate(LANES * C);
  }

  void begin_gradient_chunk(const Chunk& c) {
    dh.grow(c.num_row_blocks * c.num_frames * Hp);
#pragma omp parallel for schedule(static)
    for (i64 i = 0; i < c.num_row_blocks * c.num_frames; i++) memset(dh.data + i * Hp, 0, Hp * sizeof(float));
  }

  // A[panel][row][PW] = tanh for BLOCK_PANELS panels from hidden unit k0 on.
  void fill_panels(const Tile& t, i64 k0, i64 np, float* A) {
    for (i64 i = 0; i < t.n; i++) {
      float* out = A + i * PW;
      if (t.direct[i]) {
        direct_row(t, i, k0, k0 + np * PW, out, ROW_BLOCK * PW);
        continue;
      }
      const float *a = t.eE[i] + k0, *b = t.eh[i] + k0;
      for (i64 q = 0; q < np; q++) {
        store(out + q * ROW_BLOCK * PW, tanh_of(load(a + q * PW), load(b + q * PW)));
        store(out + q * ROW_BLOCK * PW + VW, tanh_of(load(a + q * PW + VW), load(b + q * PW + VW)));
      }
    }
  }

  // Rows first..first+R: dA = G W for one hidden panel, times 1 - A^2, added to dE of each row and dh of each frame.
  struct InputGradient {
    Joint& j;
    const Tile& t;
    const float *A, *G;
    const float* panel;
    i64 k;
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      vf acc[R][2] = {};
      block_product<R, 2, true>(j.C, G + first * j.C, j.C, 1, panel, PW, acc);
      bool same_frame = true, same_state = true;
#pragma GCC unroll 8
      for (int i = 1; i < R; i++) {
        same_frame &= t.dh[first + i] == t.dh[first];
        same_state &= t.dE[first + i] == t.dE[first];
      }
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) {
        vf sum = {};
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
          vf a = load(A + (first + i) * PW + v * VW);
          acc[i][v] *= splat(1.f) - a * a;
          sum += acc[i][v];
        }
        const i64 at = k + v * VW;
        if (same_frame) {
          add(t.dh[first] + at, sum);
        } else {
#pragma GCC unroll 8
          for (int i = 0; i < R; i++) add(t.dh[first + i] + at, acc[i][v]);
        }
        if (same_state) {
          add(t.dE[first] + at, sum);
        } else {
#pragma GCC unroll 8
          for (int i = 0; i < R; i++) add(t.dE[first + i] + at, acc[i][v]);
        }
      }
    }
    static MIDGE_INLINE void add(float* p, vf x) { store(p, load(p) + x); }
  };

  // Labels first..first+R: dW[y] += sum over the tile's rows of G[row][y] A[row], for one hidden panel.
  struct WeightGradient {
    Joint& j;
    i64 n;
    const float *A, *G;
    float* out;
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      vf acc[R][2];
      float* o = out + first * PW;
#pragma GCC unroll 8
      for (int i = 0; i < R; i++) acc[i][0] = load(o + i * PW), acc[i][1] = load(o + i * PW + VW);
      block_product<R, 2, false>(n, G + first, 1, j.C, A, PW, acc);
#pragma GCC unroll 8
      for (int i = 0; i < R; i++) store(o + i * PW, acc[i][0]), store(o + i * PW + VW, acc[i][1]);
    }
  };

  void gradient_of_tile(const Tile& t, int lane, float* memory) {
    float *G = memory, *A = memory + round_up(ROW_BLOCK * C, 16);
    for (i64 i = 0; i < t.n; i++) memcpy(G + i * C, t.arcs[i], C * sizeof(float));
    float* db = dbias.data + lane * C;
    for (i64 i = 0; i < t.n; i++)
      for (i64 y = 0; y < C; y++) db[y] += G[i * C + y];
    for (i64 q0 = 0; q0 < hidden_panels; q0 += BLOCK_PANELS) {
      i64 np = imin(BLOCK_PANELS, hidden_panels - q0);
      fill_panels(t, q0 * PW, np, A);
      for (i64 q = 0; q < np; q++) {
        const float* a = A + q * ROW_BLOCK * PW;
        for_row_groups(t.n, InputGradient{*this, t, a, G, by_hidden.data + (q0 + q) * C * PW, (q0 + q) * PW});
        for_row_groups(C, WeightGradient{*this, t.n, a, G, dW.data + ((lane * hidden_panels) + q0 + q) * C * PW});
      }
    }
  }

  void all_gradients(const Chunk& c) {
#pragma omp parallel for schedule(dynamic)
    for (int lane = 0; lane < LANES; lane++) {
      float* memory = tile_memory.data + omp_get_thread_num() * tile_floats;
      for (i64 i = lane; i < c.num_tasks; i += LANES)  // task i belongs to lane i % LANES
        for_tiles(c, c.tasks[i], true, [&](Tile& t) { gradient_of_tile(t, lane, memory); });
    }
  }

  // Adds the row blocks' shares of dh, in order.
  void end_gradient_chunk(const Chunk& c, float* d_x) {
    if (!d_x) return;
#pragma omp parallel for schedule(static)
    for (i64 f = 0; f < c.num_frames; f++) {
      const Frame& frame = c.frames[f];
      float* out = d_x + (frame.b * p.frames + frame.t) * H;
      for (i64 rb = 0; rb < c.num_row_blocks; rb++) {
        const float* in = dh.data + (rb * c.num_frames + f) * Hp;
        for (i64 k = 0; k < H; k++) out[k] += in[k];
      }
    }
  }

  // Adds the lanes, in order.
  void end_gradient(float* d_embedding, float* d_weight, float* d_bias) {
    if (d_embedding) {
#pragma omp parallel for schedule(static)
      for (i64 q = 0; q < embedding_rows; q++)
        for (int l = 0; l < LANES; l++)
          for (i64 k = 0; k < H; k++) d_embedding[q * H + k] += dE[(l * embedding_rows + q) * Hp + k];
    }
    if (d_weight) {
#pragma omp parallel for schedule(static)
      for (i64 y = 0; y < C; y++)
        for (int l = 0; l < LANES; l++)
          for (i64 k = 0; k < H; k++)
            d_weight[y * H + k] += dW[((l * hidden_panels + k / PW) * C + y) * PW + k % PW];
    }
    if (d_bias)
      for (int l = 0; l < LANES; l++)
        for (i64 y = 0; y < C; y++) d_bias[y] += dbias[l * C + y];
  }
};

}  // namespace
