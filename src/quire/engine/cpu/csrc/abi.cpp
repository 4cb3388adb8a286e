#include "abi.h"

#include <cstring>
#include <stdexcept>
#include <system_error>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "simd.h"

#if !defined(QUIRE_ISA)
#error "compile with -DQUIRE_ISA=\"name\" (setup.py does)"
#endif

namespace {

#if defined(__x86_64__)
struct Registers {
  uint32_t eax, ebx, ecx, edx;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r = {0, 0, 0, 0};
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(uint32_t word, int index) { return (word >> index) & 1u; }

// The register states that the operating system saves (XCR0); 0 without XSAVE.
uint64_t saved_states() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

const char* avx2_reason() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
  if (!bit(one.ecx, 12) || !bit(one.ecx, 29) || !bit(seven.ebx, 5))
    return "the processor lacks AVX2, FMA or F16C";
  if ((saved_states() & 0x6) != 0x6) return "the operating system does not save AVX registers";
  return nullptr;
}

const char* avx512_reason() {
  if (const char* reason = avx2_reason()) return reason;
  const Registers seven = cpuid(7, 0);
  const bool has_base = bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) &&
                        bit(seven.ebx, 31);
  if (!has_base || !bit(seven.ecx, 11)) return "the processor lacks AVX-512 F, BW, DQ, VL or VNNI";
  if ((saved_states() & 0xe6) != 0xe6) return "the operating system does not save AVX-512 registers";
  return nullptr;
}

const char* avx512_bf16_reason() {
  if (const char* reason = avx512_reason()) return reason;
  return bit(cpuid(7, 1).eax, 5) ? nullptr : "the processor lacks AVX-512 BF16";
}

const char* amx_reason() {
  if (const char* reason = avx512_bf16_reason()) return reason;
  const Registers seven = cpuid(7, 0);
  if (!bit(seven.edx, 22) || !bit(seven.edx, 24) || !bit(seven.edx, 25))
    return "the processor lacks AMX-BF16 or AMX-INT8";
  if ((saved_states() & 0x60000) != 0x60000)
    return "the operating system does not save AMX registers";
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
    return "the operating system refuses the AMX registers (arch_prctl)";
  return nullptr;
#else
  return "AMX registers are requested on Linux only";
#endif
}
#endif

// The sum of the whole 8-byte words that start at `bytes`.
uint64_t sum_of_words(const uint8_t* bytes, int64_t num_bytes) {
  uint64_t sum = 0;
  for (int64_t i = 0; i + 8 <= num_bytes; i += 8) sum += quire::load_as<uint64_t>(bytes + i);
  return sum;
}

}  // namespace

std::string& quire::failure_text() {
  static thread_local std::string text;
  return text;
}

int32_t quire_abi_version() { return quire::kAbiVersion; }
const char* quire_isa() { return QUIRE_ISA; }

const char* quire_unsupported_reason(const char* isa) {
  if (std::strcmp(isa, "portable") == 0) return nullptr;
#if defined(__x86_64__)
  if (std::strcmp(isa, "avx2") == 0) return avx2_reason();
  if (std::strcmp(isa, "avx512") == 0) return avx512_reason();
  if (std::strcmp(isa, "avx512_bf16") == 0) return avx512_bf16_reason();
  if (std::strcmp(isa, "amx") == 0) return amx_reason();
#endif
  return "this processor family has no such instruction set";
}

quire::Team* quire_team_create(int32_t num_threads) {
  try {
    return new quire::Team(num_threads);
  } catch (const std::system_error&) {
    return nullptr;
  }
}

void quire_team_destroy(quire::Team* team) { delete team; }

int32_t quire_team_fail(quire::Team* team, int32_t failing, const char* text) {
  return quire::guarded([&] {
    team->run([&](int thread) {
      team->share(thread, 8, 1, [](int64_t, int64_t) {});
      team->barrier(thread);
      team->share(thread, 8, 1, [](int64_t, int64_t) {});
      if (thread == failing && text == nullptr) throw std::bad_alloc();
      if (thread == failing) throw std::runtime_error(text);
      team->barrier(thread);
    });
  });
}

const char* quire_failure_text() { return quire::failure_text().c_str(); }

int64_t quire_panel_bytes(int32_t weight_type, int64_t depth) {
  const auto type = static_cast<quire::WeightType>(weight_type);
  return quire::padded_depth(type, depth) * quire::weight_bytes(type) * quire::kPanelColumns;
}

