/* What this machine can do: read bandwidth, and products per second of each instruction set it has.

   probe bandwidth THREADS {4k|2m} MEGABYTES SECONDS     one JSON line: {"value": GB/s, ...}
   probe rate THREADS NAME SECONDS                       one JSON line: {"value": TOP/s, ...} or {"skipped": why}

   One operation is one multiplication or one addition. Rates are of products from registers or tiles: no memory, no
   epilogue, an upper bound of any kernel. Compiled by benchmarks/machine.py with plain `cc -O3 -pthread`; each function
   names its own instruction set and runs only where CPUID reports it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define X86 1
#else
#define X86 0
#endif

#define MAX_THREADS 256
#define HUGE_PAGE (2ul << 20)
#define CHUNK (256ul << 10)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- all threads start together; each pass is timed from the start of the first to the end of the last ---- */

typedef struct Job Job;
struct Job {
  void (*run)(Job *job, int thread);
  int threads;
  double seconds;
  double best, total; /* the fastest pass, and how long all took */
  long passes;
  char *data; /* bandwidth */
  size_t bytes_per_thread;
  int prefetch; /* bytes ahead, 0 for none */
  long steps;   /* rates: loop turns of one pass */
  pthread_barrier_t start, end;
  int stop;
};

typedef struct {
  Job *job;
  int thread;
} Worker;

static void *work(void *argument) {
  Worker *worker = argument;
  Job *job = worker->job;
  for (;;) {
    pthread_barrier_wait(&job->start);
    if (job->stop) return NULL;
    job->run(job, worker->thread);
    pthread_barrier_wait(&job->end);
  }
}

static void measure(Job *job) {
  pthread_t threads[MAX_THREADS];
  Worker workers[MAX_THREADS];
  pthread_barrier_init(&job->start, NULL, (unsigned)job->threads);
  pthread_barrier_init(&job->end, NULL, (unsigned)job->threads);
  job->stop = 0;
  for (int i = 1; i < job->threads; i++) {
    workers[i] = (Worker){job, i};
    if (pthread_create(&threads[i], NULL, work, &workers[i])) exit(1);
  }
  job->best = 1e30;
  double begin = now();
  for (job->passes = 0; job->passes < 3 || now() - begin < job->seconds; job->passes++) {
    double pass = now();
    pthread_barrier_wait(&job->start);
    job->run(job, 0);
    pthread_barrier_wait(&job->end);
    pass = now() - pass;
    if (pass < job->best) job->best = pass;
  }
  job->total = now() - begin;
  job->stop = 1;
  if (job->threads > 1) pthread_barrier_wait(&job->start);
  for (int i = 1; i < job->threads; i++) pthread_join(threads[i], NULL);
}

/* ---- bandwidth ---- */

static volatile uint64_t sink;

#if X86
__attribute__((target("avx512f"))) static void read_avx512(Job *job, int thread) {
  const char *data = job->data + (size_t)thread * job->bytes_per_thread;
  __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
  int ahead = job->prefetch;
  for (size_t i = 0; i < job->bytes_per_thread; i += 256) {
    if (ahead)
      for (int j = 0; j < 256; j += 64) __builtin_prefetch(data + i + (size_t)ahead + (size_t)j, 0, 3);
    s0 = _mm512_add_epi64(s0, _mm512_load_si512(data + i));
    s1 = _mm512_add_epi64(s1, _mm512_load_si512(data + i + 64));
    s2 = _mm512_add_epi64(s2, _mm512_load_si512(data + i + 128));
    s3 = _mm512_add_epi64(s3, _mm512_load_si512(data + i + 192));
  }
  sink = (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(s0, s1), _mm512_add_epi64(s2, s3)));
}

