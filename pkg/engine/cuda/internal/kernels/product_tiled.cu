#include "product_tiled.h"

TDM_PRODUCTS_TILED(tdm_weights_bf16, )
