/* midge's native CPU engine: plain C interface.
 *
 * Conventions (design.md, sections 1 and 4): label 0 is blank, lexical labels are 1..V, C = 1 + V columns; weights are
 * log-scores, bigger is better, -inf is "no arc". All floats are float32, values and offsets float64. */
#ifndef MIDGE_ENGINE_H
#define MIDGE_ENGINE_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MIDGE_JOINT = 0, MIDGE_UNSHARED = 1, MIDGE_TABLE = 2 };                /* scorer */
enum { MIDGE_GLOBAL = 0, MIDGE_SOFTMAX = 1, MIDGE_HAT = 2 };                  /* normalization */
enum { MIDGE_NGRAM = 0, MIDGE_NEXT_STATE_TABLE = 1, MIDGE_FULL_HISTORY = 2 }; /* context */
enum { MIDGE_FRAME = 0, MIDGE_FRAME_NO_BLANK = 1, MIDGE_K_CONSTRAINED = 2, MIDGE_UNBOUNDED = 3 }; /* alignment */

/* What a call computes. LOG_Z and NUMERATOR may be joined: one pass over the frames serves both.
 * ENTROPY adds the entropy of the path distribution of whatever is asked for. KEEP saves what backward needs, and with
 * POSITIONS what midge_chain_marginals needs. */
enum { MIDGE_LOG_Z = 1, MIDGE_NUMERATOR = 2, MIDGE_ENTROPY = 4, MIDGE_KEEP = 8, MIDGE_POSITIONS = 16 };

typedef struct midge_problem {
  int64_t batch, frames, states, vocab, size, labels; /* B, T, S, V, H or D or S*C, U (= width of label_ids) */
  int32_t scorer, normalization, context, alignment;
  int32_t k, order, start, deduplicate;  /* k of K_CONSTRAINED; order n of NGRAM; start state; CTC-style states */
  const int32_t* next_state;             /* NEXT_STATE_TABLE: [S, V], -1 is no arc */
  const float* final_weight;             /* [S] or NULL */
  const float* x;                        /* JOINT h [B, T, H]; UNSHARED [B, T, D]; TABLE [B, T, S * C] */
  const float* embedding;                /* JOINT [S, H] (FULL_HISTORY: [B, U + 1, H]) */
  const float* weight;                   /* JOINT [C, H]; UNSHARED [S, C, D] */
  const float* bias;                     /* JOINT [C]; UNSHARED [S, C]; or NULL */
  const int64_t* num_frames;             /* [B] */
  const int64_t* num_labels;             /* [B]; needed for NUMERATOR and FULL_HISTORY */
  const int64_t* label_ids;              /* [B, U]; labels outside 1..V make the numerator -inf */
  const float* label_bonus;              /* [B, T] added to the numerator's new labels at each frame, or NULL */
} midge_problem;

/* Bytes of the caller's buffer that forward fills for backward (and best_path for the walk). 64-byte aligned or not. */
int64_t midge_kept_bytes(const midge_problem* p, int32_t what);

/* log_z, log_num [B]; entropies [B] (of A and of A ∩ y), each NULL if not asked for. Returns 0, or an error code. */
int midge_forward(const midge_problem* p, int32_t what, void* kept, double* log_z, double* log_num,
                  double* entropy_z, double* entropy_num);

/* Adds sum_b d_log_z[b] * d log_z[b] / d input + ... to the gradient buffers (same shapes as the inputs; any may be
 * NULL). d_* may be NULL for zero. An upstream gradient of 0 contributes exactly nothing. */
int midge_backward(const midge_problem* p, int32_t what, const void* kept, const double* d_log_z,
                   const double* d_log_num, const double* d_entropy_z, const double* d_entropy_num, float* d_x,
                   float* d_embedding, float* d_weight, float* d_bias);

/* Arc marginals of A after midge_forward(LOG_Z | KEEP): blank [B, T, S], lexical [B, T, S, V]; overwritten, 0 on padding. */
int midge_marginals(const midge_problem* p, int32_t what, const void* kept, float* blank, float* lexical);

/* Arc marginals of A ∩ y by label position after midge_forward(NUMERATOR | KEEP | POSITIONS): each [B, T, U + 1]: blank,
 * next label, repeat of the last label (0 without deduplication). */
int midge_chain_marginals(const midge_problem* p, int32_t what, const void* kept, float* blank, float* next, float* repeat);

/* Best path: of A, or of A ∩ y when what is NUMERATOR. weight [B]; length [B]; path_labels and path_frames
 * [B, max_length] (max_length: midge_path_length). Length 0 and weight -inf if there is no path. */
int64_t midge_path_length(const midge_problem* p, int32_t what);
int midge_best_path(const midge_problem* p, int32_t what, double* weight, int64_t* length, int64_t* path_labels,
                    int64_t* path_frames);

/* Best-path search in pieces. A search keeps the problem's weights, prepared (the caller keeps their memory; x and
 * num_frames are not read), and no streams: these come with each piece. States are numbered q * places + i: i = 0 is
 * (q, blank), i > 0 with deduplication the i-th label that enters q. One call of a search at a time. */
typedef struct midge_piece {
  int64_t batch, frames, pointer_bytes; /* B, T, and 2 or 4 */
  const float* x;                       /* [B, T, size], as the problem's */
  const int64_t *first, *count;         /* [B]: frames first..first + count of x */
  float* alpha;                         /* [B, S * places] forward weights, changed */
  double* offset;                       /* [B], what is taken off alpha is added */
  void* const* pointers;                /* [B]: [count, levels, S * places], label (or level) * S * places + source */
} midge_piece;

/* NULL for lack of memory. States more than `margin` below a frame's best get -inf. */
void* midge_search_open(const midge_problem* p, int64_t places, double margin);
int midge_search_run(void* search, const midge_piece* piece);
void midge_search_close(void* search);

/* The past of one stream, from its pointers [frames, levels, F] of 2, 4 or 8 bytes as a piece has them.
 * The symbols [frames, levels] on the way to a state: a label for each level, 0 for blank, -1 where there is none. */
void midge_trace(const void* pointers, int64_t pointer_bytes, int64_t frames, int64_t levels, int64_t states,
                 int64_t state, int32_t* symbols);
/* How many frames all states that are alive [F], at least one, have in common, and the state after them; memory [2 F]. */
void midge_agreement(const void* pointers, int64_t pointer_bytes, int64_t frames, int64_t levels, int64_t states,
                     const uint8_t* alive, int32_t* memory, int64_t* found);

/* c [m, n] = a [m, k] b [k, n] with the same bits for any number of threads. A matrix is given by its data and the
 * strides of its rows and columns; c is contiguous and overwritten. */
int midge_product(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_column, const float* b,
                  int64_t b_row, int64_t b_column, float* c);

/* "avx512", "avx2" or "portable": what this machine runs. MIDGE_VARIANT in the environment overrides it. */
const char* midge_variant(void);

#ifdef __cplusplus
}
#endif
#endif
