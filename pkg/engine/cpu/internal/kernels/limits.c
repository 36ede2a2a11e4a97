// The denominators of what the engine reaches. Each loop keeps its results alive
// through an empty asm, so that the compiler cannot leave it out.

#include "tdm_limits.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

// One body for several numbers of independent sums: a multiply-add takes some
// cycles, and how many can be under way differs. Sums are variables of their own,
// since GCC keeps an array of them in memory.
#define EACH8(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define EACH12(DO) EACH8(DO) DO(8) DO(9) DO(10) DO(11)
#define EACH14(DO) EACH12(DO) DO(12) DO(13)
#define EACH24(DO) EACH14(DO) DO(14) DO(15) DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23)
#define NEW512(i) __m512 s##i = _mm512_setzero_ps();
#define NEW256(i) __m256 s##i = _mm256_setzero_ps();
#define USE512(i) __asm__ volatile("" ::"v"(s##i));
#define USE256(i) __asm__ volatile("" ::"x"(s##i));
#define ONE_PAIR const __m512i one = _mm512_set1_epi16(0x3f80)
#define ONE512 const __m512 one = _mm512_set1_ps(1.0f)
#define ONE256 const __m256 one = _mm256_set1_ps(1.0f)
#define CHAINS(NAME, TARGET, EACH, NEW, OP, USE, ONE)             \
	__attribute__((target(TARGET))) static void NAME(long rounds) { \
		ONE;                                                        \
		EACH(NEW)                                                   \
		for (long r = 0; r < rounds; r++) {                         \
			EACH(OP)                                                \
		}                                                           \
		EACH(USE)                                                   \
	}
// The instruction is ours, so that it can be neither folded nor left out.
#define DOT512(i) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(s##i) : "v"(one));
#define FMA512(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(s##i) : "v"(one));
#define FMA256(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(s##i) : "x"(one));

CHAINS(dot512_14, "avx512f,avx512bf16", EACH14, NEW512, DOT512, USE512, ONE_PAIR)
CHAINS(dot512_24, "avx512f,avx512bf16", EACH24, NEW512, DOT512, USE512, ONE_PAIR)
CHAINS(fma512_8, "avx512f", EACH8, NEW512, FMA512, USE512, ONE512)
CHAINS(fma512_14, "avx512f", EACH14, NEW512, FMA512, USE512, ONE512)
CHAINS(fma512_24, "avx512f", EACH24, NEW512, FMA512, USE512, ONE512)
CHAINS(fma256_8, "avx2,fma", EACH8, NEW256, FMA256, USE256, ONE256)
CHAINS(fma256_12, "avx2,fma", EACH12, NEW256, FMA256, USE256, ONE256)
CHAINS(fma256_14, "avx2,fma", EACH14, NEW256, FMA256, USE256, ONE256)
#endif

#define SCALARS(N)                                                  \
	static void scalar_##N(long rounds) {                           \
		float sum[N] = {0};                                         \
		for (long r = 0; r < rounds; r++)                           \
			for (int i = 0; i < N; i++) {                           \
				sum[i] = sum[i] * 0.5f + 1.0f;                      \
				__asm__ volatile("" : "+m"(sum));                   \
			}                                                       \
	}
SCALARS(4)
SCALARS(8)
SCALARS(16)

// A processor with vdpbf16ps need not run it at the rate of float32 multiply-adds:
// whichever does more is the peak.
#define WITH_PAIRS {{64, 14, dot512_14}, {64, 24, dot512_24}, {32, 14, fma512_14}}

typedef struct kind {
	const char *name;
	struct {
		double flops; // of one instruction
		int chains;
		void (*run)(long rounds);
	} variants[TDM_PEAK_VARIANTS];
} kind;

static const kind kinds[] = {
#if defined(__x86_64__)
	{"avx512bf16", WITH_PAIRS},
	{"avx512amx", WITH_PAIRS},
	{"avx512mixed", WITH_PAIRS},
	{"avx512", {{32, 8, fma512_8}, {32, 14, fma512_14}, {32, 24, fma512_24}}},
	{"avx2", {{16, 8, fma256_8}, {16, 12, fma256_12}, {16, 14, fma256_14}}},
#endif
	{"portable", {{2, 4, scalar_4}, {2, 8, scalar_8}, {2, 16, scalar_16}}},
};

typedef struct peak_job {
	void (*run)(long rounds);
	long rounds;
} peak_job;

static void run_peak(void *argument, const tdm_team *team) {
	const peak_job *j = argument;
	(void)team;
	j->run(j->rounds);
}

double tdm_limit_peak(tdm_pool *pool, int threads, const tdm_kernels *k, int variant, long rounds) {
	size_t i = 0;
	while (i + 1 < sizeof kinds / sizeof kinds[0] && strcmp(kinds[i].name, k->name) != 0)
		i++;
	peak_job j = {kinds[i].variants[variant].run, rounds};
	tdm_pool_run(pool, threads, run_peak, &j);
	return kinds[i].variants[variant].flops * kinds[i].variants[variant].chains * (double)rounds * threads;
}

