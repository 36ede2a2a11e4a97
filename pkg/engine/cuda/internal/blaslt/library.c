// Opening the library.

#include "tdm_blaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// find looks a symbol up in the library. POSIX lets an object pointer from dlsym stand for
// a function; memcpy says so without a cast that C does not define.
static int find(void *library, const char *symbol, void *field) {
	void *address = dlsym(library, symbol);
	memcpy(field, &address, sizeof address);
	return address != NULL;
}

static void fail(tdm_blaslt_opening *opening, int found, const char *text) {
	opening->found = found;
	(void)snprintf(opening->text, sizeof opening->text, "%s", text);
}

static void look(const char *library, tdm_blaslt *blaslt, tdm_blaslt_opening *opening) {
	blaslt->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!blaslt->library) {
		const char *text = dlerror();
		fail(opening, TDM_BLASLT_NO_LIBRARY, text ? text : library);
		return;
	}
	// First: a library that is too old should say so, not which symbol it lacks.
	if (!find(blaslt->library, "cublasLtGetVersion", &blaslt->cublasLtGetVersion)) {
		fail(opening, TDM_BLASLT_NO_SYMBOL, "cublasLtGetVersion");
		return;
	}
	opening->version = (int64_t)blaslt->cublasLtGetVersion();
	if (opening->version < TDM_BLASLT_LEAST_VERSION) {
		fail(opening, TDM_BLASLT_OLD, "");
		return;
	}
#define TDM_FIND(name)                                  \
	if (!find(blaslt->library, #name, &blaslt->name)) { \
		fail(opening, TDM_BLASLT_NO_SYMBOL, #name);     \
		return;                                         \
	}
#define TDM_FIND_CALL(name, parameters) TDM_FIND(name)
#define TDM_FIND_ANSWER(type, name, parameters) TDM_FIND(name)
	TDM_BLASLT_CALLS(TDM_FIND_CALL)
	TDM_BLASLT_ANSWERS(TDM_FIND_ANSWER)
#undef TDM_FIND_ANSWER
#undef TDM_FIND_CALL
#undef TDM_FIND
}

// keep gives the library a place that stays, the one that it has already if it was opened
// before. Null: there is no memory.
static const tdm_blaslt *keep(const tdm_blaslt *found) {
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static tdm_blaslt *first;
	(void)pthread_mutex_lock(&mutex);
	tdm_blaslt *blaslt = first;
	while (blaslt && blaslt->library != found->library)
		blaslt = blaslt->next;
	if (!blaslt && (blaslt = malloc(sizeof *blaslt)) != NULL) {
		*blaslt = *found;
		blaslt->next = first;
		first = blaslt;
	}
	(void)pthread_mutex_unlock(&mutex);
	return blaslt;
}

tdm_blaslt_opening tdm_blaslt_open(const char *library) {
	tdm_blaslt_opening opening = {.found = TDM_BLASLT_OPENED};
	tdm_blaslt blaslt = {.next = NULL};
	look(library, &blaslt, &opening);
	if (opening.found != TDM_BLASLT_OPENED)
		return opening;
	opening.blaslt = keep(&blaslt);
	if (!opening.blaslt)
		fail(&opening, TDM_BLASLT_NO_MEMORY, "");
	return opening;
}

const char *tdm_blaslt_name(const tdm_blaslt *blaslt, int code) {
	const char *name = blaslt->cublasLtGetStatusName(code);
	return name ? name : "CUBLAS_STATUS";
}

const char *tdm_blaslt_text(const tdm_blaslt *blaslt, int code) {
	const char *text = blaslt->cublasLtGetStatusString(code);
	return text ? text : "no description";
}
