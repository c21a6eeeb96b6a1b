#pragma once
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "harness/pack.h"

/// The tiles of the MIMO backward in an emulated shared memory: filled by plain stores through the
/// tile's layout or by an emulated bulk copy (TMA), read back as the kernel indexes them. The copy
/// has the rule of TileLang 0.1.8: into a swizzled tile it takes two dimensions. No compiler, no
/// kernel and no hardware is part of it.
namespace patchbench::mamba3_mimo_smem_2d {

/// How a kernel names and reads its tiles. The first two are right where they lower.
enum class Form {
  kRank3,           ///< the release: [chunk, R, N] and [chunk, R, R]
  kFlat,            ///< [chunk * R, N] and [chunk, R * R]
  kProductsRank3,   ///< wrong: the tile of products is left [chunk, R, R]
  kRowsRankMajor,   ///< wrong: row r * chunk + c for token c and rank r
  kReadTransposed,  ///< wrong: product u * R + r for ranks r, u
  kUnswizzled,      ///< wrong: read row by row, as if the tile had no swizzle
  kSecondTile,      ///< wrong: flat by a copy in shared memory, not by a view
};

/// A tile: `dims` as the kernel indexes it, the last one contiguous; the rest are its rows.
struct Tile {
  std::vector<int64_t> dims;
  int64_t rows = 0, columns = 0, element_bytes = 0;
  bool is_swizzled = false;
};

/// What one CTA holds and how it is filled.
struct Staged {
  int64_t tile_bytes = 0, tiles_by_tma = 0;
};

constexpr int64_t kUnitBytes = 16;  ///< what TMA moves and a swizzle keeps together
constexpr int64_t kBoxBytes = 128;  ///< the widest row of a swizzled box

/// [rows, columns] int64: where an element lies, by the layout: boxes side by side, in each the
/// unit number is xored with the row modulo 8. Without a swizzle row by row.
inline at::Tensor layout(const Tile& tile, bool is_swizzled) {
  const int64_t width = tile.is_swizzled ? kBoxBytes / tile.element_bytes : tile.columns,
                unit = kUnitBytes / tile.element_bytes;
  const at::Tensor row = at::arange(tile.rows).unsqueeze(1), column = at::arange(tile.columns);
  const at::Tensor box = column.div(width, "floor"), within = column.remainder(width);
  at::Tensor units = within.div(unit, "floor") + at::zeros_like(row);
  if (is_swizzled) units = units.bitwise_xor(row.remainder(8));
  return (box * tile.rows + row) * width + units * unit + within.remainder(unit);
}

/// A bulk copy writes box by box, each element to the next address, of which bits 4 to 6 are xored
/// with bits 7 to 9 where the tile is swizzled. source [rows, columns], memory [rows * columns].
inline void bulk_copy(const Tile& tile, const at::Tensor& source, at::Tensor& memory) {
  const int64_t width = tile.is_swizzled ? kBoxBytes / tile.element_bytes : tile.columns;
  for (int64_t first = 0; first < tile.columns; first += width) {
    const at::Tensor box = source.narrow(1, first, width).flatten();
    at::Tensor address = (at::arange(box.numel()) + first * tile.rows) * tile.element_bytes;
    if (tile.is_swizzled)
      address = address.bitwise_xor(address.div(128, "floor").remainder(8) * kUnitBytes);
    memory.index_put_({address.div(tile.element_bytes, "floor")}, box);
  }
}

/// Whether a copy into the tile goes by TMA. Rows that are not whole units go by plain stores.
inline bool is_by_tma(const Tile& tile) {
  if (tile.dims.back() * tile.element_bytes % kUnitBytes != 0) return false;
  if (tile.is_swizzled && tile.dims.size() != 2)
    throw harness::ModelRaised(
        fmt::format("a bulk copy into a swizzled tile of {} dimensions", tile.dims.size()));
  return true;
}

/// [rows, columns] int64: the offsets at which the kernel looks for the elements.
inline at::Tensor read_offsets(const Tile& tile, Form form, int64_t num_ranks) {
  const at::Tensor offsets = layout(tile, tile.is_swizzled && form != Form::kUnswizzled);
  if (form == Form::kRowsRankMajor && tile.is_swizzled)
    return offsets.unflatten(0, {num_ranks, -1}).transpose(0, 1).flatten(0, 1);
  if (form == Form::kReadTransposed && !tile.is_swizzled)
    return offsets.unflatten(1, {num_ranks, num_ranks}).mT().flatten(1, 2);
  return offsets;
}

/// `global` [batch, rows, others, columns] through tiles of one kind, one for each of `others` at a
/// time; rows past the end are zeros.
inline at::Tensor through_tiles(const at::Tensor& global, const Tile& tile, Form form,
                                int64_t num_ranks, bool has_tma, Staged& staged) {
  const bool is_bulk = has_tma && is_by_tma(tile);
  const at::Tensor stored = layout(tile, tile.is_swizzled),
                   read = read_offsets(tile, form, num_ranks);
  const int64_t rows = global.size(1), tail = (tile.rows - rows % tile.rows) % tile.rows;
  const at::Tensor padded = at::constant_pad_nd(global, {0, 0, 0, 0, 0, tail});
  at::Tensor seen = at::empty_like(padded);
  int64_t bytes = 0;
  for (int64_t b = 0; b < padded.size(0); ++b) {
    for (int64_t o = 0; o < padded.size(2); ++o) {
      for (int64_t first = 0; first < padded.size(1); first += tile.rows) {
        const auto part = [&](const at::Tensor& t) {
          return t[b].narrow(0, first, tile.rows).select(1, o);
        };
        // What no copy writes shows as NaN.
        at::Tensor memory = at::full({tile.rows * tile.columns},
                                     std::numeric_limits<double>::quiet_NaN(), padded.options());
        if (is_bulk) bulk_copy(tile, part(padded), memory);
        if (!is_bulk) memory.index_put_({stored}, part(padded));
        bytes = static_cast<int64_t>(memory.nbytes());
        if (form == Form::kSecondTile) {
          memory = memory.clone();
          bytes += static_cast<int64_t>(memory.nbytes());
        }
        part(seen).copy_(memory.index({read}));
      }
    }
  }
  staged.tile_bytes += bytes;
  staged.tiles_by_tma += is_bulk;
  return seen.narrow(1, 0, rows);
}

/// q and k [batch, seqlen, R, G, N] and grad_qk_dot [batch, heads, seqlen, R, R] as the kernel sees
/// them; in global memory q and k are viewed [batch, seqlen * R, G, N], without a copy.
inline Staged stage(harness::Tensors& t, Form form, int64_t chunk, bool has_tma) {
  Staged staged;
  const int64_t r = t.at("q").size(2), n = t.at("q").size(4);
  const bool is_rank3 = form == Form::kRank3;
  const int64_t bytes = static_cast<int64_t>(t.at("q").element_size());
  const std::vector<int64_t> split = {chunk, r, n}, flat = {chunk * r, n};
  for (const char* name : {"q", "k"}) {
    const Tile tile{is_rank3 ? split : flat, chunk * r, n, bytes, true};
    const at::Tensor& x = t.at(name);
    const at::Tensor rows = x.view({x.size(0), -1, x.size(3), n});
    t[name] = through_tiles(rows, tile, form, r, has_tma, staged).reshape(x.sizes());
  }
  const bool is_split = is_rank3 || form == Form::kProductsRank3;
  const std::vector<int64_t> products = {chunk, r, r}, flat_products = {chunk, r * r};
  const Tile tile{is_split ? products : flat_products, chunk, r * r, bytes, false};
  const at::Tensor grad = t.at("grad_qk_dot").flatten(3).transpose(1, 2);
  t["grad_qk_dot"] = through_tiles(grad, tile, form, r, has_tma, staged)
                         .transpose(1, 2)
                         .reshape(t.at("grad_qk_dot").sizes());
  return staged;
}

}  // namespace patchbench::mamba3_mimo_smem_2d
