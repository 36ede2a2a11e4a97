#include "product_tiled.h"

TDM_PRODUCTS_TILED(tdm_weights_fp8, _fp8)
