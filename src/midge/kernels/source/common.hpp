// Memory, chunks of frames and lists of arc rows: what scorers and lattices share inside one call.
#pragma once
#include <cstdlib>

#include "engine.h"
#include "simd.hpp"

namespace {

struct OutOfMemory {};

// Zeroed, 64-byte aligned memory. calloc hands out untouched pages, so a big buffer of which a thread touches little
// costs only what it touches. It throws where there is none, and nothing may be thrown out of a parallel region: what
// threads need is allocated before.
template <class T>
struct Buffer {
  T* data = nullptr;
  void* base = nullptr;
  i64 count = 0;
  Buffer() {}
  explicit Buffer(i64 n) { allocate(n); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(base); }
  void allocate(i64 n) {
    free(base);
    base = calloc((size_t)(n * (i64)sizeof(T) + 128), 1);
    if (!base) throw OutOfMemory();
    data = (T*)(((uintptr_t)base + 63) & ~(uintptr_t)63);
    count = n;
  }
  void grow(i64 n) {
    if (n > count) allocate(n);
  }
  T& operator[](i64 i) { return data[i]; }
  const T& operator[](i64 i) const { return data[i]; }
};

// A few objects, made one by one and freed together, also where memory runs out halfway.
template <class T>
struct Each {
  Buffer<T*> pointers;
  explicit Each(i64 n) : pointers(n) {}
  ~Each() {
    for (i64 i = 0; i < pointers.count; i++) delete pointers[i];
  }
  template <class... Arguments>
  T& make(i64 i, Arguments&&... arguments) {
    return *(pointers[i] = new T(arguments...));
  }
  T& operator[](i64 i) { return *pointers[i]; }
};

// Which context states have an arc row in each frame of utterance b: all of them (log Z), or only those on the label
// string (numerator alone: a 1-gram context has at most 1 + V of them however long the string), or one for each label
// position (full history).
struct RowSet {
  bool all = true, positions = false;
  i64 states = 0, stride = 0;  // stride: U + 1 of the full history's embedding
  Buffer<int32_t> ids;         // state of row r of utterance b: ids[begin[b] + r]
  Buffer<i64> begin;           // [B + 1]
  i64 count(i64 b) const { return all ? states : begin[b + 1] - begin[b]; }
  // Row of the embedding (or of the unshared weights) behind arc row r of utterance b.
  i64 source(i64 b, i64 r) const {
    if (all) return r;
    return positions ? b * stride + r : (i64)ids[begin[b] + r];
  }
};

// One real frame of the current chunk; its arc rows are first_row + 0..count(b).
struct Frame {
  i64 b, t, first_row;
};

// A piece of a chunk: rows r0..r1 of each of the frames f0..f1. Pieces and their lanes depend on the problem's shape
// alone, never on the number of threads; a lane owns its gradient accumulators and takes its tasks in order.
struct Task {
  i64 f0, f1, r0, r1;
  int lane, row_block;
};

// Frames t0..t1 of every utterance, with their arcs [rows, C] in memory; everything else about them is recomputed.
struct Chunk {
  i64 t0 = 0, t1 = 0, num_frames = 0, num_rows = 0, num_tasks = 0, num_row_blocks = 0;
  Buffer<Frame> frames;
  Buffer<i64> first_frame;  // [B + 1]: the frames of utterance b
  Buffer<Task> tasks;
  Buffer<float> arcs;       // [num_rows, C]
  Buffer<uint8_t> active;   // [num_rows]: 0 for rows that nobody needs
  const float* arcs_of(i64 f, i64 C) const { return arcs.data + frames[f].first_row * C; }
};

constexpr int LANES = 16;             // more lanes, more parallel work, more accumulators
constexpr i64 ROW_BLOCK = 48;         // rows of the tile that is kept in cache
constexpr i64 TASK_ROWS = 768;        // rows of a task
constexpr i64 CHUNK_BYTES = 8 << 20;  // arcs held at a time (one frame of the batch at least)

}  // namespace
