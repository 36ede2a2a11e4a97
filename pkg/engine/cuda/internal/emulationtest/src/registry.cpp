// The kernels of the engine, by name.
#include "emulation.h"

#include "../../kernels/tdm_cuda.h"

TDM_KNOWN(tdm_embed, tdm_embed_args)
TDM_KNOWN(tdm_norm, tdm_norm_args)
TDM_KNOWN(tdm_roots, tdm_roots_args)
#define TDM_PRODUCTS(then, type)                                    \
  TDM_KNOWN(tdm_product_thin_##then##_8##type, tdm_product_args)    \
  TDM_KNOWN(tdm_product_thin_##then##_16##type, tdm_product_args)   \
  TDM_KNOWN(tdm_product_tiled_##then##_64##type, tdm_product_args)  \
  TDM_KNOWN(tdm_product_tiled_##then##_128##type, tdm_product_args) \
  TDM_KNOWN(tdm_product_sliced_##then##type, tdm_product_args)
#define TDM_TYPED_PRODUCTS(type)                                    \
  TDM_PRODUCTS(store, type)                                         \
  TDM_PRODUCTS(add, type)                                           \
  TDM_PRODUCTS(swiglu, type)                                        \
  TDM_KNOWN(tdm_product_thin_heads_8##type, tdm_product_heads_args)  \
  TDM_KNOWN(tdm_product_thin_heads_16##type, tdm_product_heads_args)
TDM_TYPED_PRODUCTS()
TDM_TYPED_PRODUCTS(_int8)
TDM_TYPED_PRODUCTS(_fp8)
TDM_KNOWN(tdm_arrange, tdm_product_args)
TDM_KNOWN(tdm_product_wide_store, tdm_product_args)
TDM_KNOWN(tdm_product_wide_add, tdm_product_args)
TDM_KNOWN(tdm_product_wide_swiglu, tdm_product_args)
TDM_KNOWN(tdm_product_joined_store, tdm_product_args)
TDM_KNOWN(tdm_product_joined_add, tdm_product_args)
TDM_KNOWN(tdm_product_joined_swiglu, tdm_product_args)
TDM_KNOWN(tdm_quantize_int8, tdm_quantize_args)
TDM_KNOWN(tdm_quantize_fp8, tdm_quantize_args)

#define TDM_ATTENTIONS(size)                                  \
  TDM_KNOWN(tdm_attention_thin_##size, tdm_attention_args)    \
  TDM_KNOWN(tdm_attention_tall_##size, tdm_attention_args)    \
  TDM_KNOWN(tdm_attention_thin_##size##_fp8, tdm_attention_args) \
  TDM_KNOWN(tdm_attention_tall_##size##_fp8, tdm_attention_args)
TDM_ATTENTIONS(32)
TDM_ATTENTIONS(64)
TDM_ATTENTIONS(128)
TDM_ATTENTIONS(256)

TDM_KNOWN(tdm_heads, tdm_heads_args)
TDM_KNOWN(tdm_join, tdm_join_args)
TDM_KNOWN(tdm_draw, tdm_draw_args)
TDM_KNOWN(tdm_gather, tdm_gather_args)
TDM_KNOWN(tdm_swiglu, tdm_swiglu_args)
