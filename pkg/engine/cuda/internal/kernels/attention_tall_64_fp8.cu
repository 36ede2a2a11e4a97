#include "attention_tall.h"

TDM_TALL_FP8(64)
