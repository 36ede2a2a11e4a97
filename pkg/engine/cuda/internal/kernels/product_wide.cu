#include "product_wide.h"

TDM_WIDE(store, TDM_STORE)
TDM_WIDE(add, TDM_ADD)
TDM_WIDE(swiglu, TDM_SWIGLU)
