#include "product_thin.h"

TDM_PRODUCTS_THIN(tdm_weights_fp8, _fp8)
