// One projection per context state: arc weights W[q, y] . x_t + bias[q, y]. Plain matrix products, blocked.
//
// A unit is a range of columns (rows of W) with the frames that use them. W is by far the largest array (71 MB for a
// 2-gram context over 32 labels and 512 inputs), so a chunk holds many frames and W streams past them.
#pragma once
#include <omp.h>

#include "common.hpp"
#include "gemm.hpp"

namespace {

struct Unshared {
  static constexpr i64 FRAMES = 96, COLUMNS = 96;  // of a cache block
  static constexpr i64 PACKED = 192;               // frames packed for the forward product

  struct Entry {  // a frame that uses the unit's columns
    i64 f, arcs;  // arcs: index of the entry's column 0
  };
  struct Unit {
    i64 e0, e1;           // entries
    i64 w0, count, at;    // rows of W; columns of the entry's arcs at `at`
    int lane;
  };

  const midge_problem& p;
  const RowSet& rows;
  const i64 D, Dp, C;
  Buffer<Entry> entries;
  Buffer<Unit> units;
  Buffer<i64> count;
  i64 num_units = 0;
  Buffer<float> memory, dx;  // per thread; per lane [frames, Dp]
  i64 thread_floats;
  float *d_weight = nullptr, *d_bias = nullptr;

  Unshared(const midge_problem& problem, const RowSet& row_set, int threads)
      : p(problem), rows(row_set), D(p.size), Dp(round_up(p.size, PW)), C(p.vocab + 1) {
    const i64 forward = (PACKED + PW) * Dp + PW * COLUMNS, backward = (FRAMES + COLUMNS) * Dp + FRAMES * COLUMNS;
    thread_floats = round_up(imax(forward, backward), 16);
    memory.allocate(thread_floats * threads);
    count.allocate(p.states + 1);
  }

  // ---- units of a chunk

  void add_units(i64 e0, i64 e1, i64 w0, i64 n, i64 at) {
    i64 pieces = ceil_div(n, COLUMNS);
    for (i64 i = 0; i < pieces; i++) {
      i64 a = i * n / pieces, b = (i + 1) * n / pieces;
      units[num_units] = Unit{e0, e1, w0 + a, b - a, at + a, (int)(num_units % LANES)};
      num_units++;
    }
  }

  void prepare_chunk(const Chunk& c) {
    num_units = 0;
    if (rows.all) {
      entries.grow(c.num_frames);
      for (i64 f = 0; f < c.num_frames; f++) entries[f] = Entry{f, c.frames[f].first_row * C};
      units.grow(ceil_div(p.states * C, COLUMNS) + 1);
      add_units(0, c.num_frames, 0, p.states * C, 0);
      return;
    }
    // By state: a counting sort of the active rows.
    entries.grow(c.num_rows);
    units.grow((p.states < c.num_rows ? p.states : c.num_rows) * ceil_div(C, COLUMNS) + 1);
    memset(count.data, 0, (p.states + 1) * sizeof(i64));
    for_rows(c, [&](i64, i64 q, i64) { count[q + 1]++; });
    for (i64 q = 0; q < p.states; q++) {
      if (count[q + 1]) add_units(count[q], count[q] + count[q + 1], q * C, C, 0);
      count[q + 1] += count[q];
    }
    for_rows(c, [&](i64 f, i64 q, i64 row) { entries[count[q]++] = Entry{f, row * C}; });
  }
  template <class F>
  void for_rows(const Chunk& c, F&& f) {
    for (i64 i = 0; i < c.num_frames; i++)
      for (i64 r = 0; r < rows.count(c.frames[i].b); r++)
        if (c.active[c.frames[i].first_row + r]) f(i, rows.source(c.frames[i].b, r), c.frames[i].first_row + r);
  }

  const float* input(const Chunk& c, i64 f) const { return p.x + (c.frames[f].b * p.frames + c.frames[f].t) * D; }

  // ---- forward: panels of frames, broadcast weights, so that W needs no packing

