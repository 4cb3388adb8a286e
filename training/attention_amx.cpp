// Causal attention of packed rows and its gradient, for heads of 32 bf16 values, with AMX tiles.
//
// A query sees the keys of its own row up to itself. Probabilities are not kept: the gradient
// computes them again from the scores and the logarithm of their sum (Dao et al., 2022).
// Flat axes: q, out and their gradients [N, H, 32], k, v and their gradients [N, K, 32], all bf16;
// log_sums [H, N] fp32, to the base of two. A row has a multiple of 16 tokens.
//
// The gradient works on transposed blocks of 32 keys by 32 queries, so that probabilities and their
// gradients are left operands of the products for keys and values as they are computed, and pairs
// of their rows are right operands of the product for queries.

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace {

using bf16 = uint16_t;
constexpr int64_t kHead = 32;   // values of a head
constexpr int64_t kBlock = 32;  // keys and queries of a block
constexpr int64_t kTile = 16;   // rows of a tile

// The intrinsics of tiles do not tell the compiler which memory they read and write.
inline void fence(const void* at) { __asm__ volatile("" ::"r"(at) : "memory"); }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Eight tiles of 16 rows of 64 bytes. Libraries configure tiles for themselves whenever they use
// them.
class Tiles {
 public:
  Tiles() {
    const TileConfig config;
    fence(&config);
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : data_(static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64))) {
    std::memset(data_, 0, size * sizeof(T));
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator T*() { return data_; }

 private:
  T* data_;
};

// 2 to the power of x, for x <= 0 or close to it, and of -64 below that; relative error below 3e-7.
inline __m512 exp2(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-64.f));  // no subnormal products, which are slow
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 part = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(1.3333558e-3f);
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.6181291e-3f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.5504109e-2f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.4022651e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.9314718e-1f));
  y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(y, whole);
}

inline __m512i widened(const bf16* x) {
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16);
}

inline __m512 load(const bf16* x) { return _mm512_castsi512_ps(widened(x)); }

inline __m256i narrowed(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

inline void store(bf16* to, __m512 x) { _mm256_storeu_si256((__m256i*)to, narrowed(x)); }

// Copies a head's rows from the flat axis; rows that are missing from a block stay as they are.
void gather(bf16* to, const bf16* from, int64_t stride, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * kHead, from + row * stride, kHead * sizeof(bf16));
  }
}

// [16, 32] becomes 16 rows of 16 pairs: the right operand of a product with the transpose.
void transpose_pairs(uint32_t* to, const bf16* from) {
  const uint32_t* pairs = (const uint32_t*)from;
  for (int64_t row = 0; row < kTile; ++row) {
    for (int64_t pair = 0; pair < kTile; ++pair) to[pair * kTile + row] = pairs[row * kTile + pair];
  }
}

// [32, 32] becomes two tiles, of 16 columns each, with rows in pairs: the right operand.
void interleave(bf16* to, const bf16* from) {
  for (int64_t pair = 0; pair < kTile; ++pair) {
    const bf16* first = from + 2 * pair * kHead;
    const bf16* second = first + kHead;
    for (int64_t column = 0; column < kHead; ++column) {
      bf16* at = to + (column / kTile) * 512 + pair * 32 + (column % kTile) * 2;
      at[0] = first[column];
      at[1] = second[column];
    }
  }
}

struct Shape {
  int64_t num_tokens, num_heads, num_kv, group;
  float scale, scale2;  // of scores, and to the base of two
};

Shape shape_of(int64_t num_tokens, int64_t num_heads, int64_t num_kv) {
  const float scale = 1.f / std::sqrt(float(kHead));
  return {num_tokens, num_heads, num_kv, num_heads / num_kv, scale, scale * float(M_LOG2E)};
}

