// Writes a line for each kernel that a process runs: begin and end in nanoseconds, name, grid.
// It needs CUPTI, which comes with a CUDA toolkit and with PyTorch's packages, and works where
// nsys does not. C is the folder that has CUPTI's include and lib (or lib64):
//
//   cc -shared -fPIC -O2 -o trace.so trace.c -I$C/include -L$C/lib -l:libcupti.so.13 -Wl,-rpath,$C/lib
//   CUDA_INJECTION64_PATH=$PWD/trace.so TRACE_OUT=kernels.txt tandem bench engine --device cuda:0 --limits 0s …
//
// Kernels of graphs are seen one by one, which makes the time between them some microseconds
// longer. Records come every 300 ms, since a Go program ends without telling libraries.
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *out;

static void want(uint8_t **buffer, size_t *bytes, size_t *records) {
	*bytes = 4 << 20;
	*buffer = aligned_alloc(8, *bytes);
	*records = 0; // as many as fit
}

static void got(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid) {
	(void)context, (void)stream, (void)bytes;
	for (CUpti_Activity *record = NULL; cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS;) {
		if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
			continue;
		const CUpti_ActivityKernel9 *k = (const CUpti_ActivityKernel9 *)record;
		fprintf(out, "%llu %llu %s %dx%d\n", (unsigned long long)k->start, (unsigned long long)k->end, k->name, k->gridX, k->gridY);
	}
	fflush(out);
	free(buffer);
}

// InitializeInjection is what the driver calls when it starts.
int InitializeInjection(void) {
	const char *path = getenv("TRACE_OUT");
	out = path ? fopen(path, "w") : stderr;
	if (!out)
		return 0;
	cuptiActivityRegisterCallbacks(want, got);
	if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS)
		return 0;
	cuptiActivityFlushPeriod(300);
	return 1;
}