  struct ColumnProduct {  // tile[frame][column], for one panel of frames
    Unshared& u;
    const Unit& unit;
    const float* panel;
    float* tile;
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      float out[R * PW];
      dot_block<R>(u.D, u.p.weight + (unit.w0 + first) * u.D, u.D, panel, out);
      float bias[R];
      for (int i = 0; i < R; i++) bias[i] = u.p.bias ? u.p.bias[unit.w0 + first + i] : 0.f;
      for (int f = 0; f < PW; f++)
        for (int i = 0; i < R; i++) tile[f * COLUMNS + first + i] = out[i * PW + f] + bias[i];
    }
  };

  // Rows of arcs are far apart (140 kB for a 2-gram context over 32 labels): writing each product's few columns there
  // at once would take as long as the product itself.
  void arcs_of_panel(const Unit& unit, const Entry* e, i64 frames, const float* panel, float* tile, float* arcs) {
    for_row_groups(unit.count, ColumnProduct{*this, unit, panel, tile});
    for (i64 f = 0; f < frames; f++)
      memcpy(arcs + e[f].arcs + unit.at, tile + f * COLUMNS, unit.count * sizeof(float));
  }

  void pack_frames(const Chunk& c, const Entry* e, i64 n, float* out) {
    for (i64 q = 0; q * PW < n; q++, out += D * PW)
      for (int j = 0; j < PW; j++) {
        const float* x = q * PW + j < n ? input(c, e[q * PW + j].f) : nullptr;
        for (i64 k = 0; k < D; k++) out[k * PW + j] = x ? x[k] : 0.f;
      }
  }

  void all_arcs(Chunk& c) {
    // Units of a whole lattice share all frames, which are packed once a block for all of them.
    const i64 blocks = rows.all ? ceil_div(c.num_frames, PACKED) : 1;
#pragma omp parallel
    {
      float* X = memory.data + omp_get_thread_num() * thread_floats;
      float* tile = X + (PACKED + PW) * Dp;
      const Entry* packed = nullptr;
#pragma omp for schedule(dynamic, 8)
      for (i64 task = 0; task < blocks * num_units; task++) {
        const Unit& unit = units[task % num_units];
        const i64 first = unit.e0 + task / num_units * PACKED;
        const i64 last = rows.all ? imin(unit.e1, first + PACKED) : unit.e1;
        for (i64 e0 = first; e0 < last; e0 += PACKED) {
          const i64 n = imin(PACKED, last - e0);
          const Entry* e = entries.data + e0;
          if (packed != e) pack_frames(c, e, n, X), packed = e;
          for (i64 q = 0; q * PW < n; q++)
            arcs_of_panel(unit, e + q * PW, imin(PW, n - q * PW), X + q * D * PW, tile, c.arcs.data);
        }
      }
    }
  }

  // ---- gradient

  void begin_gradient(float* weight, float* bias) { d_weight = weight, d_bias = bias; }
  void begin_gradient_chunk(const Chunk& c) {
    dx.grow(LANES * c.num_frames * Dp);
    memset(dx.data, 0, LANES * c.num_frames * Dp * sizeof(float));
  }

