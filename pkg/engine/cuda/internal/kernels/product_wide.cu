#include "product_wide.h"

TDM_KERNEL(TDM_ARRANGE_THREADS, 1) tdm_arrange(const tdm_product_args a) { tdm_arrange_rows(a); }
TDM_WIDE(store, TDM_STORE)
TDM_WIDE(add, TDM_ADD)
TDM_WIDE(swiglu, TDM_SWIGLU)
