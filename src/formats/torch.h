/* formats/torch.h: opens the files of torch.save (.pth, .pt) as files of tensors, for cr_st_find and cr_st_read.
 *
 * Two serialisations:
 *   zip      since PyTorch 1.6: an archive of ROOT/data.pkl (a pickle), ROOT/data/KEY (a storage each), version, and
 *            byteorder
 *   stream   before: five pickles (magic number, version, system, object, keys), then a count and the bytes of each key
 * Tar archives (before PyTorch 0.1.10), TorchScript programs and big-endian files are refused with advice.
 *
 * The object is a state dict (a dictionary with tensors) or a dictionary of state dicts: the weights, perhaps their
 * moving averages, a teacher. FILE:KEY chooses one. Otherwise the usual keys of weights come first; another key is
 * taken when it is the only one with about as many tensors as the largest. Entries that are no tensors are left out.
 *
 * Invariants
 *   - The pickles are not run: formats/torch/pickle.h.
 *   - The bytes of every tensor lie in the file. Tensors may share them and may be strided: cr_st_read gathers those.
 *   - Only tensors are read. Memory is proportional to the pickles, not to the storages; a strided tensor is in memory
 *     while cr_st_read reads it from its begin to its end. */
#ifndef CR_TORCH_H
#define CR_TORCH_H

#include "formats/safetensors.h"

/* Opens a PyTorch file, or FILE:KEY as cr_st_open_any. The caller closes *out with cr_st_close. It has no metadata.
 * CR_ERR_FORMAT, CR_ERR_IO. */
CR_MUST cr_status cr_torch_open(const char *path, struct cr_st_file **out);

#endif