  struct InputGradient {  // dx[frame] += sum over the columns of G W, for one panel of inputs
    Unshared& u;
    const Entry* e;
    const float *G, *panel;
    i64 columns, k;
    float* dx;
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      float block[R * PW];
      dot_block<R>(columns, G + first * columns, columns, panel, block);
      for (int i = 0; i < R; i++) {
        float *o = dx + e[first + i].f * u.Dp + k, *in = block + i * PW;
        store(o, load(o) + load(in)), store(o + VW, load(o + VW) + load(in + VW));
      }
    }
  };

  struct WeightGradient {  // dW[column] += sum over the frames of G x, for one panel of inputs
    Unshared& u;
    const float *G, *panel;
    i64 columns, frames, k;
    float* out;
    template <int R>
    MIDGE_INLINE void run(i64 first) {
      float* o = out + first * u.D + k;
      const i64 left = u.D - k;
      if (left >= PW) {
        add_block<R>(frames, G + first, columns, panel, o, u.D);
        return;
      }
      float block[R * PW] = {};  // the ragged end of the inputs
      add_block<R>(frames, G + first, columns, panel, block, PW);
      for (int i = 0; i < R; i++)
        for (i64 j = 0; j < left; j++) o[i * u.D + j] += block[i * PW + j];
    }
  };

  void gradient_of_unit(const Chunk& c, const Unit& unit, float* m) {
    float *X = m, *W = X + FRAMES * Dp, *G = W + COLUMNS * Dp;
    pack_columns(p.weight + unit.w0 * D, unit.count, D, D, W);
    for (i64 e0 = unit.e0; e0 < unit.e1; e0 += FRAMES) {
      const Entry* e = entries.data + e0;
      const i64 n = imin(FRAMES, unit.e1 - e0);
      for (i64 i = 0; i < n; i++)
        memcpy(G + i * unit.count, c.arcs.data + e[i].arcs + unit.at, unit.count * sizeof(float));
      if (d_bias)
        for (i64 i = 0; i < n; i++)
          for (i64 j = 0; j < unit.count; j++) d_bias[unit.w0 + j] += G[i * unit.count + j];
      for (i64 k = 0; k < D; k += PW) {
        for_row_groups(n, InputGradient{*this, e, G, W + k * unit.count, unit.count, k,
                                        dx.data + unit.lane * c.num_frames * Dp});
        if (!d_weight) continue;
        float* panel = X + k * n;
        for (i64 i = 0; i < n; i++) {
          const float* x = input(c, e[i].f) + k;
          for (int v = 0; v < 2; v++)
            store(panel + i * PW + v * VW, k + (v + 1) * VW <= D ? load(x + v * VW)
                                                                 : load_part(x + v * VW, imax(D - k - v * VW, 0), 0));
        }
        for_row_groups(unit.count, WeightGradient{*this, G, panel, unit.count, n, k, d_weight + unit.w0 * D});
      }
    }
  }

  void all_gradients(const Chunk& c) {
#pragma omp parallel for schedule(dynamic)
    for (int lane = 0; lane < LANES; lane++)
      for (i64 i = 0; i < num_units; i++)
        if (units[i].lane == lane)
          gradient_of_unit(c, units[i], memory.data + omp_get_thread_num() * thread_floats);
  }

  void end_gradient_chunk(const Chunk& c, float* d_x) {
    if (!d_x) return;
#pragma omp parallel for schedule(static)
    for (i64 f = 0; f < c.num_frames; f++) {
      float* out = d_x + (c.frames[f].b * p.frames + c.frames[f].t) * D;
      for (int lane = 0; lane < LANES; lane++) {
        const float* in = dx.data + (lane * c.num_frames + f) * Dp;
        for (i64 k = 0; k < D; k++) out[k] += in[k];
      }
    }
  }
};

// A frame is its own table of arc weights.
struct Table {
  const midge_problem& p;
  const RowSet& rows;
  const i64 C;
  Table(const midge_problem& problem, const RowSet& row_set, int) : p(problem), rows(row_set), C(problem.vocab + 1) {}
  void prepare_chunk(const Chunk&) {}
  i64 at(const Frame& f, i64 r) const { return (f.b * p.frames + f.t) * p.states * C + rows.source(f.b, r) * C; }
  void all_arcs(Chunk& c) {
#pragma omp parallel for schedule(static) if (c.num_rows * C > 50000)
    for (i64 i = 0; i < c.num_frames; i++)
      for (i64 r = 0; r < rows.count(c.frames[i].b); r++)
        if (c.active[c.frames[i].first_row + r])
          memcpy(c.arcs.data + (c.frames[i].first_row + r) * C, p.x + at(c.frames[i], r), C * sizeof(float));
  }
  void add_gradients(const Chunk& c, float* d_x) {
    if (!d_x) return;
#pragma omp parallel for schedule(static) if (c.num_rows * C > 50000)
    for (i64 i = 0; i < c.num_frames; i++)
      for (i64 r = 0; r < rows.count(c.frames[i].b); r++)
        if (c.active[c.frames[i].first_row + r]) {
          const float* g = c.arcs.data + (c.frames[i].first_row + r) * C;
          float* out = d_x + at(c.frames[i], r);
          for (i64 y = 0; y < C; y++) out[y] += g[y];
        }
  }
};

}  // namespace
