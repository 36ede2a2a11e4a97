// What four warps do together: wgmma.m64n192k16 of lines that they have and a matrix in shared
// memory. Each warp does its own sixteen lines when it waits for them, as nothing makes it wait
// for the others.
#include "block.h"

#include "mma.h"

static const int with_warp = 0x500; // what the lanes of a warp meet for: see warp.cpp

void tdm_wgmma_begin() { tdm_here()->wide_begun = true; }

void tdm_wgmma_ask(float *sum, const uint32_t *a, uint64_t b, bool add) {
  tdm_lane *l = tdm_here();
  const unsigned group = l->task.thread / 128;
  if (l->owner->threads < 128 * (group + 1))
    tdm_fault("a product of a warpgroup, of which there is only a part");
  if (!l->wide_begun)
    tdm_fault("a product of a warpgroup that does not begin a group, or follow one of it");
  if (l->wide_sum != nullptr && l->wide_sum != sum)
    tdm_fault("products of a warpgroup add to two arrays of sums at once");
  std::vector<tdm_wide> &all = l->owner->wide[group];
  if (all.empty())
    all.reserve(1 << 14); // ThreadSanitizer would see it grow
  const tdm_wide product = {b, add};
  if (all.size() == l->asked.size())
    all.push_back(product);
  else if (all[l->asked.size()] != product)
    tdm_fault("threads of its warpgroup ask for different products");
  l->asked.push_back(product);
  l->lines.push_back({a, {a[0], a[1], a[2], a[3]}});
  if (l->wide_sum == nullptr)
    memcpy(l->in_flight, sum, sizeof l->in_flight);
  l->wide_sum = sum;
  memset(sum, 0xff, sizeof l->in_flight);
}

void tdm_wgmma_commit() {
  tdm_lane *l = tdm_here();
  l->wide_groups.push_back(l->asked.size());
  l->wide_begun = false;
}

// line_at is 8 k of a line of a matrix.
static const uint8_t *line_at(const tdm_lane *l, uint64_t matrix, unsigned line, unsigned column) {
  const uint64_t first = matrix & 0x3fff, along_k = matrix >> 16 & 0x3fff, along_lines = matrix >> 32 & 0x3fff;
  const uint8_t *at = l->task.shared + 16 * (first + column * along_k + line / 8 * along_lines + line % 8);
  tdm_check_shared(at, 16);
  const tdm_brought brought = l->owner->brought[(size_t)(at - l->task.shared) / 16];
  if (brought.by == 0)
    tdm_fault("a product of a warpgroup reads what no bulk copy brought");
  if (brought.by > l->seen.size() || l->seen[brought.by - 1] <= brought.phase)
    tdm_fault("a product of a warpgroup reads what its threads have not waited for");
  return at;
}

bool tdm_wgmma_next(int groups, const uint8_t *(*b)[6][2]) {
  tdm_lane *l = tdm_here();
  const size_t done = l->wide_groups.size() > (size_t)groups ? l->wide_groups[l->wide_groups.size() - 1 - (size_t)groups] : 0;
  if (l->multiplied >= done)
    return false;
  const tdm_wide &product = l->asked[l->multiplied];
  const tdm_lines &lines = l->lines[l->multiplied];
  if (memcmp(lines.at, lines.was, sizeof lines.was) != 0)
    tdm_fault("lines of a product of a warpgroup changed while it was under way");
  const unsigned lane = l->task.thread % 32;
  for (unsigned i = 0; i < 12; i++)
    (*b)[i / 2][i % 2] = line_at(l, product.b, 6 * lane + i / 2, i % 2);
  return true;
}

void tdm_wgmma_multiply(const tdm_operands &operands) {
  tdm_lane *l = tdm_here();
  l->operands = &operands;
  char *order = &l->owner->of_warp[l->task.thread / 32];
  tdm_release(order); // what a lane has read is read for its warp
  std::unique_ptr<tdm_lane> *lanes = tdm_meet(l, with_warp);
  tdm_acquire(order);
  if (lanes != nullptr) {
    uint16_t a[16][16], b[192][16];
    for (int i = 0; i < 32; i++)
      for (int part = 0; part < 4; part++)
        memcpy(&a[i / 4 + part % 2 * 8][2 * (i % 4) + part / 2 * 8], &lanes[i]->lines[l->multiplied].was[part], 4);
    for (int i = 0; i < 192; i++)
      memcpy(b[i], lanes[i / 6]->operands->b[i % 6], 32);
    const bool add = l->asked[l->multiplied].add;
    for (int j = 0; j < 24; j++) {
      uint16_t columns[16][8];
      float sums[16][8];
      for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8; n++)
          columns[k][n] = b[8 * j + n][k];
      const auto each = [&](auto move) {
        for (int i = 0; i < 32; i++)
          for (int n = 0; n < 4; n++)
            move(sums[i / 4 + n / 2 * 8][2 * (i % 4) + n % 2], lanes[i]->in_flight[4 * j + n]);
      };
      each([&](float &sum, float &of_lane) { sum = add ? of_lane : 0; });
      tdm_multiply_tile(sums, a, columns);
      each([](float &sum, float &of_lane) { of_lane = sum; });
    }
  }
  if (++l->multiplied == l->asked.size()) {
    memcpy(l->wide_sum, l->in_flight, sizeof l->in_flight);
    l->wide_sum = nullptr;
  }
}
