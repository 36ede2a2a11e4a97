// The compute pool. The one word `work` starts a job: a counter, and in its low
// bits how many threads take part, so that a thread that is late learns both at
// once and never joins a job that it does not belong to.
//
// Lock order: only `mutex`, held for moments, never while a job runs.

#define _GNU_SOURCE
#include "tdm_kernels.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

enum { SPINS = 2000, THREAD_BITS = 10 };
_Static_assert(TDM_MAX_THREADS < 1 << THREAD_BITS, "the threads fit their bits");

struct tdm_pool {
	int threads;
	pthread_t *ids;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	atomic_int sleepers;
	_Alignas(64) _Atomic uint64_t work;
	_Alignas(64) _Atomic uint64_t phase;
	_Alignas(64) atomic_int arrived;
	_Alignas(64) tdm_job *job;
	void *argument;
	atomic_int stop;
};

typedef struct start {
	tdm_pool *pool;
	int thread;
} start;

static void relax(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

// look_ahead asks for the next few lines of what the thread reads next.
static void look_ahead(tdm_ahead *a) {
	enum { LINE = 64, LINES = 4 }; // few, so that the end of the wait is seen soon
	for (int i = 0; i < a->parts; i++)
		for (size_t line = 0; line < LINES; line++)
			__builtin_prefetch(a->start + (size_t)i * a->stride + a->done + line * LINE, 0, 2);
	a->done += LINES * LINE;
}

// await returns when *word is no longer old: it looks ahead, spins, then sleeps.
static void await(tdm_pool *p, _Atomic uint64_t *word, uint64_t old, tdm_ahead *ahead) {
	while (ahead && ahead->done < ahead->bytes) {
		if (atomic_load_explicit(word, memory_order_acquire) != old)
			return;
		look_ahead(ahead);
	}
	for (int i = 0; i < SPINS; i++) {
		if (atomic_load_explicit(word, memory_order_acquire) != old)
			return;
		relax();
	}
	pthread_mutex_lock(&p->mutex);
	atomic_fetch_add(&p->sleepers, 1); // before the look at word: see announce
	while (atomic_load(word) == old)
		pthread_cond_wait(&p->changed, &p->mutex);
	atomic_fetch_sub(&p->sleepers, 1);
	pthread_mutex_unlock(&p->mutex);
}

// announce changes a word and wakes who sleeps on any. Both sides are
// sequentially consistent: either the sleeper sees the new word, or we see it.
static void announce(tdm_pool *p, _Atomic uint64_t *word, uint64_t value) {
	atomic_store(word, value);
	if (atomic_load(&p->sleepers) == 0)
		return;
	pthread_mutex_lock(&p->mutex);
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->mutex);
}

void tdm_pool_barrier_ahead(const tdm_team *team, tdm_ahead *ahead) {
	if (team->threads == 1)
		return;
	tdm_pool *p = team->pool;
	uint64_t phase = atomic_load(&p->phase);
	if (atomic_fetch_add(&p->arrived, 1) + 1 < team->threads) {
		await(p, &p->phase, phase, ahead);
		return;
	}
	atomic_store(&p->arrived, 0);
	announce(p, &p->phase, phase + 1);
}

void tdm_pool_barrier(const tdm_team *team) { tdm_pool_barrier_ahead(team, NULL); }

static void *worker(void *argument) {
	start s = *(start *)argument;
	free(argument);
	tdm_pool *p = s.pool;
	uint64_t seen = 0;
	for (;;) {
		await(p, &p->work, seen, NULL);
		seen = atomic_load(&p->work);
		if (atomic_load(&p->stop))
			return NULL;
		tdm_team team = {p, s.thread, (int)(seen & ((1u << THREAD_BITS) - 1))};
		if (s.thread >= team.threads)
			continue;
		p->job(p->argument, &team);
		tdm_pool_barrier(&team);
	}
}

void tdm_pool_run(tdm_pool *p, int threads, tdm_job *job, void *argument) {
	if (threads > p->threads)
		threads = p->threads;
	tdm_team team = {p, 0, threads};
	if (threads > 1) {
		p->job = job;
		p->argument = argument;
		uint64_t count = (atomic_load(&p->work) >> THREAD_BITS) + 1; // never comes round
		announce(p, &p->work, count << THREAD_BITS | (uint64_t)threads);
	}
	job(argument, &team);
	tdm_pool_barrier(&team);
}

static void stop_threads(tdm_pool *p, int started) {
	atomic_store(&p->stop, 1);
	announce(p, &p->work, atomic_load(&p->work) + (1u << THREAD_BITS));
	for (int i = 1; i < started; i++)
		pthread_join(p->ids[i], NULL);
}

tdm_pool *tdm_pool_new(int threads) {
	if (threads < 1 || threads > TDM_MAX_THREADS)
		return NULL;
	tdm_pool *p = NULL;
	if (posix_memalign((void **)&p, 64, sizeof *p))
		return NULL;
	*p = (tdm_pool){.threads = threads};
	p->ids = calloc((size_t)threads, sizeof *p->ids);
	if (!p->ids) {
		free(p);
		return NULL;
	}
	pthread_mutex_init(&p->mutex, NULL);
	pthread_cond_init(&p->changed, NULL);
	// Signals are Go's: its handlers expect threads that it knows.
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int started = 1;
	for (; started < threads; started++) {
		start *s = malloc(sizeof *s);
		if (!s)
			break;
		*s = (start){p, started};
		if (pthread_create(&p->ids[started], NULL, worker, s)) {
			free(s);
			break;
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (started == threads)
		return p;
	p->threads = started;
	tdm_pool_free(p);
	return NULL;
}

void tdm_pool_free(tdm_pool *p) {
	stop_threads(p, p->threads);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->mutex);
	free(p->ids);
	free(p);
}
