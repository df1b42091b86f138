/* tests/harness/owned.h: objects of the library that tests own (OWNED in test.h). */
#ifndef CR_TEST_OWNED_H
#define CR_TEST_OWNED_H

#include "data/scratch.h"
#include "formats/safetensors.h"
#include "session/session.h"
#include "tests/harness/test.h"

OWNABLE(program, struct cr_program, cr_program_free(x))
OWNABLE(model, struct cr_model, cr_model_close(x))
OWNABLE(session, struct cr_session, cr_session_close(x))
OWNABLE(image, struct cr_image, cr_image_free(x))
OWNABLE(scratch, struct cr_scratch, cr_scratch_free(x))
OWNABLE(arena, struct cr_arena, cr_arena_free(x))
OWNABLE(text, struct cr_text, cr_text_free(x))
OWNABLE(config, const struct cr_config *, cr_config_close(*x))
OWNABLE(dataset, struct cr_dataset *, cr_dataset_close(*x))
OWNABLE(loader, struct cr_loader *, cr_loader_close(*x))
OWNABLE(device, struct cr_device *, cr_device_close(*x))
OWNABLE(weights, struct cr_st_file *, cr_st_close(*x))

#endif
