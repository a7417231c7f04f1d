// The engine for one instruction set. Compiled once per set, with MIDGE_NAME(f) giving the functions their suffix.
#include <initializer_list>
#include <type_traits>

#include "product.hpp"
#include "search.hpp"

#define PASTE2(a, b) a##_##b
#define PASTE(a, b) PASTE2(a, b)
#define MIDGE_NAME(f) PASTE(f, MIDGE_VARIANT)

namespace {

// Calls f(driver, scorer) with the problem's scorer, and turns a lack of memory into an error code.
template <bool ENT, class F>
int with_scorer(const midge_problem& p, int32_t what, F&& f) {
  Driver<ENT> driver(p, what);
  if (p.scorer == MIDGE_JOINT) {
    Joint scorer(p, driver.rows, driver.threads);
    return f(driver, scorer);
  }
  if (p.scorer == MIDGE_UNSHARED) {
    Unshared scorer(p, driver.rows, driver.threads);
    return f(driver, scorer);
  }
  Table scorer(p, driver.rows, driver.threads);
  return f(driver, scorer);
}

template <class F>
int guarded(const midge_problem& p, int32_t what, F&& f) {
  try {
    return wants(what, MIDGE_ENTROPY) ? with_scorer<true>(p, what, f) : with_scorer<false>(p, what, f);
  } catch (...) {  // OutOfMemory, or bad_alloc of a small object
    return 1;
  }
}

struct Outputs {
  float *d_x, *d_embedding, *d_weight, *d_bias;
};

template <class D, class U>
int run_backward(D& driver, Joint& scorer, const void* kept, const U& up, const Outputs& o) {
  scorer.begin_gradient();
  int r = driver.backward(scorer, kept, up, true, [&](Chunk& c) {
    scorer.begin_gradient_chunk(c);
    scorer.all_gradients(c);
    scorer.end_gradient_chunk(c, o.d_x);
  });
  scorer.end_gradient(o.d_embedding, o.d_weight, o.d_bias);
  return r;
}
template <class D, class U>
int run_backward(D& driver, Unshared& scorer, const void* kept, const U& up, const Outputs& o) {
  scorer.begin_gradient(o.d_weight, o.d_bias);
  return driver.backward(scorer, kept, up, true, [&](Chunk& c) {
    scorer.begin_gradient_chunk(c);
    scorer.all_gradients(c);
    scorer.end_gradient_chunk(c, o.d_x);
  });
}
template <class D, class U>
int run_backward(D& driver, Table& scorer, const void* kept, const U& up, const Outputs& o) {
  return driver.backward(scorer, kept, up, true, [&](Chunk& c) { scorer.add_gradients(c, o.d_x); });
}

// The chunk's arc gradients, taken by the normalized weights, are the marginals.
void copy_marginals(const midge_problem& p, const Chunk& c, float* blank, float* lexical) {
  const i64 S = p.states, V = p.vocab, C = V + 1;
#pragma omp parallel for schedule(static)
  for (i64 f = 0; f < c.num_frames; f++)
    for (i64 q = 0; q < S; q++) {
      const float* g = c.arcs_of(f, C) + q * C;
      const i64 at = (c.frames[f].b * p.frames + c.frames[f].t) * S + q;
      blank[at] = g[0];
      memcpy(lexical + at * V, g + 1, V * sizeof(float));
    }
}

}  // namespace

extern "C" {

int64_t MIDGE_NAME(midge_kept_bytes)(const midge_problem* p, int32_t what) {
  try {
    return Kept(*p, what, nullptr).bytes;
  } catch (OutOfMemory) {
    return -1;
  }
}

int MIDGE_NAME(midge_forward)(const midge_problem* p, int32_t what, void* kept, double* log_z, double* log_num,
                              double* entropy_z, double* entropy_num) {
  return guarded(*p, what, [&](auto& driver, auto& scorer) {
    return driver.forward(scorer, kept, log_z, log_num, entropy_z, entropy_num);
  });
}

int MIDGE_NAME(midge_backward)(const midge_problem* p, int32_t what, const void* kept, const double* d_log_z,
                               const double* d_log_num, const double* d_entropy_z, const double* d_entropy_num,
                               float* d_x, float* d_embedding, float* d_weight, float* d_bias) {
  return guarded(*p, what, [&](auto& driver, auto& scorer) {
    typename std::remove_reference_t<decltype(driver)>::Upstreams up{d_log_z, d_log_num, d_entropy_z, d_entropy_num};
    return run_backward(driver, scorer, kept, up, Outputs{d_x, d_embedding, d_weight, d_bias});
  });
}

int MIDGE_NAME(midge_marginals)(const midge_problem* p, int32_t what, const void* kept, float* blank, float* lexical) {
  return guarded(*p, what, [&](auto& driver, auto& scorer) {
    Buffer<double> ones(p->batch);
    for (i64 b = 0; b < p->batch; b++) ones[b] = 1;
    typename std::remove_reference_t<decltype(driver)>::Upstreams up{ones.data, nullptr, nullptr, nullptr};
    return driver.backward(scorer, kept, up, false, [&](Chunk& c) { copy_marginals(*p, c, blank, lexical); });
  });
}

int MIDGE_NAME(midge_chain_marginals)(const midge_problem* p, int32_t what, const void* kept, float* blank, float* next,
                                      float* repeat) {
  try {
    const Kept k(*p, what, (void*)kept);
    const i64 U1 = p->labels + 1;
    float* planes[] = {blank, next, repeat};
    for (i64 b = 0; b < p->batch; b++)
      for (i64 t = 0; t < p->num_frames[b]; t++)
        for (int j = 0; j < (p->deduplicate ? 3 : 2); j++)
          memcpy(planes[j] + (b * p->frames + t) * U1, k.chain + (b * p->frames + t) * k.chain_floats + j * U1,
                 (p->num_labels[b] + 1) * sizeof(float));
    return 0;
  } catch (OutOfMemory) {
    return 1;
  }
}

int MIDGE_NAME(midge_product)(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_column,
                              const float* b, int64_t b_row, int64_t b_column, float* c) {
  try {
    product(m, n, k, {a, a_row, a_column}, {b, b_row, b_column}, c);
    return 0;
  } catch (OutOfMemory) {
    return 1;
  }
}

int64_t MIDGE_NAME(midge_path_length)(const midge_problem* p, int32_t what) { return path_length(*p, what); }

int MIDGE_NAME(midge_best_path)(const midge_problem* p, int32_t what, double* weight, int64_t* length,
                                int64_t* path_labels, int64_t* path_frames) {
  return guarded(*p, what & MIDGE_NUMERATOR ? MIDGE_NUMERATOR : MIDGE_LOG_Z, [&](auto& driver, auto& scorer) {
    return best_path(driver, scorer, weight, length, path_labels, path_frames);
  });
}

void* MIDGE_NAME(midge_search_open)(const midge_problem* p, int64_t places, double margin) {
  try {
    return open_search(*p, places, margin);
  } catch (OutOfMemory) {
    return nullptr;
  }
}

int MIDGE_NAME(midge_search_run)(void* search, const midge_piece* piece) {
  try {
    ((SearchBase*)search)->run(*piece);
    return 0;
  } catch (OutOfMemory) {
    return 1;
  }
}

void MIDGE_NAME(midge_search_close)(void* search) { delete (SearchBase*)search; }

}  // extern "C"
