// Vectors of floats through gcc's vector extensions, so that one source serves every instruction set.
//
// Everything lives in an unnamed namespace and nothing here (nor in the other headers of a variant) uses standard
// library templates: the variants are compiled with different -m flags and linked together, and a shared inline
// function compiled for AVX-512 must never be picked for a machine without it.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(MIDGE_VW)  // given by the build: tests run the AVX-512 code's shape on machines without it
#elif defined(__AVX512F__)
#define MIDGE_VW 16
#elif defined(__AVX2__)
#define MIDGE_VW 8
#else
#define MIDGE_VW 4
#endif

#define MIDGE_INLINE inline __attribute__((always_inline))

namespace {

typedef int64_t i64;
constexpr int VW = MIDGE_VW;       // floats in a vector
constexpr int PW = 2 * VW;         // width of a packed panel: two vectors, so that 6 rows take 12 accumulators
constexpr float NEG_INF = -__builtin_inff();

typedef float vf __attribute__((vector_size(4 * MIDGE_VW)));
typedef int32_t vi __attribute__((vector_size(4 * MIDGE_VW)));
typedef float vfu __attribute__((vector_size(4 * MIDGE_VW), aligned(4), may_alias));

// As many doubles as floats; gcc splits them over two registers.
typedef double vd __attribute__((vector_size(8 * MIDGE_VW)));
typedef double vdu __attribute__((vector_size(8 * MIDGE_VW), aligned(8), may_alias));
constexpr double NEG_INF_D = -__builtin_inf();
MIDGE_INLINE vd loadd(const double* p) { return *(const vdu*)p; }
MIDGE_INLINE void stored(double* p, vd x) { *(vdu*)p = x; }

MIDGE_INLINE vf load(const float* p) { return *(const vfu*)p; }
MIDGE_INLINE void store(float* p, vf x) { *(vfu*)p = x; }
MIDGE_INLINE vf splat(float x) { return x - (vf){}; }
MIDGE_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }
MIDGE_INLINE vd splatd(double x) { return x - (vd){}; }
MIDGE_INLINE vd vmaxd(vd a, vd b) { return a > b ? a : b; }
MIDGE_INLINE vd vmind(vd a, vd b) { return a < b ? a : b; }
MIDGE_INLINE vd widen(vf x) { return __builtin_convertvector(x, vd); }
MIDGE_INLINE vf narrow(vd x) { return __builtin_convertvector(x, vf); }
MIDGE_INLINE vf vmin(vf a, vf b) { return a < b ? a : b; }
MIDGE_INLINE float smax(float a, float b) { return a > b ? a : b; }
MIDGE_INLINE i64 imin(i64 a, i64 b) { return a < b ? a : b; }
MIDGE_INLINE i64 imax(i64 a, i64 b) { return a > b ? a : b; }
MIDGE_INLINE i64 round_up(i64 a, i64 b) { return (a + b - 1) / b * b; }
MIDGE_INLINE i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// Horizontal sum and maximum in a fixed tree order.
MIDGE_INLINE float hsum(vf x) {
  float a[VW];
  __builtin_memcpy(a, &x, sizeof a);
  for (int n = VW / 2; n; n /= 2)
    for (int i = 0; i < n; i++) a[i] += a[i + n];
  return a[0];
}
MIDGE_INLINE float hmax(vf x) {
  float a[VW];
  __builtin_memcpy(a, &x, sizeof a);
  for (int n = VW / 2; n; n /= 2)
    for (int i = 0; i < n; i++) a[i] = smax(a[i], a[i + n]);
  return a[0];
}

// e^x, relative error below 1e-7; exactly 0 below -87.3 (so also for -inf); saturates at e^88.
// x = n ln 2 + r, |r| <= ln(2)/2; e^r by a degree 6 polynomial; 2^n by adding to the exponent bits.
MIDGE_INLINE vf vexp(vf x) {
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer kept in the low mantissa bits
  vf c = vmin(vmax(x, splat(-87.33f)), splat(88.f));
  vf t = c * splat(1.44269504088896341f) + magic;
  vf n = t - magic;
  vf r = c - n * splat(0.693359375f) + n * splat(2.12194440e-4f);
  vf p = splat(0.001381459639f);
  p = p * r + splat(0.008368717091f);
  p = p * r + splat(0.041668388093f);
  p = p * r + splat(0.166665206294f);
  p = p * r + splat(0.499999934476f);
  p = p * (r * r) + r;
  p = p + splat(1.f);
  vi bits = (vi)t << 23;  // the magic's own bits are shifted out
  vf y = (vf)((vi)p + bits);
  return x < splat(-87.33f) ? splat(0.f) : y;
}

