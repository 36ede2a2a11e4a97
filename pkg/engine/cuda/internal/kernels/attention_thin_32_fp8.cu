#include "attention_thin.h"

TDM_THIN_FP8(32)