// A variant reads blocks, or its whole part as one, each in some streams of 64-byte
// lines: how many a core needs to keep memory busy differs, and so does whether it
// gains from threads that read next to each other, and from being asked for lines
// ahead.
enum { ONE, FOUR, EIGHT, STREAM_KINDS };
static const struct {
	int streams;
	size_t block; // 0: the whole part
	size_t ahead;
	int dealt; // threads take blocks in turn
} reads[TDM_READ_VARIANTS] = {
	{ONE, 0, 0, 0},          {ONE, 0, 2048, 0},         {FOUR, 0, 512, 0},      {EIGHT, 0, 0, 0},
	{FOUR, 128 << 10, 0, 0}, {FOUR, 128 << 10, 2048, 0}, {EIGHT, 128 << 10, 0, 0}, {FOUR, 1 << 20, 512, 1},
};

typedef struct read_job {
	const uint8_t *memory;
	size_t bytes;
	int variant;
} read_job;

typedef uint64_t line __attribute__((vector_size(64), aligned(64), may_alias));
// read_lines reads blocks of memory, with `skip` bytes between two that it leaves out.
typedef void read_lines(const uint8_t *p, size_t bytes, size_t block, size_t skip, size_t ahead);

#define READ_LINES(NAME, STREAMS, ATTRIBUTE)                                                                   \
	ATTRIBUTE static void NAME(const uint8_t *p, size_t bytes, size_t block, size_t skip, size_t ahead) {      \
		line sum = {0}, other = {0};                                                                           \
		const size_t part = block / STREAMS;                                                                   \
		for (size_t b = 0; b < bytes; b += block + skip)                                                       \
			for (size_t at = 0; at < part; at += 128) {                                                        \
				_Pragma("GCC unroll 8") for (int s = 0; s < STREAMS; s++) {                                    \
					const uint8_t *q = p + b + (size_t)s * part + at;                                          \
					if (ahead) {                                                                               \
						__builtin_prefetch(q + ahead);                                                         \
						__builtin_prefetch(q + ahead + 64);                                                    \
					}                                                                                          \
					sum ^= *(const line *)q;                                                                   \
					other ^= *(const line *)(q + 64);                                                          \
				}                                                                                              \
			}                                                                                                  \
		uint64_t all = 0;                                                                                      \
		sum ^= other;                                                                                          \
		for (int i = 0; i < 8; i++)                                                                            \
			all ^= sum[i];                                                                                     \
		__asm__ volatile("" ::"r"(all));                                                                       \
	}
#define READERS(NAME, ATTRIBUTE)        \
	READ_LINES(NAME##_1, 1, ATTRIBUTE)  \
	READ_LINES(NAME##_4, 4, ATTRIBUTE)  \
	READ_LINES(NAME##_8, 8, ATTRIBUTE)  \
	static read_lines *const NAME[STREAM_KINDS] = {NAME##_1, NAME##_4, NAME##_8};
READERS(read_plain, )
#if defined(__x86_64__)
READERS(read_avx2, __attribute__((target("avx2"))))
READERS(read_avx512, __attribute__((target("avx512f"))))
#endif

static void run_read(void *argument, const tdm_team *team) {
	const read_job *j = argument;
	const size_t part = j->bytes / (size_t)team->threads, thread = (size_t)team->thread;
	const size_t block = reads[j->variant].block ? reads[j->variant].block : part;
	read_lines *const *readers = read_plain;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f"))
		readers = read_avx512;
	else if (__builtin_cpu_supports("avx2"))
		readers = read_avx2;
#endif
	read_lines *read = readers[reads[j->variant].streams];
	if (reads[j->variant].dealt)
		read(j->memory + thread * block, j->bytes - thread * block, block, ((size_t)team->threads - 1) * block, reads[j->variant].ahead);
	else
		read(j->memory + thread * part, part, block, 0, reads[j->variant].ahead);
}

double tdm_limit_read(tdm_pool *pool, int threads, const uint8_t *memory, size_t bytes, int variant) {
	read_job j = {memory, bytes, variant};
	tdm_pool_run(pool, threads, run_read, &j);
	return (double)bytes;
}

static void run_barrier(void *argument, const tdm_team *team) {
	for (long left = *(const long *)argument; left > 0; left--)
		tdm_pool_barrier(team);
}

void tdm_limit_barrier(tdm_pool *pool, int threads, long rounds) { tdm_pool_run(pool, threads, run_barrier, &rounds); }

void tdm_limit_touch(uint8_t *memory, size_t bytes) { memset(memory, 1, bytes); }
