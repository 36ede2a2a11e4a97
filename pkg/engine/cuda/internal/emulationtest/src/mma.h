// What a tensor core computes, bit for bit as an H200 does.
#ifndef TDM_MMA_H
#define TDM_MMA_H

#include <stdint.h>

extern "C" {

// tdm_dot16 is c plus the sixteen products of a and b, which are bf16.
float tdm_dot16(const uint16_t *a, const uint16_t *b, float c);

// tdm_multiply_tile adds to sums the product of rows a[row][k] and columns b[k][column] of
// bf16, as mma.sync.m16n8k16 does. Each sum is tdm_dot16's.
void tdm_multiply_tile(float (*sums)[8], const uint16_t (*a)[16], const uint16_t (*b)[8]);

}

#endif