int64_t quire_activation_bytes(int32_t weight_type, int64_t num_rows, int64_t depth) {
  return quire::activation_bytes(static_cast<quire::WeightType>(weight_type), num_rows, depth);
}

int32_t quire_pack(quire::Team* team, const quire::PackedMatrix* matrix,
                const quire::WeightSource* source) {
  return quire::guarded([&] {
    team->run([&](int thread) {
      team->share(thread, quire::num_panels(*matrix), 1, [&](int64_t first, int64_t last) {
        quire::pack_panels(*matrix, *source, first, last);
      });
    });
  });
}

int32_t quire_unpack(quire::Team* team, const quire::PackedMatrix* matrix, float* rows, float* up,
                  int64_t stride) {
  return quire::guarded([&] {
    const int64_t columns = quire::columns_per_panel(matrix->layout);
    team->run([&](int thread) {
      team->share(thread, quire::num_panels(*matrix), 1, [&](int64_t first, int64_t last) {
        const int64_t offset = first * columns * stride;
        quire::unpack_panels(*matrix, first, last, rows + offset,
                             up == nullptr ? nullptr : up + offset, stride);
      });
    });
  });
}

int32_t quire_matmul(quire::Team* team, const quire::PackedMatrix* matrix, const float* x,
                  int64_t stride, int64_t num_rows, void* buffer,
                  const quire::MatmulOutput* output, int32_t ordering) {
  return quire::guarded([&] {
    const quire::Activations rows =
        quire::make_activations(buffer, matrix->type, num_rows, matrix->depth);
    team->run([&](int thread) {
      int64_t first, last;
      team->part(thread, num_rows, &first, &last);
      quire::convert_rows(x, stride, nullptr, first, last, rows);
      team->barrier(thread);
      quire::matmul(*matrix, rows, *output, static_cast<quire::Ordering>(ordering), *team, thread);
    });
  });
}

int32_t quire_best_columns(quire::Team* team, const quire::PackedMatrix* matrix, const float* x,
                           int64_t stride, int64_t num_rows, void* buffer,
                           const quire::MatmulOutput* output, const uint8_t* wanted,
                           int64_t* best) {
  return quire::guarded([&] {
    const quire::Activations rows =
        quire::make_activations(buffer, matrix->type, num_rows, matrix->depth);
    std::vector<quire::BestOfRows> of_threads(static_cast<size_t>(team->size()));
    for (quire::BestOfRows& of_thread : of_threads) of_thread.reset(wanted, num_rows);
    team->run([&](int thread) {
      int64_t first, last;
      team->part(thread, num_rows, &first, &last);
      quire::convert_rows(x, stride, nullptr, first, last, rows);
      team->barrier(thread);
      quire::matmul_best(*matrix, rows, *output, of_threads[static_cast<size_t>(thread)],
                         quire::Ordering::kFastest, *team, thread);
    });
    for (int64_t row = 0; row < num_rows; row++)
      if (wanted[row]) best[row] = quire::best_column(of_threads, row);
  });
}

uint64_t quire_read_pass(quire::Team* team, const void* buffer, int64_t num_bytes) {
  using Words = uint64_t __attribute__((vector_size(quire::kWidth * 4)));
  constexpr int64_t kChunk = 8 * sizeof(Words);
  const auto* bytes = static_cast<const uint8_t*>(buffer);
  std::atomic<uint64_t> total{0};
  team->run([&](int thread) {
    int64_t first, last;
    team->part(thread, num_bytes / kChunk, &first, &last);
    Words sums[8] = {};
    for (const uint8_t* at = bytes + first * kChunk; at < bytes + last * kChunk; at += kChunk) {
      __builtin_prefetch(at + 4096);
      if (kChunk > 64) __builtin_prefetch(at + 4096 + 64);
      for (int i = 0; i < 8; i++)
        sums[i] += quire::load_as<Words>(at + i * static_cast<int64_t>(sizeof(Words)));
    }
    uint64_t sum = 0;
    for (const Words& words : sums)
      for (size_t i = 0; i < sizeof(Words) / 8; i++) sum += words[i];
    if (thread == 0) sum += sum_of_words(bytes + num_bytes / kChunk * kChunk, num_bytes % kChunk);
    total.fetch_add(sum);
  });
  return total.load();
}