// log x for normal x >= 0; log 0 = -inf. Absolute error about 1e-7 near 1, relative elsewhere.
// x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m - 1) / (m + 1)).
MIDGE_INLINE vf vlog(vf x) {
  vi bits = (vi)x;
  vi e = (bits - 0x3f3504f3) >> 23;
  vf m = (vf)(bits - (e << 23));
  vf s = (m - splat(1.f)) / (m + splat(1.f));
  vf u = s * s;
  vf q = splat(0.149365385307f) * u + splat(0.199887477057f);
  q = q * u + splat(0.333333883594f);
  vf ef = __builtin_convertvector(e, vf);
  vf y = ef * splat(0.693359375f) + (s * splat(2.f) * (u * q) + (s * splat(2.f) - ef * splat(2.12194440e-4f)));
  return x < splat(1.17549435e-38f) ? splat(NEG_INF) : y;
}

MIDGE_INLINE float sexp(float x) { return vexp(splat(x))[0]; }
MIDGE_INLINE float slog(float x) { return vlog(splat(x))[0]; }

// log(e^a + e^b); -inf when both are.
MIDGE_INLINE vf vlse2(vf a, vf b) {
  vf m = vmax(a, b), l = vmin(a, b);
  vf d = m == splat(NEG_INF) ? splat(0.f) : l - m;
  return m + vlog(splat(1.f) + vexp(d));
}
MIDGE_INLINE float slse2(float a, float b) { return vlse2(splat(a), splat(b))[0]; }

// tanh by e^{2x}, for the rare tiles outside the range of the product form. Absolute error 2e-7.
MIDGE_INLINE vf vtanh(vf x) {
  vf z = vexp(vmin(vmax(x, splat(-20.f)), splat(20.f)) * splat(2.f));
  return splat(1.f) - splat(2.f) / (splat(1.f) + z);
}

// -log(1 + e^x) = -softplus(x), never overflowing.
MIDGE_INLINE vf neg_softplus(vf x) {
  vf e = vexp(x > splat(0.f) ? -x : x);
  return -(vmax(x, splat(0.f)) + (e < splat(1e-3f) ? e - splat(0.5f) * e * e : vlog(splat(1.f) + e)));
}
MIDGE_INLINE float sigmoid(float x) {
  float e = sexp(x > 0 ? -x : x);
  return x > 0 ? 1.f / (1.f + e) : e / (1.f + e);
}

// Maximum of p[0..n).
MIDGE_INLINE float max_of(const float* p, i64 n) {
  vf m = splat(NEG_INF);
  i64 i = 0;
  for (; i + VW <= n; i += VW) m = vmax(m, load(p + i));
  float r = hmax(m);
  for (; i < n; i++) r = smax(r, p[i]);
  return r;
}

// Loads n < VW floats; the other lanes are `fill`. For the ragged ends of rows (padding may hold anything).
MIDGE_INLINE vf load_part(const float* p, i64 n, float fill) {
  float a[VW];
  for (int i = 0; i < VW; i++) a[i] = i < n ? p[i] : fill;
  return load(a);
}
MIDGE_INLINE void store_part(float* p, vf x, i64 n) {
  float a[VW];
  __builtin_memcpy(a, &x, sizeof a);
  for (i64 i = 0; i < n; i++) p[i] = a[i];
}

// The sum of e^(p[i] - max) over p[0..n), and the maximum; 0 for an empty or all -inf row.
inline float sum_exp(const float* p, i64 n, float& max) {
  max = max_of(p, n);
  if (max == NEG_INF) return 0.f;
  vf s = splat(0.f), vm = splat(max);
  i64 i = 0;
  for (; i + VW <= n; i += VW) s += vexp(load(p + i) - vm);
  if (i < n) s += vexp(load_part(p + i, n - i, NEG_INF) - vm);
  return hsum(s);
}

// log sum exp of p[0..n); -inf for an empty or all -inf row.
inline float lse_of(const float* p, i64 n) {
  float max;
  const float s = sum_exp(p, n, max);
  return max == NEG_INF ? NEG_INF : max + slog(s);
}

}  // namespace
