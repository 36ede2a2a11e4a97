// The kernels of the engine, by name.
#include "emulation.h"

#include "../../kernels/tdm_cuda.h"

TDM_KNOWN(tdm_embed, tdm_embed_args)
TDM_KNOWN(tdm_norm, tdm_norm_args)
#define TDM_PRODUCTS(then)                                    \
  TDM_KNOWN(tdm_product_thin_##then##_8, tdm_product_args)    \
  TDM_KNOWN(tdm_product_thin_##then##_16, tdm_product_args)   \
  TDM_KNOWN(tdm_product_thin_##then##_32, tdm_product_args)   \
  TDM_KNOWN(tdm_product_tiled_##then##_64, tdm_product_args)  \
  TDM_KNOWN(tdm_product_tiled_##then##_128, tdm_product_args) \
  TDM_KNOWN(tdm_product_sliced_##then, tdm_product_args)      \
  TDM_KNOWN(tdm_product_joined_##then, tdm_product_args)
TDM_PRODUCTS(store)
TDM_PRODUCTS(add)
TDM_PRODUCTS(swiglu)

#define TDM_ATTENTIONS(size)                                  \
  TDM_KNOWN(tdm_attention_thin_##size, tdm_attention_args)    \
  TDM_KNOWN(tdm_attention_tall_##size, tdm_attention_args)
TDM_ATTENTIONS(32)
TDM_ATTENTIONS(64)
TDM_ATTENTIONS(128)
TDM_ATTENTIONS(256)

TDM_KNOWN(tdm_heads, tdm_heads_args)
TDM_KNOWN(tdm_join, tdm_join_args)
TDM_KNOWN(tdm_draw, tdm_draw_args)
TDM_KNOWN(tdm_gather, tdm_gather_args)
TDM_KNOWN(tdm_swiglu, tdm_swiglu_args)