__attribute__((target("avx2"))) static void read_avx2(Job *job, int thread) {
  const char *data = job->data + (size_t)thread * job->bytes_per_thread;
  __m256i s[8];
  memset(s, 0, sizeof s);
  int ahead = job->prefetch;
  for (size_t i = 0; i < job->bytes_per_thread; i += 256) {
    if (ahead)
      for (int j = 0; j < 256; j += 64) __builtin_prefetch(data + i + (size_t)ahead + (size_t)j, 0, 3);
    for (int j = 0; j < 8; j++) s[j] = _mm256_add_epi64(s[j], _mm256_load_si256((const void *)(data + i + 32 * j)));
  }
  for (int j = 1; j < 8; j++) s[0] = _mm256_add_epi64(s[0], s[j]);
  sink = (uint64_t)_mm256_extract_epi64(s[0], 0) + (uint64_t)_mm256_extract_epi64(s[0], 3);
}
#endif

static void read_portable(Job *job, int thread) {
  const char *data = job->data + (size_t)thread * job->bytes_per_thread;
  uint64_t s[8] = {0};
  int ahead = job->prefetch;
  for (size_t i = 0; i < job->bytes_per_thread; i += 64) {
    if (ahead) __builtin_prefetch(data + i + (size_t)ahead, 0, 3);
    const uint64_t *line = (const void *)(data + i);
    for (int j = 0; j < 8; j++) s[j] += line[j];
  }
  for (int j = 1; j < 8; j++) s[0] += s[j];
  sink = s[0];
}

/* Kilobytes of the process's memory that really lie on huge pages. */
static long huge_kilobytes(void) {
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long kilobytes = -1;
  if (!file) return -1;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "AnonHugePages: %ld", &kilobytes) == 1) break;
  fclose(file);
  return kilobytes;
}

static void touch(Job *job, int thread) {
  memset(job->data + (size_t)thread * job->bytes_per_thread, 1, job->bytes_per_thread);
}

