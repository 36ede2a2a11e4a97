// The back door of the emulated driver, found by name in a library: see src/driver_control.cpp,
// and src/mma.h for the sums of a tensor core.
#ifndef TDM_CONTROL_H
#define TDM_CONTROL_H

#include <stdint.h>

typedef struct tdm_control {
	void (*reset)(void);
	int (*set)(const char *name, unsigned long long value);
	void (*fail)(const char *call, int after, int code);
	void (*lose)(int code);
	void (*live)(long long *counts);
	void (*seen)(long long *counts);
	void (*raise)(unsigned long long type, unsigned long long data);
	float (*dot)(const uint16_t *a, const uint16_t *b, float c);
	void (*multiply)(float *sums, const uint16_t *a, const uint16_t *b);
} tdm_control;

typedef struct tdm_control_counts {
	long long counts[11];
} tdm_control_counts;

// Gives null, or what is missing.
const char *tdm_control_open(const char *library, tdm_control *control);

// cgo cannot call through a pointer.
void tdm_control_reset(const tdm_control *control);
int tdm_control_set(const tdm_control *control, const char *name, unsigned long long value);
void tdm_control_fail(const tdm_control *control, const char *call, int after, int code);
void tdm_control_lose(const tdm_control *control, int code);
tdm_control_counts tdm_control_live(const tdm_control *control);
tdm_control_counts tdm_control_seen(const tdm_control *control);
void tdm_control_raise(const tdm_control *control, unsigned long long type, unsigned long long data);
float tdm_control_dot(const tdm_control *control, const uint16_t *a, const uint16_t *b, float c);
void tdm_control_multiply(const tdm_control *control, float *sums, const uint16_t *a, const uint16_t *b);

#endif
