/* cuda/train/update_tables.h: tables about the parameters that optimizers read (learning-rate factors, LARS, LAMB,
 * Muon), in device memory. Private to cuda/train/. */
#ifndef CR_CUDA_UPDATE_TABLES_H
#define CR_CUDA_UPDATE_TABLES_H

#include "cuda/common/launchers.h"
#include "cuda/core/cuda_device.h"

struct update_tables {
    uint8_t             *map;    /* see CK_SGD_BLOCK */
    float               *scale;  /* NULL when all learning rates are the same */
    int32_t             *owner;  /* lars, lamb */
    float               *factor; /* muon */
    struct ck_norm_tile *tile;   /* param_norms, lamb_norms */
    int32_t             *first_tile;
    int                  tiles;
};

/* cr_kernel.prepare and cr_kernel.release of the update rules and of param_norms and lamb_norms. The result is a struct
 * update_tables, NULL on an offline device. */
cr_status cr_cuda_update_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                 void **prepared, size_t *workspace_bytes);
void      cr_cuda_update_release(void *prepared);

/* Returns whether the tensor is this whole buffer of an f32 parameter store. */
bool cr_cuda_is_values(const struct cr_program *p, int tensor, enum cr_param_buffer buffer);
bool cr_cuda_is_mask(const struct cr_program *p, int tensor);

/* Returns the number of tiles of a parameter, and writes them unless `tile` is NULL. */
int cr_cuda_put_tiles(const struct cr_param *q, struct ck_norm_tile *tile);
/* Allocates device memory of `bytes` and copies host[bytes] there. */
cr_status cr_cuda_table(struct cr_device *device, const void *host, size_t bytes, void **out);

#endif