static int bandwidth(int threads, int huge, size_t megabytes, double seconds) {
  static const int AHEAD[] = {0, 1024, 2048, 4096};
  Job job = {.threads = threads, .run = touch};
  job.bytes_per_thread = (megabytes << 20) / (size_t)threads / CHUNK * CHUNK;
  size_t bytes = job.bytes_per_thread * (size_t)threads;
  char *map = mmap(NULL, bytes + 2 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    printf("{\"skipped\": \"no %zu MB of memory\"}\n", megabytes);
    return 0;
  }
  job.data = (char *)(((uintptr_t)map + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
  int advised = madvise(job.data, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  touch(&(Job){.data = job.data, .bytes_per_thread = bytes}, 0);
  if (huge && advised) {
    printf("{\"skipped\": \"the kernel offers no transparent huge pages\"}\n");
    return 0;
  }
  double best = 1e30, total = 0.0;
  long passes = 0;
  int best_ahead = 0;
  job.run = read_portable;
#if X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) job.run = read_avx512;
  else if (__builtin_cpu_supports("avx2")) job.run = read_avx2;
#endif
  for (size_t i = 0; i < sizeof AHEAD / sizeof *AHEAD; i++) {
    job.prefetch = AHEAD[i];
    job.seconds = seconds / (sizeof AHEAD / sizeof *AHEAD);
    measure(&job);
    total += job.total;
    passes += job.passes;
    if (job.best < best) {
      best = job.best;
      best_ahead = AHEAD[i];
    }
  }
  long kilobytes = huge_kilobytes();
  printf("{\"value\": %.2f, \"mean\": %.2f, \"unit\": \"GB/s\", \"prefetch_bytes\": %d, \"huge_share\": %.2f}\n",
         (double)bytes / best * 1e-9, (double)bytes * (double)passes / total * 1e-9, best_ahead,
         kilobytes < 0 ? -1.0 : (double)kilobytes * 1024.0 / (double)bytes);
  return 0;
}

/* ---- products from registers ---- */

#define OPAQUE(x) __asm__ volatile("" : "+x"(x))

#if X86
#define CHAINS 12
#define RATE_LOOP(type, factor, zero, set, product)            \
  (void)thread;                                                \
  factor a = set(3), b = set(5);                               \
  type s[CHAINS];                                              \
  for (int j = 0; j < CHAINS; j++) s[j] = zero;                \
  for (long i = 0; i < job->steps; i++) {                      \
    OPAQUE_V(a);                                               \
    for (int j = 0; j < CHAINS; j++) s[j] = product(s[j], a, b); \
  }                                                            \
  for (int j = 0; j < CHAINS; j++) OPAQUE_V(s[j]);

#define OPAQUE_V(x) __asm__ volatile("" : "+v"(x))
__attribute__((target("avx512f,avx512vnni"))) static void rate_vnni8(Job *job, int thread) {
  RATE_LOOP(__m512i, __m512i, _mm512_setzero_si512(), _mm512_set1_epi8, _mm512_dpbusd_epi32)
}
__attribute__((target("avx512f,avx512vnni"))) static void rate_vnni16(Job *job, int thread) {
  RATE_LOOP(__m512i, __m512i, _mm512_setzero_si512(), _mm512_set1_epi16, _mm512_dpwssd_epi32)
}
__attribute__((target("avx512f"))) static void rate_fma512(Job *job, int thread) {
#define FMA(s, a, b) _mm512_fmadd_ps(a, b, s)
  RATE_LOOP(__m512, __m512, _mm512_setzero_ps(), _mm512_set1_ps, FMA)
}
#if !defined(NO_BF16)
__attribute__((target("avx512f,avx512bf16"))) static void rate_bf16(Job *job, int thread) {
#define SET_BF16(x) ((__m512bh)_mm512_set1_epi16(x))
  RATE_LOOP(__m512, __m512bh, _mm512_setzero_ps(), SET_BF16, _mm512_dpbf16_ps)
}
#endif
#undef OPAQUE_V
#define OPAQUE_V(x) OPAQUE(x)
__attribute__((target("avx2"))) static void rate_maddwd(Job *job, int thread) {
#define MADDWD(s, a, b) _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_xor_si256(s, a), b))
  RATE_LOOP(__m256i, __m256i, _mm256_setzero_si256(), _mm256_set1_epi16, MADDWD)
}
__attribute__((target("avx2,fma"))) static void rate_fma256(Job *job, int thread) {
#define FMA256(s, a, b) _mm256_fmadd_ps(a, b, s)
  RATE_LOOP(__m256, __m256, _mm256_setzero_ps(), _mm256_set1_ps, FMA256)
}

#if !defined(NO_AMX)
typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t colsb[16];
  uint8_t rows[16];
} __attribute__((packed)) TileConfig;

/* Four accumulators, two tiles of each factor: 16 rows of 64 bytes. */
#define AMX_LOOP(product)                                              \
  (void)thread;                                                        \
  TileConfig config = {.palette = 1};                                  \
  static const char zeros[1024] __attribute__((aligned(64)));          \
  for (int t = 0; t < 8; t++) config.colsb[t] = 64, config.rows[t] = 16; \
  __asm__ volatile("" : : "r"(&config) : "memory"); /* GCC believes the next line reads 8 bytes of it */ \
  _tile_loadconfig(&config);                                           \
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);          \
  _tile_loadd(4, zeros, 64); _tile_loadd(5, zeros, 64);                \
  _tile_loadd(6, zeros, 64); _tile_loadd(7, zeros, 64);                \
  for (long i = 0; i < job->steps; i++) {                              \
    product(0, 4, 6); product(1, 4, 7); product(2, 5, 6); product(3, 5, 7); \
  }                                                                    \
  _tile_release();

__attribute__((target("amx-tile,amx-int8"))) static void rate_amx_int8(Job *job, int thread) {
  AMX_LOOP(_tile_dpbusd)
}
__attribute__((target("amx-tile,amx-bf16"))) static void rate_amx_bf16(Job *job, int thread) {
  AMX_LOOP(_tile_dpbf16ps)
}
#endif

/* Why AMX cannot be used here, or NULL: CPUID leaf 7 EDX (22 bf16, 24 tile, 25 int8), XCR0 bits 17 and 18, permission. */
static const char *amx_refusal(unsigned wanted_bit) {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 24)) || !(d & (1u << wanted_bit)))
    return "this CPU has no AMX";
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c & (1u << 27))) return "the system does not use XSAVE";
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & (3u << 17)) != (3u << 17)) return "the kernel does not save AMX tiles";
  if (syscall(SYS_arch_prctl, 0x1023, 18)) return "the kernel refused the permission for AMX tiles";
  return NULL;
}
#endif

