// Owns vectors of float32: loads, stores, bf16, masks of lanes, exp, reductions.
// Must not know what is computed with them. One library is compiled for each instruction set, so
// the width is a constant here and nothing is chosen at run time. Written with the vector
// extensions that GCC and Clang share; intrinsics are used only where the compilers do not find the
// instruction.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace quire {

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // floats in a vector
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;  // SSE2, NEON and other baselines
#endif

using F32 = float __attribute__((vector_size(kWidth * 4)));
using I32 = int32_t __attribute__((vector_size(kWidth * 4)));
using U16 = uint16_t __attribute__((vector_size(kWidth * 2)));
using bf16 = uint16_t;  // the upper half of a float32

// x - 0 is x for every x, -0 included, so that the compiler reduces it to the broadcast.
inline F32 broadcast(float value) { return value - F32{}; }
inline I32 broadcast(int32_t value) { return value - I32{}; }

// ---- memory: unaligned; load_n and store_n touch the first n lanes only, 0 <= n
template <class Vector>
inline Vector load_as(const void* source) {
  Vector vector;
  std::memcpy(&vector, source, sizeof(vector));
  return vector;
}

inline F32 load(const float* source) { return load_as<F32>(source); }
inline void store(float* target, F32 value) { std::memcpy(target, &value, sizeof(value)); }

inline F32 load_n(const float* source, int64_t n) {
  if (n >= kWidth) return load(source);
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), source);
#else
  F32 value = {};
  std::memcpy(&value, source, static_cast<size_t>(n) * sizeof(float));
  return value;
#endif
}

inline void store_n(float* target, F32 value, int64_t n) {
  if (n >= kWidth) return store(target, value);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(target, static_cast<__mmask16>((1u << n) - 1), value);
#else
  std::memcpy(target, &value, static_cast<size_t>(n) * sizeof(float));
#endif
}

// ---- bf16: widening is exact; narrowing rounds to nearest even and keeps a NaN a NaN
inline float to_f32(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

inline bf16 to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40u);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline F32 to_f32(U16 value) {
#if defined(__AVX512F__)
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(value)), 16));
#elif defined(__AVX2__)
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(value)), 16));
#else
  return reinterpret_cast<F32>(__builtin_convertvector(value, I32) << 16);
#endif
}

inline U16 to_bf16(F32 value) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<U16>(_mm512_cvtneps_pbh(value));  // numbers below 2^-126 become zero
#endif
  const I32 bits = reinterpret_cast<I32>(value);
  const I32 rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const I32 is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const I32 kept = ((is_nan ? (bits | 0x400000) : rounded) >> 16) & 0xffff;
#if defined(__AVX512F__)
  return reinterpret_cast<U16>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(kept)));
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(kept), __m256i{});
  return reinterpret_cast<U16>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  return __builtin_convertvector(kept, U16);
#endif
}

inline F32 load(const bf16* source) { return to_f32(load_as<U16>(source)); }
inline void store(bf16* target, F32 value) {
  const U16 narrow = to_bf16(value);
  std::memcpy(target, &narrow, sizeof(narrow));
}

// ---- arithmetic. fma rounds once where the machine has the instruction
inline F32 fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
// Returns the second argument where one of the two is a NaN, as x86 does.
inline F32 max(F32 a, F32 b) { return a > b ? a : b; }
inline F32 min(F32 a, F32 b) { return a < b ? a : b; }

// ---- lanes: bit i of `lanes` stands for lane i
inline F32 select(uint32_t lanes, F32 where_set, F32 where_clear) {
#if defined(__AVX512F__)
  return _mm512_mask_mov_ps(where_clear, static_cast<__mmask16>(lanes), where_set);
#else
  I32 bit;
  for (int i = 0; i < kWidth; i++) bit[i] = 1 << i;
  return (broadcast(static_cast<int32_t>(lanes)) & bit) != 0 ? where_set : where_clear;
#endif
}

inline float reduce_add(F32 value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(value);
#else
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) value[i] += value[i + width];
  return value[0];
#endif
}

inline float reduce_max(F32 value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(value);
#else
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++)
      value[i] = value[i] > value[i + width] ? value[i] : value[i + width];
  return value[0];
#endif
}

// ---- functions. exp: relative error below 2e-7 where the result is a normal float; 0 below -87.3,
// +inf above 88.72 (Cody and Waite's reduction, then the polynomial of Cephes' expf)
inline F32 exp(F32 x) {
  const F32 magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
#if defined(__AVX512F__)
  const F32 clamped = min(max(x, broadcast(-87.3f)), broadcast(90.0f));  // scaling overflows to infinity
#else
  const F32 clamped = min(max(x, broadcast(-87.3f)), broadcast(88.72f));
#endif
  const F32 n = (fma(clamped, broadcast(1.44269504f), magic)) - magic;
  F32 r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  F32 p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p * r, r, r) + 1.0f;
#if defined(__AVX512F__)
  // Compares "not less" so that a NaN stays one; max and min above would have lost it.
  const __mmask16 stays = _mm512_cmp_ps_mask(x, broadcast(-87.3f), _CMP_NLT_UQ);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(_mm512_maskz_scalef_ps(stays, p, n), is_nan, x);
#else
  // 2^n in two factors, so that n = 128 stays representable
  const I32 whole = __builtin_convertvector(n, I32);
  const I32 half = whole >> 1;
  const F32 scale_a = reinterpret_cast<F32>((half + 127) << 23);
  const F32 scale_b = reinterpret_cast<F32>((whole - half + 127) << 23);
  const F32 result = p * scale_a * scale_b;
  const F32 low = x < -87.3f ? broadcast(0.0f) : result;
  const F32 high = x > 88.72f ? broadcast(INFINITY) : low;
  return x == x ? high : x;
#endif
}

inline F32 sigmoid(F32 x) { return 1.0f / (1.0f + exp(-x)); }
inline F32 silu(F32 x) { return x * sigmoid(x); }
// tanh through exp(-2|x|), which cannot overflow; below 1e-7 absolute error
inline F32 tanh(F32 x) {
  const F32 magnitude = x < 0.0f ? -x : x;
  const F32 e = exp(-2.0f * magnitude);
  const F32 t = (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -t : t;
}
// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the "tanh" form of GELU
inline F32 gelu_tanh(F32 x) {
  const F32 inner = 0.7978845608f * fma(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanh(inner));
}

}  // namespace quire
