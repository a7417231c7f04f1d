// The C interface: picks the variant for this machine's instruction set once and forwards every call to it.
#include "engine.h"

#include <cstdlib>
#include <cstring>

#define FOR_EACH_FUNCTION(X, v)                                                                                        \
  X(int64_t, midge_kept_bytes, v, (const midge_problem* p, int32_t what), (p, what))                                   \
  X(int, midge_forward, v,                                                                                             \
    (const midge_problem* p, int32_t what, void* kept, double* log_z, double* log_num, double* entropy_z,              \
     double* entropy_num),                                                                                             \
    (p, what, kept, log_z, log_num, entropy_z, entropy_num))                                                           \
  X(int, midge_backward, v,                                                                                            \
    (const midge_problem* p, int32_t what, const void* kept, const double* d_log_z, const double* d_log_num,           \
     const double* d_entropy_z, const double* d_entropy_num, float* d_x, float* d_embedding, float* d_weight,          \
     float* d_bias),                                                                                                   \
    (p, what, kept, d_log_z, d_log_num, d_entropy_z, d_entropy_num, d_x, d_embedding, d_weight, d_bias))               \
  X(int, midge_marginals, v, (const midge_problem* p, int32_t what, const void* kept, float* blank, float* lexical),   \
    (p, what, kept, blank, lexical))                                                                                   \
  X(int, midge_chain_marginals, v,                                                                                     \
    (const midge_problem* p, int32_t what, const void* kept, float* blank, float* next, float* repeat),                \
    (p, what, kept, blank, next, repeat))                                                                              \
  X(int, midge_product, v,                                                                                             \
    (int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,  \
     int64_t b_column, float* c),                                                                                      \
    (m, n, k, a, a_row, a_column, b, b_row, b_column, c))                                                              \
  X(int64_t, midge_path_length, v, (const midge_problem* p, int32_t what), (p, what))                                  \
  X(int, midge_best_path, v,                                                                                           \
    (const midge_problem* p, int32_t what, double* weight, int64_t* length, int64_t* path_labels,                      \
     int64_t* path_frames),                                                                                            \
    (p, what, weight, length, path_labels, path_frames))                                                               \
  X(void*, midge_search_open, v, (const midge_problem* p, int64_t places, double margin), (p, places, margin))         \
  X(int, midge_search_run, v, (void* search, const midge_piece* piece), (search, piece))                               \
  X(void, midge_search_close, v, (void* search), (search))

#define DECLARE(type, name, variant, parameters, arguments) type name##_##variant parameters;

extern "C" {
FOR_EACH_FUNCTION(DECLARE, portable)
#ifdef MIDGE_X86
FOR_EACH_FUNCTION(DECLARE, avx2)
FOR_EACH_FUNCTION(DECLARE, avx512)
#endif
}

namespace {

enum Variant { PORTABLE, AVX2, AVX512 };

Variant detect() {
#ifdef MIDGE_X86
  const char* wish = getenv("MIDGE_VARIANT");
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f");
  if (wish && !strcmp(wish, "portable")) return PORTABLE;
  if (wish && !strcmp(wish, "avx2") && avx2) return AVX2;
  return avx512 ? AVX512 : avx2 ? AVX2 : PORTABLE;
#else
  return PORTABLE;
#endif
}

Variant variant() {
  static const Variant v = detect();
  return v;
}

}  // namespace

#ifdef MIDGE_X86
#define DEFINE(type, name, unused, parameters, arguments)   \
  type name parameters {                                    \
    switch (variant()) {                                    \
      case AVX512: return name##_avx512 arguments;          \
      case AVX2: return name##_avx2 arguments;              \
      default: return name##_portable arguments;            \
    }                                                       \
  }
#else
#define DEFINE(type, name, unused, parameters, arguments) \
  type name parameters { return name##_portable arguments; }
#endif

extern "C" {
FOR_EACH_FUNCTION(DEFINE, all)
const char* midge_variant(void) {
  static const char* names[] = {"portable", "avx2", "avx512"};
  return names[variant()];
}
}