void forward_head(const Shape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* out,
                  float* log_sums, int64_t start, int64_t length, int64_t kv) {
  const int64_t padded = (length + kBlock - 1) / kBlock * kBlock;
  const int64_t kv_stride = shape.num_kv * kHead, q_stride = shape.num_heads * kHead;
  Buffer<bf16> keys(padded * kHead), values(padded * kHead), pairs(padded * kHead);
  Buffer<uint32_t> turned(padded * kTile);
  gather(keys, k + start * kv_stride + kv * kHead, kv_stride, length);
  gather(values, v + start * kv_stride + kv * kHead, kv_stride, length);
  for (int64_t row = 0; row < padded; row += kTile) {
    transpose_pairs(turned + row * kTile, keys + row * kHead);
  }
  for (int64_t row = 0; row < padded; row += kBlock) {
    interleave(pairs + row * kHead, values + row * kHead);
  }
  Buffer<float> scores(kTile * padded), mixed(kTile * kHead);
  Buffer<bf16> probs(kTile * padded);
  float inverse[kTile];
  const __m512 scale2 = _mm512_set1_ps(shape.scale2);
  for (int64_t head = kv * shape.group; head < (kv + 1) * shape.group; ++head) {
    for (int64_t first = 0; first < length; first += kTile) {
      const int64_t visible = first + kTile, blocks = (visible + kBlock - 1) / kBlock;
      const bf16* queries = q + (start + first) * q_stride + head * kHead;
      fence(turned);
      _tile_loadd(4, queries, q_stride * sizeof(bf16));
      for (int64_t key = 0; key < visible; key += kTile) {
        _tile_zero(0);
        _tile_loadd(6, turned + key * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stored(0, scores + key, padded * sizeof(float));
      }
      fence(scores);
      for (int64_t row = 0; row < kTile; ++row) {
        float* line = scores + row * padded;
        const __mmask16 seen = __mmask16((2u << row) - 1);
        const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        __m512 high = _mm512_mask_loadu_ps(lowest, seen, line + first);
        _mm512_storeu_ps(line + first, high);
        for (int64_t key = 0; key < first; key += kTile) {
          high = _mm512_max_ps(high, _mm512_loadu_ps(line + key));
        }
        const float top = _mm512_reduce_max_ps(high) * shape.scale2;
        const __m512 minus_top = _mm512_set1_ps(-top);
        __m512 sum = _mm512_setzero_ps();
        bf16* to = probs + row * padded;
        for (int64_t key = 0; key < first; key += kTile) {
          const __m512 p = exp2(_mm512_fmadd_ps(_mm512_loadu_ps(line + key), scale2, minus_top));
          sum = _mm512_add_ps(sum, p);
          store(to + key, p);
        }
        const __m512 last = exp2(_mm512_fmadd_ps(_mm512_loadu_ps(line + first), scale2, minus_top));
        sum = _mm512_add_ps(sum, _mm512_maskz_mov_ps(seen, last));
        store(to + first, _mm512_maskz_mov_ps(seen, last));
        if (visible < blocks * kBlock) store(to + visible, _mm512_setzero_ps());
        const float total = _mm512_reduce_add_ps(sum);
        inverse[row] = 1.f / total;
        log_sums[head * shape.num_tokens + start + first + row] = top + std::log2(total);
      }
      fence(probs);
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t block = 0; block < blocks; ++block) {
        _tile_loadd(4, probs + block * kBlock, padded * sizeof(bf16));
        _tile_loadd(6, pairs + block * kBlock * kHead, 64);
        _tile_loadd(7, pairs + block * kBlock * kHead + 512, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
      }
      _tile_stored(0, mixed, kHead * sizeof(float));
      _tile_stored(1, mixed + kTile, kHead * sizeof(float));
      fence(mixed);
      for (int64_t row = 0; row < kTile; ++row) {
        bf16* to = out + (start + first + row) * q_stride + head * kHead;
        const __m512 factor = _mm512_set1_ps(inverse[row]);
        for (int64_t half = 0; half < kHead; half += kTile) {
          store(to + half, _mm512_mul_ps(_mm512_loadu_ps(mixed + row * kHead + half), factor));
        }
      }
    }
  }
}

// Products of two [32, 32] left tiles (rows `stride` values apart) and right tiles, into or onto
// fp32 [32, 32].
template <bool kAdd>
void block_product(float* to, const bf16* left, int64_t stride, const void* right_first,
                   const void* right_second) {
  constexpr int64_t kRow = kBlock * sizeof(float);
  fence(left);
  if (kAdd) {
    _tile_loadd(0, to, kRow);
    _tile_loadd(1, to + kTile, kRow);
    _tile_loadd(2, to + kTile * kBlock, kRow);
    _tile_loadd(3, to + kTile * kBlock + kTile, kRow);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  _tile_loadd(4, left, stride * sizeof(bf16));
  _tile_loadd(5, left + kTile * stride, stride * sizeof(bf16));
  _tile_loadd(6, right_first, 64);
  _tile_loadd(7, right_second, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  _tile_stored(0, to, kRow);
  _tile_stored(1, to + kTile, kRow);
  _tile_stored(2, to + kTile * kBlock, kRow);
  _tile_stored(3, to + kTile * kBlock + kTile, kRow);
  fence(to);
}

struct alignas(64) QueryBlock {
  bf16 q[kBlock * kHead], dy[kBlock * kHead];
  bf16 q_pairs[kBlock * kHead], dy_pairs[kBlock * kHead];
  uint32_t q_turned[2 * 256], dy_turned[2 * 256];
  float log_sums[kBlock], delta[kBlock];
};

struct alignas(64) ScoreBlock {  // transposed: 32 keys by 32 queries
  float scores[kBlock * kBlock], dprobs[kBlock * kBlock];
  bf16 probs[kBlock * kBlock], dscores[kBlock * kBlock];
  bf16 dscores_pairs[kBlock * kBlock];
};

void score_gradient(ScoreBlock& block, const QueryBlock& queries, bool diagonal, __m512 scale2) {
  for (int64_t half = 0; half < 2; ++half) {
    const __m512 sums = _mm512_load_ps(queries.log_sums + half * kTile);
    const __m512 delta = _mm512_load_ps(queries.delta + half * kTile);
    for (int64_t key = 0; key < kBlock; key += 2) {
      __m256i ds[2];
      for (int64_t odd = 0; odd < 2; ++odd) {
        const int64_t at = (key + odd) * kBlock + half * kTile;
        __mmask16 seen = 0xffff;
        if (diagonal) {  // the query's place in the block is at least the key's
          const int64_t behind = key + odd - half * kTile;
          seen = behind <= 0 ? 0xffff : behind >= kTile ? 0 : __mmask16(0xffffu << behind);
        }
        const __m512 s = _mm512_load_ps(block.scores + at);
        const __m512 p = _mm512_maskz_mov_ps(seen, exp2(_mm512_fmsub_ps(s, scale2, sums)));
        const __m512 dp = _mm512_load_ps(block.dprobs + at);
        store(block.probs + at, p);
        ds[odd] = narrowed(_mm512_mul_ps(p, _mm512_sub_ps(dp, delta)));
        _mm256_storeu_si256((__m256i*)(block.dscores + at), ds[odd]);
      }
      const __m512i pairs = _mm512_or_si512(_mm512_cvtepu16_epi32(ds[0]),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(ds[1]), 16));
      _mm512_store_si512(block.dscores_pairs + half * 512 + key / 2 * 32, pairs);
    }
  }
}

void backward_head(const Shape& shape, const bf16* q, const bf16* k, const bf16* v,
                   const bf16* out, const float* log_sums, const bf16* dy, bf16* dq, bf16* dk,
                   bf16* dv, int64_t start, int64_t length, int64_t kv) {
  const int64_t padded = (length + kBlock - 1) / kBlock * kBlock;
  const int64_t kv_stride = shape.num_kv * kHead, q_stride = shape.num_heads * kHead;
  Buffer<bf16> keys(padded * kHead), values(padded * kHead), keys_turned(padded * kHead);
  Buffer<float> dkeys(padded * kHead), dvalues(padded * kHead), dqueries(kBlock * kHead);
  gather(keys, k + start * kv_stride + kv * kHead, kv_stride, length);
  gather(values, v + start * kv_stride + kv * kHead, kv_stride, length);
  for (int64_t block = 0; block < padded; block += kBlock) {  // [32 values, 32 keys] each
    for (int64_t key = 0; key < kBlock; ++key) {
      for (int64_t value = 0; value < kHead; ++value) {
        keys_turned[(block + value) * kBlock + key] = keys[(block + key) * kHead + value];
      }
    }
  }
  const __m512 scale2 = _mm512_set1_ps(shape.scale2), scale = _mm512_set1_ps(shape.scale);
  QueryBlock queries;
  ScoreBlock scores;
  for (int64_t head = kv * shape.group; head < (kv + 1) * shape.group; ++head) {
    for (int64_t first = 0; first < length; first += kBlock) {
      const int64_t rows = length - first < kBlock ? length - first : kBlock;
      const int64_t origin = (start + first) * q_stride + head * kHead;
      if (rows < kBlock) std::memset(&queries, 0, sizeof queries);
      gather(queries.q, q + origin, q_stride, rows);
      gather(queries.dy, dy + origin, q_stride, rows);
      for (int64_t row = 0; row < kBlock; ++row) {
        if (row >= rows) {  // no probability
          queries.log_sums[row] = std::numeric_limits<float>::infinity();
          continue;
        }
        const bf16 *ours = out + origin + row * q_stride, *theirs = queries.dy + row * kHead;
        __m512 sum = _mm512_mul_ps(load(ours), load(theirs));
        sum = _mm512_fmadd_ps(load(ours + kTile), load(theirs + kTile), sum);
        queries.delta[row] = _mm512_reduce_add_ps(sum);
        queries.log_sums[row] = log_sums[head * shape.num_tokens + start + first + row];
      }
      for (int64_t half = 0; half < 2; ++half) {
        transpose_pairs(queries.q_turned + half * 256, queries.q + half * kTile * kHead);
        transpose_pairs(queries.dy_turned + half * 256, queries.dy + half * kTile * kHead);
      }
      interleave(queries.q_pairs, queries.q);
      interleave(queries.dy_pairs, queries.dy);
      std::memset(dqueries, 0, kBlock * kHead * sizeof(float));
      for (int64_t key = 0; key <= first; key += kBlock) {
        block_product<false>(scores.scores, keys + key * kHead, kHead, queries.q_turned,
                             queries.q_turned + 256);
        block_product<false>(scores.dprobs, values + key * kHead, kHead, queries.dy_turned,
                             queries.dy_turned + 256);
        score_gradient(scores, queries, key == first, scale2);
        block_product<true>(dvalues + key * kHead, scores.probs, kBlock, queries.dy_pairs,
                            queries.dy_pairs + 512);
        block_product<true>(dkeys + key * kHead, scores.dscores, kBlock, queries.q_pairs,
                            queries.q_pairs + 512);
        block_product<true>(dqueries, keys_turned + key * kHead, kBlock, scores.dscores_pairs,
                            scores.dscores_pairs + 512);
      }
      for (int64_t row = 0; row < rows; ++row) {
        alignas(64) float line[kHead];
        for (int64_t value = 0; value < kHead; ++value) line[value] = dqueries[value * kBlock + row];
        for (int64_t half = 0; half < kHead; half += kTile) {
          store(dq + origin + row * q_stride + half,
                _mm512_mul_ps(_mm512_load_ps(line + half), scale));
        }
      }
    }
  }
  for (int64_t row = 0; row < length; ++row) {
    const int64_t to = (start + row) * kv_stride + kv * kHead;
    for (int64_t half = 0; half < kHead; half += kTile) {
      const int64_t from = row * kHead + half;
      store(dk + to + half, _mm512_mul_ps(_mm512_loadu_ps(dkeys + from), scale));
      store(dv + to + half, _mm512_loadu_ps(dvalues + from));
    }
  }
}

}  // namespace

extern "C" {

// Asks the kernel for tiles; whether this process may use them.
bool attention_available() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  __builtin_cpu_init();
  return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

void attention_forward(const bf16* q, const bf16* k, const bf16* v, bf16* out, float* log_sums,
                       const int64_t* starts, const int64_t* lengths, int64_t num_rows,
                       int64_t num_tokens, int64_t num_heads, int64_t num_kv) {
  const Tiles tiles;
  const Shape shape = shape_of(num_tokens, num_heads, num_kv);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t kv = 0; kv < num_kv; ++kv) {
      forward_head(shape, q, k, v, out, log_sums, starts[row], lengths[row], kv);
    }
  }
}

void attention_backward(const bf16* q, const bf16* k, const bf16* v, const bf16* out,
                        const float* log_sums, const bf16* dy, bf16* dq, bf16* dk, bf16* dv,
                        const int64_t* starts, const int64_t* lengths, int64_t num_rows,
                        int64_t num_tokens, int64_t num_heads, int64_t num_kv) {
  const Tiles tiles;
  const Shape shape = shape_of(num_tokens, num_heads, num_kv);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t kv = 0; kv < num_kv; ++kv) {
      backward_head(shape, q, k, v, out, log_sums, dy, dq, dk, dv, starts[row], lengths[row], kv);
    }
  }
}

}  // extern "C"
