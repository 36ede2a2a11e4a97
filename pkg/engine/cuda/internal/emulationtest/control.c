#include "control.h"

#include <dlfcn.h>
#include <string.h>

static int find(void *library, const char *symbol, void *field) {
	void *address = dlsym(library, symbol);
	memcpy(field, &address, sizeof address);
	return address != NULL;
}

const char *tdm_control_open(const char *library, tdm_control *c) {
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return "it cannot be opened";
	if (!find(handle, "tdm_fake_reset", &c->reset) || !find(handle, "tdm_fake_set", &c->set) ||
		!find(handle, "tdm_fake_fail", &c->fail) || !find(handle, "tdm_fake_lose", &c->lose) ||
		!find(handle, "tdm_fake_live", &c->live) || !find(handle, "tdm_fake_seen", &c->seen) || !find(handle, "tdm_fake_raise", &c->raise) ||
		!find(handle, "tdm_dot16", &c->dot) || !find(handle, "tdm_multiply_tile", &c->multiply))
		return "it has no back door";
	return NULL;
}

void tdm_control_reset(const tdm_control *c) { c->reset(); }

int tdm_control_set(const tdm_control *c, const char *name, unsigned long long value) { return c->set(name, value); }

void tdm_control_fail(const tdm_control *c, const char *call, int after, int code) { c->fail(call, after, code); }

void tdm_control_lose(const tdm_control *c, int code) { c->lose(code); }

tdm_control_counts tdm_control_live(const tdm_control *c) {
	tdm_control_counts live;
	c->live(live.counts);
	return live;
}

tdm_control_counts tdm_control_seen(const tdm_control *c) {
	tdm_control_counts seen;
	c->seen(seen.counts);
	return seen;
}

void tdm_control_raise(const tdm_control *c, unsigned long long type, unsigned long long data) { c->raise(type, data); }

float tdm_control_dot(const tdm_control *control, const uint16_t *a, const uint16_t *b, float c) { return control->dot(a, b, c); }

void tdm_control_multiply(const tdm_control *control, float *sums, const uint16_t *a, const uint16_t *b) { control->multiply(sums, a, b); }
