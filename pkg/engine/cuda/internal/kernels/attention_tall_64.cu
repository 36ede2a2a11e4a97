#include "attention_tall.h"

TDM_TALL(64)