typedef struct {
  const char *name;
  void (*run)(Job *job, int thread);
  double operations; /* of one loop turn */
  const char *(*refusal)(void);
} Rate;

#if X86
#define HAS(name, feature, text)                                                         \
  static const char *name(void) { return __builtin_cpu_supports(feature) ? NULL : text; }
HAS(no_vnni, "avx512vnni", "this CPU has no AVX-512 VNNI")
HAS(no_avx512, "avx512f", "this CPU has no AVX-512")
HAS(no_avx2, "avx2", "this CPU has no AVX2")
HAS(no_fma, "fma", "this CPU has no FMA")
#if !defined(NO_BF16)
HAS(no_bf16, "avx512bf16", "this CPU has no AVX-512 BF16")
#endif
static const char *no_amx_int8(void) { return amx_refusal(25); }
static const char *no_amx_bf16(void) { return amx_refusal(22); }
static const Rate RATES[] = {
    {"vnni_int8", rate_vnni8, CHAINS * 128.0, no_vnni},    {"vnni_int16", rate_vnni16, CHAINS * 64.0, no_vnni},
    {"avx512_float32", rate_fma512, CHAINS * 32.0, no_avx512}, {"avx2_int16", rate_maddwd, CHAINS * 32.0, no_avx2},
    {"avx2_float32", rate_fma256, CHAINS * 16.0, no_fma},
#if !defined(NO_BF16)
    {"avx512_bf16", rate_bf16, CHAINS * 64.0, no_bf16},
#endif
#if !defined(NO_AMX)
    {"amx_int8", rate_amx_int8, 4 * 32768.0, no_amx_int8}, {"amx_bf16", rate_amx_bf16, 4 * 16384.0, no_amx_bf16},
#else
    {"amx_int8", NULL, 0, no_amx_int8}, {"amx_bf16", NULL, 0, no_amx_bf16},
#endif
};
#else
static const Rate RATES[] = {{"none", NULL, 0, NULL}};
#endif

static int rate(int threads, const char *name, double seconds) {
#if X86
  __builtin_cpu_init();
#endif
  for (size_t i = 0; i < sizeof RATES / sizeof *RATES; i++) {
    if (strcmp(RATES[i].name, name)) continue;
    const char *why = RATES[i].refusal ? RATES[i].refusal() : NULL;
    if (!why && !RATES[i].run) why = "the compiler does not know these instructions";
    if (why) {
      printf("{\"skipped\": \"%s\"}\n", why);
      return 0;
    }
    /* Passes of about 1 ms: short enough to fall between other programs' time slices now and then. */
    Job job = {.threads = 1, .run = RATES[i].run, .steps = 20000, .seconds = 0.02};
    measure(&job);
    job.steps = (long)(20000.0 * 0.001 / job.best) + 1;
    job.threads = threads, job.seconds = seconds;
    measure(&job);
    double operations = RATES[i].operations * (double)job.steps * threads;
    printf("{\"value\": %.4f, \"mean\": %.4f, \"unit\": \"TOP/s\"}\n", operations / job.best * 1e-12,
           operations * (double)job.passes / job.total * 1e-12);
    return 0;
  }
  printf("{\"skipped\": \"no probe of this kind for this processor\"}\n");
  return 0;
}

int main(int count, char **arguments) {
  int threads = count > 2 ? atoi(arguments[2]) : 0;
  if (threads < 1 || threads > MAX_THREADS) return 2;
  if (count == 6 && !strcmp(arguments[1], "bandwidth"))
    return bandwidth(threads, !strcmp(arguments[3], "2m"), strtoul(arguments[4], NULL, 10), atof(arguments[5]));
  if (count == 5 && !strcmp(arguments[1], "rate")) return rate(threads, arguments[3], atof(arguments[4]));
  return 2;
}
