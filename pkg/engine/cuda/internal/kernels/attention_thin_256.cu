#include "attention_thin.h"

TDM_THIN(256)
