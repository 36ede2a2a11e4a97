// What a norm leaves to the products behind it, as its definition has it.
#include "check.h"

deferred::deferred(random_source &r, int rows, int width)
    : rows(rows), width(width), sums((width + TDM_SQUARES - 1) / TDM_SQUARES), lds(padded(sums, 4)), ld(padded(width, TDM_K)),
      weight((size_t)width), squares((size_t)rows * lds, 0), roots((size_t)rows), scaled((size_t)rows * ld) {
  for (int i = 0; i < width; i++)
    weight[i] = 2 * r.number();
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < sums; i++)
      squares[(size_t)row * lds + i] = 8 * (1 + r.number());
}

tdm_deferred deferred::args(int row) {
  return {weight.at, scaled.at + (size_t)row * ld, squares.at + (size_t)row * lds, roots.at + row, ld, lds, width, eps};
}

double deferred::root(int row) {
  double sum = 0;
  for (int i = 0; i < sums; i++)
    sum += squares[(size_t)row * lds + i];
  return 1 / sqrt(sum / width + eps);
}

float sum_of_squares(const float *row, int from, int width) {
  float square[TDM_SQUARES];
  for (int i = 0; i < TDM_SQUARES; i++)
    square[i] = from + i < width ? row[from + i] * row[from + i] : 0;
  for (int apart = TDM_SQUARES / 2; apart > 0; apart /= 2)
    for (int i = 0; i < apart; i++)
      square[i] = square[i] + square[i + apart];
  return square[0];
}
