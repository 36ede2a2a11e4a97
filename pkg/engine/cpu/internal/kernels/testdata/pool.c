// The pool under ThreadSanitizer: jobs of every number of threads, whose threads
// write plain memory that the others read after the next barrier. A missing edge
// between them is a report; a thread that is early, late or lost is a wrong sum.
// The step sanitize of .ci/run builds and runs it; exit status 0 is no finding.

#define _DEFAULT_SOURCE
#include "tdm_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 6, PHASES = 5, JOBS = 200, POOLS = 8, DEADLINE_SECONDS = 60 };

typedef struct board {
	long cells[MOST];        // each thread's own, read by all after a barrier
	long sums[MOST][PHASES]; // what each thread saw
	int joined[MOST];
} board;

static void play(void *argument, const tdm_team *team) {
	board *b = argument;
	b->joined[team->thread]++;
	for (int phase = 0; phase < PHASES; phase++) {
		b->cells[team->thread] += team->thread + phase + 1;
		tdm_pool_barrier(team);
		long sum = 0;
		for (int i = 0; i < team->threads; i++)
			sum += b->cells[i];
		b->sums[team->thread][phase] = sum;
		tdm_ahead ahead = {(const uint8_t *)b, sizeof *b / 2, sizeof *b / 2, 0, 2};
		tdm_pool_barrier_ahead(team, &ahead);
	}
}

// check runs one job and compares every thread's sums with what they must be.
static void check(tdm_pool *pool, int threads) {
	board b = {0};
	tdm_pool_run(pool, threads, play, &b);
	long want = 0;
	for (int phase = 0; phase < PHASES; phase++) {
		for (int i = 0; i < threads; i++)
			want += i + phase + 1;
		for (int i = 0; i < threads; i++)
			if (b.sums[i][phase] != want) {
				fprintf(stderr, "%d threads, phase %d: thread %d saw %ld, not %ld\n", threads, phase, i, b.sums[i][phase], want);
				exit(1);
			}
	}
	for (int i = 0; i < MOST; i++)
		if (b.joined[i] != (i < threads)) {
			fprintf(stderr, "%d threads: thread %d joined %d times\n", threads, i, b.joined[i]);
			exit(1);
		}
}

int main(void) {
	alarm(DEADLINE_SECONDS); // a lost wake-up ends here
	srand(1);
	for (int round = 0; round < POOLS; round++) {
		const int size = 1 + round % MOST;
		tdm_pool *pool = tdm_pool_new(size);
		if (!pool) {
			fprintf(stderr, "no pool of %d threads\n", size);
			return 1;
		}
		for (int i = 0; i < JOBS; i++) {
			check(pool, 1 + rand() % size);
			if (i % 50 == 0)
				usleep(2000); // let the threads fall asleep
		}
		tdm_pool_free(pool);
	}
	return 0;
}
