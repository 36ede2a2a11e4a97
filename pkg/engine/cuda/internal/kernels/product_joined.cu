// tdm_product_joined_*: what sliced products of all formats of weights are joined by.
#include "product_tiled.h"

#define TDM_JOINED(name, then) \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 2) tdm_product_joined_##name(const tdm_product_args a) { tdm_product_joined<then>(a); }

TDM_JOINED(store, TDM_STORE)
TDM_JOINED(add, TDM_ADD)
TDM_JOINED(swiglu, TDM_SWIGLU)
