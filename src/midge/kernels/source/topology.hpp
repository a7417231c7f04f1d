// Where the label arcs of the context automaton go, seen from both ends.
#pragma once
#include "common.hpp"

namespace {

// A label arc (q, y) leads to a destination: the next context state, or, with deduplication, the slot (next state, y).
// Slots are the pairs (q, y) with y a label that enters q, numbered by q, then y.
//
// The n-gram's structure needs no table: the children of q in the tree of histories are q V + 1 .. q V + V, and a
// longest history x p goes where its suffix p goes. A table gets lists of the incoming arcs.
struct Topology {
  enum Kind { ZERO, NGRAM, LISTS } kind;
  i64 S, V, C;
  bool dedup;
  i64 num_slots = 0, num_dests = 0;
  i64 inner = 0, below = 0, suffixes = 0;  // NGRAM: states shorter than n - 1; shorter than n; V^(n-1)
  Buffer<int32_t> slot_state, slot_label;  // [num_slots]
  Buffer<i64> slot_begin;                  // [S + 1]
  Buffer<int32_t> dest;                    // LISTS: [S, V], -1 is no arc
  Buffer<i64> in_begin;                    // LISTS: [num_dests + 1]
  Buffer<int32_t> in_state, in_label;      // LISTS: by destination, then label, then state: the order of ties
  i64 max_in = 0, max_slots = 0;
  const int32_t* table = nullptr;

  explicit Topology(const midge_problem& p) : S(p.states), V(p.vocab), C(p.vocab + 1), dedup(p.deduplicate != 0) {
    if (p.context == MIDGE_NEXT_STATE_TABLE) {
      kind = LISTS;
      table = p.next_state;
      build_lists();
    } else {
      kind = p.order == 0 ? ZERO : NGRAM;
      build_ngram(p.order);
    }
    for (i64 q = 0; dedup && q < S; q++) max_slots = imax(max_slots, slot_begin[q + 1] - slot_begin[q]);
  }

  void build_ngram(int order) {
    if (kind == NGRAM) {
      i64 power = 1;
      inner = 0;
      for (int i = 0; i < order - 1; i++) inner += power, power *= V;
      suffixes = power;
      below = inner + power;
    }
    num_dests = S;
    max_in = kind == ZERO ? V : V + 1;
    if (!dedup) return;
    num_slots = kind == ZERO ? V : S - 1;
    num_dests = num_slots;
    slot_state.allocate(num_slots);
    slot_label.allocate(num_slots);
    slot_begin.allocate(S + 1);
    for (i64 s = 0; s < num_slots; s++) {
      slot_state[s] = kind == ZERO ? 0 : (int32_t)(s + 1);
      slot_label[s] = (int32_t)(s % V + 1);
    }
    for (i64 q = 0; q <= S; q++) slot_begin[q] = kind == ZERO ? q * V : imax(q - 1, 0);
  }

  void build_lists() {
    dest.allocate(S * V);
    num_dests = S;
    if (dedup) {
      Buffer<int32_t> slot(S * V);  // of (state, label), -1 if none
      for (i64 i = 0; i < S * V; i++) slot[i] = -1;
      for (i64 q = 0; q < S; q++)
        for (i64 y = 0; y < V; y++)
          if (table[q * V + y] >= 0) slot[table[q * V + y] * V + y] = 0;
      for (i64 i = 0; i < S * V; i++)
        if (slot[i] == 0) slot[i] = (int32_t)num_slots++;
      slot_state.allocate(num_slots);
      slot_label.allocate(num_slots);
      slot_begin.allocate(S + 1);
      for (i64 q = 0; q < S; q++) {
        slot_begin[q + 1] = slot_begin[q];
        for (i64 y = 0; y < V; y++)
          if (slot[q * V + y] >= 0) {
            slot_state[slot[q * V + y]] = (int32_t)q;
            slot_label[slot[q * V + y]] = (int32_t)(y + 1);
            slot_begin[q + 1]++;
          }
      }
      num_dests = num_slots;
      for (i64 q = 0; q < S; q++)
        for (i64 y = 0; y < V; y++) {
          int32_t next = table[q * V + y];
          dest[q * V + y] = next < 0 ? -1 : slot[next * V + y];
        }
    } else {
      for (i64 i = 0; i < S * V; i++) dest[i] = table[i] < 0 ? -1 : table[i];
    }
    in_begin.allocate(num_dests + 2);
    i64 arcs = 0;
    for (i64 i = 0; i < S * V; i++)
      if (dest[i] >= 0) in_begin[dest[i] + 2]++, arcs++;
    for (i64 d = 0; d < num_dests; d++) {
      max_in = imax(max_in, in_begin[d + 2]);
      in_begin[d + 2] += in_begin[d + 1];
    }
    in_state.allocate(arcs);
    in_label.allocate(arcs);
    for (i64 y = 0; y < V; y++)
      for (i64 q = 0; q < S; q++)
        if (dest[q * V + y] >= 0) {
          i64 at = in_begin[dest[q * V + y] + 1]++;
          in_state[at] = (int32_t)q;
          in_label[at] = (int32_t)(y + 1);
        }
  }

  // NGRAM: next state of (q, label 1); label y leads y - 1 further.
  i64 first_child(i64 q) const { return (q < below ? q : inner + (q - below) % suffixes) * V + 1; }
  // NGRAM: index of that child's destination.
  i64 first_dest(i64 q) const { return first_child(q) - (dedup ? 1 : 0); }

  i64 next_state(i64 q, i64 y) const {
    if (kind == LISTS) return table[q * V + y - 1];
    return kind == ZERO ? 0 : first_child(q) + y - 1;
  }

  // The values of the destinations of q's label arcs, in label order: a pointer into `values`, or a copy in `scratch`.
  const float* at_dests(i64 q, const float* values, float* scratch, float missing = NEG_INF) const {
    if (kind == NGRAM) return values + first_dest(q);
    if (kind == ZERO && dedup) return values;
    if (kind == ZERO)
      for (i64 y = 0; y < V; y++) scratch[y] = values[0];
    else
      for (i64 y = 0; y < V; y++) scratch[y] = dest[q * V + y] < 0 ? missing : values[dest[q * V + y]];
    return scratch;
  }
};

}  // namespace
