// Back-traces of the best-path search: how the states of one stream were reached. Nothing here is worth a variant for
// each instruction set.
#include <cstring>

#include "engine.h"

namespace {

// One frame back from a state. `emit` is called with a label's level and the label, the last label first, and with
// the last level and 0 for a blank.
template <class T, class Emit>
int64_t before(const T* here, int64_t levels, int64_t states, int64_t state, Emit emit) {
  int64_t at = here[(levels - 1) * states + state];
  if (levels == 1) {
    emit(0, at / states);
    return at % states;
  }
  // Of several levels the last says how many labels came before the blank.
  emit(levels - 1, 0);
  for (int64_t level = at / states; level-- > 0;) {
    at = here[level * states + at % states];
    emit(level, at / states);
  }
  return at % states;
}

template <class T>
void trace(const T* pointers, int64_t frames, int64_t levels, int64_t states, int64_t state, int32_t* symbols) {
  for (int64_t i = 0; i < frames * levels; i++) symbols[i] = -1;
  for (int64_t t = frames; t-- > 0;) {
    int32_t* out = symbols + t * levels;
    state = before(pointers + t * levels * states, levels, states, state,
                   [out](int64_t level, int64_t symbol) { out[level] = (int32_t)symbol; });
  }
}

// Walks back from all states that are alive until one is left; seen and list are memory of F each.
template <class T>
void agreement(const T* pointers, int64_t frames, int64_t levels, int64_t states, const uint8_t* alive, int32_t* seen,
               int32_t* list, int64_t* found) {
  int64_t count = 0, t = frames;
  for (int64_t i = 0; i < states; i++)
    if (alive[i]) list[count++] = (int32_t)i;
  memset(seen, 0xff, (size_t)states * sizeof(int32_t));
  while (count > 1 && t > 0) {
    t--;
    const T* here = pointers + t * levels * states;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
      const int64_t from = before(here, levels, states, list[i], [](int64_t, int64_t) {});
      if (seen[from] == (int32_t)t) continue;
      seen[from] = (int32_t)t;
      list[kept++] = (int32_t)from;
    }
    count = kept;
  }
  found[0] = t, found[1] = list[0];
}

}  // namespace

extern "C" {

void midge_trace(const void* pointers, int64_t pointer_bytes, int64_t frames, int64_t levels, int64_t states,
                 int64_t state, int32_t* symbols) {
  if (pointer_bytes == 2) trace((const int16_t*)pointers, frames, levels, states, state, symbols);
  else if (pointer_bytes == 4) trace((const int32_t*)pointers, frames, levels, states, state, symbols);
  else trace((const int64_t*)pointers, frames, levels, states, state, symbols);
}

void midge_agreement(const void* pointers, int64_t pointer_bytes, int64_t frames, int64_t levels, int64_t states,
                     const uint8_t* alive, int32_t* memory, int64_t* found) {
  int32_t *seen = memory, *list = memory + states;
  if (pointer_bytes == 2) agreement((const int16_t*)pointers, frames, levels, states, alive, seen, list, found);
  else if (pointer_bytes == 4) agreement((const int32_t*)pointers, frames, levels, states, alive, seen, list, found);
  else agreement((const int64_t*)pointers, frames, levels, states, alive, seen, list, found);
}
}
