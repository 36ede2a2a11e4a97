#include "product_thin.h"

TDM_PRODUCTS_THIN(tdm_weights_bf16, )
