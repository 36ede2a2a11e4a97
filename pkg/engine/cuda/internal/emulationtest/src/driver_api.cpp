// That every function of the interface is here, with the parameters that the header says.

#include "driver.h"

#define DECLARE(name, parameters) extern "C" CUresult name parameters;
TDM_DRIVER_CALLS(DECLARE)
TDM_DRIVER_NEWER_CALLS(DECLARE)
#undef DECLARE

// Taking an address makes the linker look for the function.
#define ADDRESS(name, parameters) reinterpret_cast<void *>(name),
extern "C" const void *const tdm_fake_functions[] = {TDM_DRIVER_CALLS(ADDRESS) TDM_DRIVER_NEWER_CALLS(ADDRESS)};
#undef ADDRESS
