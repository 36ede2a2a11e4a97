// The kernels: those of the emulation, and those of the tests of package driver, which are
// so plain that their threads run one after the other.

#include "driver.h"

#include <cstring>

// The emulation's. A library built without it has the kernels of the tests only.
extern "C" {
__attribute__((weak)) int tdm_emulate(const char *kernel, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
	const void *args, char *error, size_t error_size);
__attribute__((weak)) const size_t *tdm_emulated_args(const char *kernel);
}

namespace {

thread_local long long test_thread;

long long tdm_test_thread() { return test_thread; }

#define TDM_TEST_KERNEL static void
#include "kernels.cu"

// run_test runs a kernel of the tests, whose grids and blocks have one dimension.
template <class Arguments, void (*kernel)(Arguments)>
int run_test(const unsigned grid[3], const unsigned block[3], const void *arguments) {
	Arguments a;
	std::memcpy(&a, arguments, sizeof a);
	for (test_thread = 0; test_thread < (long long)grid[0] * block[0]; test_thread++)
		kernel(a);
	return 0;
}

} // namespace

bool fake::find_kernel(const std::string &name, Kernel *kernel) {
	static const Kernel tests[] = {
		{"tdm_test_fill", sizeof(tdm_test_fill_args), run_test<tdm_test_fill_args, tdm_test_fill>},
		{"tdm_test_add", sizeof(tdm_test_add_args), run_test<tdm_test_add_args, tdm_test_add>},
		{"tdm_test_gather", sizeof(tdm_test_gather_args), run_test<tdm_test_gather_args, tdm_test_gather>},
	};
	for (const Kernel &k : tests) {
		if (k.name == name) {
			*kernel = k;
			return true;
		}
	}
	const size_t *bytes = tdm_emulated_args ? tdm_emulated_args(name.c_str()) : nullptr;
	if (!bytes)
		return false;
	kernel->name = name, kernel->arguments = *bytes, kernel->run = nullptr;
	return true;
}

int fake::run_kernel(const Kernel &kernel, const unsigned grid[3], const unsigned block[3], unsigned shared, const void *arguments,
	std::string *why) {
	if (kernel.run)
		return kernel.run(grid, block, arguments);
	char error[512] = "";
	const int code = tdm_emulate(kernel.name.c_str(), grid, block, shared, arguments, error, sizeof error);
	*why = error;
	return code;
}
