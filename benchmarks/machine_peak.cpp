// The rate of the processor's multiply-add instructions in operations per second, for weights of
// each type, with all operands in registers: the machine's peak, an upper bound for every product.
// And the rate of reading bytes again and again, of which as many as fit come from a cache.
// Compiled for this machine by machine_peak.py.

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
// The loops run kChains independent chains: more than latency times number of units.
constexpr int kChains = 12;

using Floats = float __attribute__((vector_size(kVectorBytes)));
using Ints = int32_t __attribute__((vector_size(kVectorBytes)));

// Keeps the values of `chains` in registers and hides them from the compiler.
#if defined(__aarch64__)
#define QUIRE_REGISTER "+w"
#else
#define QUIRE_REGISTER "+v"
#endif
template <class Vector>
void touch(Vector& value) {
  asm volatile("" : QUIRE_REGISTER(value));
}
template <class Vector>
void touch(Vector (&chains)[kChains]) {
  for (Vector& chain : chains) touch(chain);
}

// Each returns the operations of one step: two for each multiply-add.
struct OfFloats {
  Floats chains[kChains] = {};
  Floats a = Floats{} + 1.0f, b = Floats{} + 1e-9f;
  int64_t step() {
    touch(a);
    touch(b);
    for (Floats& chain : chains) chain = a * b + chain;  // contracted to one instruction
    touch(chains);
    return 2 * kChains * (kVectorBytes / 4);
  }
};

#if defined(__AMX_TILE__)
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t columns[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};

struct OfTiles {
  OfTiles() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    syscall(SYS_arch_prctl, kRequestPermission, kTileData);
    const TileShapes shapes;
    _tile_loadconfig(&shapes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }
  ~OfTiles() { _tile_release(); }
};

struct OfBf16 : OfTiles {
  int64_t step() {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
    return 2 * 4 * 16 * 16 * 32;
  }
};

struct OfInt8 : OfTiles {
  int64_t step() {
    _tile_dpbusd(0, 4, 5);
    _tile_dpbusd(1, 4, 5);
    _tile_dpbusd(2, 4, 5);
    _tile_dpbusd(3, 4, 5);
    return 2 * 4 * 16 * 16 * 64;
  }
};
#else
#if defined(__AVX512BF16__)
struct OfBf16 {
  Floats chains[kChains] = {};
  Ints a = {}, b = {};
  int64_t step() {
    touch(a);
    touch(b);
    for (Floats& chain : chains)
      chain = (Floats)_mm512_dpbf16_ps((__m512)chain, (__m512bh)a, (__m512bh)b);
    touch(chains);
    return 2 * kChains * (kVectorBytes / 2);
  }
};
#else
using OfBf16 = OfFloats;  // bf16 is widened and multiplied as float32
#endif

#if defined(__AVX2__)
struct OfInt8 {
  Ints chains[kChains] = {};
  Ints b = {};
  int64_t step() {
    touch(b);
    for (Ints& chain : chains) {
#if defined(__AVX512VNNI__)
      chain = (Ints)_mm512_dpbusd_epi32((__m512i)chain, (__m512i)b, (__m512i)b);
#elif defined(__AVX512BW__)
      chain += (Ints)_mm512_madd_epi16((__m512i)chain, (__m512i)b);
#else
      chain += (Ints)_mm256_madd_epi16((__m256i)chain, (__m256i)b);
#endif
    }
    touch(chains);
#if defined(__AVX512VNNI__)
    return 2 * kChains * kVectorBytes;
#else
    return 2 * kChains * (kVectorBytes / 2);
#endif
  }
};
#else
using OfInt8 = OfFloats;
#endif
#endif

// The best rate of several short windows, in each of which all threads work side by side: on a
// machine that others use as well, a long one is never undisturbed. `make()` returns what a thread
// does in a window, given its number and the window's; that returns how much it was.
template <class Make>
double best_rate(int num_threads, int64_t num_windows, Make make) {
  using Clock = std::chrono::steady_clock;
  struct Span {
    Clock::time_point begin, end;
    int64_t amount;
  };
  std::vector<std::vector<Span>> spans(num_threads, std::vector<Span>(num_windows));
  std::atomic<int64_t> num_arrived{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; thread++)
    threads.emplace_back([&, thread] {
      auto work = make();
      for (int64_t window = 0; window < num_windows; window++) {
        num_arrived++;
        while (num_arrived.load() < (window + 1) * num_threads) std::this_thread::yield();
        Span& span = spans[thread][window];
        span.begin = Clock::now();
        span.amount = work(thread, window);
        span.end = Clock::now();
      }
    });
  for (std::thread& thread : threads) thread.join();
  double best = 0;
  for (int64_t window = 1; window < num_windows; window++) {  // the first is a warm-up
    Span all = spans[0][window];
    for (int thread = 1; thread < num_threads; thread++) {
      const Span& span = spans[thread][window];
      all = {std::min(all.begin, span.begin), std::max(all.end, span.end), all.amount + span.amount};
    }
    const std::chrono::duration<double> elapsed = all.end - all.begin;
    best = std::max(best, static_cast<double>(all.amount) / elapsed.count());
  }
  return best;
}

template <class Type>
double operations_per_s(int num_threads, int64_t num_windows, int64_t num_steps) {
  return best_rate(num_threads, num_windows, [=] {
    return [=](int, int64_t) {
      Type type;  // here, so that it stays in registers
      int64_t sum = 0;
      for (int64_t step = 0; step < num_steps; step++) sum += type.step();
      return sum;
    };
  });
}

// Reads `num_bytes`, a multiple of what a step reads, and keeps nothing.
void read_once(const char* data, int64_t num_bytes) {
  Ints chains[kChains] = {};
  for (int64_t at = 0; at < num_bytes; at += kChains * kVectorBytes) {
    const auto* values = reinterpret_cast<const Ints*>(data + at);
    for (int chain = 0; chain < kChains; chain++) chains[chain] |= values[chain];
  }
  touch(chains);
}

// Reads `num_bytes` again and again, each thread its own part: in a window a piece of it that
// follows the last one, or all of it several times where it is smaller.
double bytes_per_s(const char* data, int64_t num_bytes, int num_threads, int64_t num_windows) {
  constexpr int64_t kStep = kChains * kVectorBytes, kWindow = int64_t{16} << 20;
  const int64_t part = num_bytes / num_threads;
  const int64_t piece = std::min(part, kWindow / num_threads) / kStep * kStep;
  const int64_t num_pieces = part / piece;
  const int64_t repeats = std::max<int64_t>(1, kWindow / num_threads / piece);
  return best_rate(num_threads, num_windows, [=] {
    return [=](int thread, int64_t window) {
      const char* begin = data + (thread * num_pieces + window % num_pieces) * piece;
      for (int64_t pass = 0; pass < repeats; pass++) read_once(begin, piece);
      return repeats * piece;
    };
  });
}

}  // namespace

// `type`: 0 float32, 1 bf16, 2 int8.
extern "C" double quire_peak(int type, int num_threads, int64_t num_windows, int64_t num_steps) {
  if (type == 0) return operations_per_s<OfFloats>(num_threads, num_windows, num_steps);
  if (type == 1) return operations_per_s<OfBf16>(num_threads, num_windows, num_steps);
  return operations_per_s<OfInt8>(num_threads, num_windows, num_steps);
}

// `data` begins at a page's boundary and has `num_bytes`.
extern "C" double quire_read(const char* data, int64_t num_bytes, int num_threads,
                             int64_t num_windows) {
  return bytes_per_s(data, num_bytes, num_threads, num_windows);
}
