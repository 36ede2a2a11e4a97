// Kernels for the tests of package driver: CUDA for clang, and plain C++ for the emulated
// driver, which defines tdm_test_thread and runs one thread after the other. The committed
// kernels.ptx is made of it by
//   clang-19 -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib -O3 -S -o kernels.ptx kernels.cu
#ifndef TDM_TEST_KERNEL
#define TDM_TEST_KERNEL extern "C" __attribute__((global)) void
#define TDM_TEST_DEVICE static __attribute__((device)) inline
#endif

typedef struct tdm_test_fill_args {
	float *out;
	long long n;
	float value;
	int reserved;
} tdm_test_fill_args;

typedef struct tdm_test_add_args {
	float *out;
	const float *a, *b;
	long long n;
} tdm_test_add_args;

typedef struct tdm_test_gather_args {
	float *out;
	const float *in;
	const int *index;
	long long n;
} tdm_test_gather_args;

#ifdef __CUDA__
// tdm_test_thread is the thread's number in the grid.
TDM_TEST_DEVICE long long tdm_test_thread(void) {
	return (long long)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
}
#endif

// out[i] = value
TDM_TEST_KERNEL tdm_test_fill(const tdm_test_fill_args a) {
	const long long i = tdm_test_thread();
	if (i < a.n)
		a.out[i] = a.value;
}

// out[i] = a[i] + b[i]
TDM_TEST_KERNEL tdm_test_add(const tdm_test_add_args a) {
	const long long i = tdm_test_thread();
	if (i < a.n)
		a.out[i] = a.a[i] + a.b[i];
}

// out[i] = in[index[i]]
TDM_TEST_KERNEL tdm_test_gather(const tdm_test_gather_args a) {
	const long long i = tdm_test_thread();
	if (i < a.n)
		a.out[i] = a.in[a.index[i]];
}
