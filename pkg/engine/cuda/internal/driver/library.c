// Opening the driver's library.

#include "tdm_call.h"

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

static void fail(tdm_opening *opening, int found, const char *text) {
	opening->found = found;
	(void)snprintf(opening->text, sizeof opening->text, "%s", text);
}

static tdm_outcome begin(const tdm_driver *driver, int *version) {
	TDM_CALL(driver, cuDriverGetVersion, version);
	if (*version >= TDM_LEAST_VERSION)
		TDM_CALL(driver, cuInit, 0);
	return TDM_DONE;
}

static void look(const char *library, tdm_driver *driver, tdm_opening *opening) {
	driver->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!driver->library) {
		const char *text = dlerror();
		fail(opening, TDM_NO_LIBRARY, text ? text : library);
		return;
	}
	// These first: a driver that is too old should say so, not which symbol it lacks.
	if (!find(driver->library, "cuDriverGetVersion", &driver->cuDriverGetVersion)) {
		fail(opening, TDM_NO_SYMBOL, "cuDriverGetVersion");
		return;
	}
	if (!find(driver->library, "cuInit", &driver->cuInit)) {
		fail(opening, TDM_NO_SYMBOL, "cuInit");
		return;
	}
	// For the error below. A driver that lacks them is refused after it.
	(void)find(driver->library, "cuGetErrorName", &driver->cuGetErrorName);
	(void)find(driver->library, "cuGetErrorString", &driver->cuGetErrorString);
	opening->outcome = begin(driver, &opening->version);
	if (opening->outcome.code != CUDA_SUCCESS) {
		opening->texts = tdm_error_texts(driver, opening->outcome.code);
		fail(opening, TDM_NO_INIT, "");
		return;
	}
	if (opening->version < TDM_LEAST_VERSION) {
		fail(opening, TDM_OLD_DRIVER, "");
		return;
	}
#define TDM_FIND(name, parameters)                      \
	if (!find(driver->library, #name, &driver->name)) { \
		fail(opening, TDM_NO_SYMBOL, #name);            \
		return;                                         \
	}
	TDM_DRIVER_CALLS(TDM_FIND)
#undef TDM_FIND
#define TDM_FIND(name, parameters) (void)find(driver->library, #name, &driver->name);
	TDM_DRIVER_NEWER_CALLS(TDM_FIND)
#undef TDM_FIND
}

// keep gives the driver a place that stays, the one that its library has already if it
// was opened before. Null: there is no memory.
static const tdm_driver *keep(const tdm_driver *found) {
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static tdm_driver *first;
	(void)pthread_mutex_lock(&mutex);
	tdm_driver *driver = first;
	while (driver && driver->library != found->library)
		driver = driver->next;
	if (!driver && (driver = malloc(sizeof *driver)) != NULL) {
		*driver = *found;
		driver->next = first;
		first = driver;
	}
	(void)pthread_mutex_unlock(&mutex);
	return driver;
}

tdm_opening tdm_open(const char *library) {
	tdm_opening opening = {.found = TDM_OPENED};
	tdm_driver driver = {.next = NULL};
	look(library, &driver, &opening);
	if (opening.found != TDM_OPENED)
		return opening;
	opening.driver = keep(&driver);
	if (!opening.driver)
		fail(&opening, TDM_NO_MEMORY, "");
	return opening;
}

tdm_texts tdm_error_texts(const tdm_driver *driver, int code) {
	tdm_texts texts = {"CUDA_ERROR", "no description"};
	// Both leave null behind where they do not know the code.
	const char *found = NULL;
	if (driver->cuGetErrorName && driver->cuGetErrorName(code, &found) == CUDA_SUCCESS && found)
		texts.name = found;
	found = NULL;
	if (driver->cuGetErrorString && driver->cuGetErrorString(code, &found) == CUDA_SUCCESS && found)
		texts.text = found;
	return texts;
}
