// Runs the checks named, or all: check [small|long] [NAME...].
#include "check.h"

#include <stdarg.h>

bool small;
int rounds = 1;
int failures;

void fail(const char *format, ...) {
  if (++failures > 20)
    return;
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  fputc('\n', stderr);
}

void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit))
    fail("%s: got %.9g, want %.9g within %.3g", what, got, want, limit);
}

int main(int count, char **words) {
  const struct {
    const char *name;
    void (*run)();
  } checks[] = {
      {"strictness", check_strictness},
      {"fp8", check_fp8},
      {"rows", check_rows},
      {"draws", check_draws},
      {"weights", check_weights},
      {"products", check_products},
      {"fused", check_heads_products},
      {"attention", check_attention},
  };
  int first = 1;
  if (count > 1 && strcmp(words[1], "small") == 0) {
    small = true;
    first = 2;
  } else if (count > 1 && strcmp(words[1], "long") == 0) {
    rounds = 8;
    first = 2;
  }
  for (const auto &check : checks) {
    bool wanted = first == count;
    for (int i = first; i < count; i++)
      wanted |= strcmp(words[i], check.name) == 0;
    if (!wanted)
      continue;
    const int before = failures;
    check.run();
    printf("%-10s %s\n", check.name, failures == before ? "ok" : "FAILED");
  }
  if (failures > 20)
    fprintf(stderr, "and %d more\n", failures - 20);
  return failures != 0;
}
